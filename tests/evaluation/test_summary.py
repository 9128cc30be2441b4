"""The summary: numbers against independent computations, verdicts and warnings, text and
dictionary.
"""

import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.signal import lfilter
from sklearn.linear_model import LinearRegression

import gpssm
from builders import make_model, make_series
from gpssm.core.text import percent
from gpssm.data.series import Series
from gpssm.evaluation.training import LEAD, assess, nonlinearity, simulation_rows, steps_until
from gpssm.methods import ARX
from gpssm.methods.linear import regress
from gpssm.model.likelihoods import StudentT
from gpssm.posterior.diagnostics import with_notes
from gpssm.posterior.draws import differ_in_model
from gpssm.posterior.validation import TRAINING
from posteriors import make_posterior


def make_data(length=300, seed=0):
    """y_t = 1.2 y_{t−1} − 0.5 y_{t−2} + u_t + noise, in units far from 1."""
    rng = np.random.default_rng(seed)
    u, y = rng.normal(size=length), np.zeros(length)
    for t in range(2, length):
        y[t] = 1.2 * y[t - 1] - 0.5 * y[t - 2] + u[t] + rng.normal()
    return Series(50.0 + 10.0 * y, u, name="tank", outputs="level", inputs="pump")


@pytest.fixture(scope="module")
def series():
    return make_data()


@pytest.fixture(scope="module")
def posterior(series):
    return gpssm.fit(series, method=ARX(orders=(2, 1)), num_draws=120, num_chains=2, progress=False)


@pytest.fixture(scope="module")
def summary(posterior):
    return posterior.summary()


def test_noises_and_one_step_errors_are_those_of_the_regression(series, summary):
    found = regress([series], 2, 1, 2)
    a, b = found.outputs.ravel(), found.inputs.ravel()
    predicted = (
        a[0] * series.y[1:-1, 0]
        + a[1] * series.y[:-2, 0]
        + b[0] * series.u[2:, 0]
        + found.offset[0]
    )
    errors = series.y[2:, 0] - predicted
    output = summary.training.outputs[0]
    assert output.spread == pytest.approx(series.y.std())
    assert output.process_noise == pytest.approx(errors.std(), rel=0.01)
    assert output.noise < 0.001 * output.spread
    rows = simulation_rows(len(series))[: summary.training.horizon]
    judged = errors[rows[rows >= LEAD] - 2]
    assert output.one_step_error == pytest.approx(np.sqrt(np.mean(judged**2)), rel=0.01)


def test_simulations_widen_as_the_regression_says(series, posterior):
    figures = assess(posterior)
    found = regress([series], 2, 1, 2)
    impulse = lfilter([1.0], [1.0, *(-found.outputs.ravel())], np.eye(1, TRAINING.horizon)[0])
    exact = np.sqrt(found.covariance[0, 0] * np.cumsum(impulse**2)) / series.y.std()
    # A standard deviation from 160 paths.
    np.testing.assert_allclose(figures.widening[:, 0], exact, rtol=4 / np.sqrt(2 * 160))
    # Far ahead a simulation knows the controls only, and errs by as much as it says.
    assert figures.outputs[0].simulation_error == pytest.approx(
        exact[10] * series.y.std(), rel=0.25
    )
    assert figures.covered == pytest.approx(0.9, abs=0.07)
    assert figures.left == 0
    assert figures.nonlinear < 1e-9
    assert figures.nonlinear_change < 1e-9


def test_the_facts(series, summary):
    facts = summary.facts
    assert (facts["method"], facts["series"], facts["rows"]) == ("arx", ("tank",), (300,))
    assert (facts["outputs"], facts["inputs"], facts["missing"]) == (("level",), ("pump",), 0)
    assert (facts["states"], facts["inducing"], facts["kernel"]) == (2, 0, "")
    assert (facts["chains"], facts["draws"]) == (2, 120)
    assert summary.sampling.verdict == "good"
    assert summary.sampling.mixing["30-step forecast mean"][0] < 1.05
    assert summary.doubts == ()


def test_the_page_and_the_dict(summary):
    page = str(summary)
    for words in (
        "tank (300 rows)",
        "Convergence: good",
        "residual of",
        "its past",
        "Warnings\n  None.",
    ):
        assert words in page
    assert max(len(line) for line in page.splitlines()) <= 130
    plain = json.loads(json.dumps(summary.to_dict(), allow_nan=False))
    assert plain["facts"]["rows"] == [300]
    assert plain["training"]["outputs"][0]["spread"] == summary.training.outputs[0].spread


def test_several_series_a_gaussian_process_and_missing_outputs():
    posterior = make_posterior()
    posterior = replace(
        posterior, info=posterior.info._replace(energy=np.ones((2, 3)))
    )  # which only chains have
    summary = posterior.summary()
    facts = summary.facts
    assert facts["rows"] == (9, 5)
    assert facts["missing"] == pytest.approx(3 / 28)
    assert (facts["inducing"], facts["kernel"], facts["basis"]) == (
        6,
        "se",
        "InducingPoints",
    )
    assert len(summary.training.outputs) == 2
    assert len(summary.training.widening) == summary.training.horizon == 4
    assert 0 < summary.training.nonlinear < 1
    assert all(
        np.isfinite([one.one_step_error, one.simulation_error, one.noise]).all()
        for one in summary.training.outputs
    )
    variances = np.exp(2 * np.asarray(posterior.model.likelihood.log_std))
    scale = np.array(posterior.dataset.scaler.output_std)
    np.testing.assert_allclose(
        [one.noise for one in summary.training.outputs], scale * np.sqrt(variances)
    )
    process = np.exp(2 * posterior.draws.leaves["log_process_std"]).mean((0, 1))
    expected = scale * np.sqrt(np.asarray(posterior.model.likelihood.C) ** 2 @ np.asarray(process))
    np.testing.assert_allclose([one.process_noise for one in summary.training.outputs], expected)
    json.dumps(summary.to_dict(), allow_nan=False)
    assert summary.sampling.verdict == "poor"
    assert "no R-hat: too few draws" in str(summary)


def test_chains_with_models_of_their_own_are_judged_each_by_itself():
    """Two chains that have settled far apart, each with a kernel of its own; then one of them drifts."""
    rng = np.random.default_rng(0)
    weights, states = (0.02 * rng.normal(size=(2, 400, *shape)) for shape in ((2, 6), (13, 2)))
    weights[1] += 0.3
    own = {"kernel.log_variance": np.broadcast_to(np.arange(2.0)[:, None, None], (2, 400, 2))}
    posterior = make_posterior(None, [make_series(12)], weights, own, states=[states], draws=400)
    info = posterior.info._replace(
        energy=rng.normal(size=(2, 400)), log_target=rng.normal(size=(2, 400))
    )
    info = info._replace(acceptance=np.full((2, 400), 0.8))
    posterior = replace(posterior, info=info, spec=posterior.spec.replace(start="em", noise="free"))
    assert differ_in_model(posterior)
    assert with_notes(posterior).notes == ()
    summary = posterior.summary()
    assert summary.sampling.separate
    (forecast, _), _, *within = summary.sampling.mixing.values()
    assert forecast > 1.2
    assert all(rhat < 1.05 and ess > 100 for rhat, ess in within)
    assert summary.sampling.verdict == "poor"
    (said,) = (doubt for doubt in summary.doubts if "hain" in doubt)
    assert "(em, noise free)" in said
    json.dumps(summary.to_dict(), allow_nan=False)
    # The same chains of one kernel are one posterior, which they do not agree about.
    one = with_notes(replace(posterior, draws=posterior.draws._replace(leaves={}))).notes
    assert "Chains disagree. Increase num_warmup" in one[0]
    weights[0] += np.linspace(0, 0.3, 400)[:, None, None]
    (note,) = with_notes(replace(posterior, draws=posterior.draws._replace(weights=weights))).notes
    assert "have not converged" in note


def test_after_conditioning_it_is_still_about_the_training_data(posterior, series, summary):
    later = posterior.condition(series[:5]).summary()
    assert later.training.outputs == summary.training.outputs
    assert later.facts == summary.facts


def test_other_likelihoods():
    model = make_model(output_dim=1)
    likelihood = StudentT.build(model.likelihood.C, model.likelihood.d, jnp.full(1, 0.3))
    model = type(model).create(
        model.kernel, model.basis, model.mean, likelihood, jnp.exp(model.log_process_std)
    )
    posterior = make_posterior(model, [make_series(12, output_dim=1)], leaves={})
    summary = posterior.summary()
    assert summary.facts["likelihood"] == "StudentT"
    variance = float(likelihood.moments(jnp.zeros((1, 2)))[1][0, 0])
    assert summary.training.outputs[0].noise == pytest.approx(
        posterior.dataset.scaler.output_std[0] * np.sqrt(variance)
    )
    assert np.isfinite(summary.training.outputs[0].one_step_error)


def test_nonlinearity_is_what_regression_leaves():
    rng = np.random.default_rng(3)
    x, u = rng.normal(size=(2, 50, 2)), rng.normal(size=(50, 1))
    f = np.stack([np.tanh(2 * x[..., 0]), x[..., 1] + 0.5 * u[:, 0] + 0.1], axis=-1)
    left = total = change = 0.0
    for values, states in zip(f, x, strict=True):
        z = np.hstack([states, u])
        left += np.var(values - LinearRegression().fit(z, values).predict(z), axis=0).sum()
        total += np.var(values, axis=0).sum()
        change += np.var(values - states, axis=0).sum()
    found = nonlinearity(f, x, u)
    assert found == pytest.approx({"nonlinear": left / total, "nonlinear_change": left / change})


def test_the_steps_until_nothing_is_known():
    widening = np.array([0.1, 0.5, 0.95])
    assert [steps_until(widening, share) for share in (0.5, 0.9, 0.99)] == [2, 3, None]


def test_words_for_numbers():
    assert [percent(share) for share in (0.0, 1e-6, 0.00123, 0.0456, 0.5, 1.18)] == [
        *("0 %", "< 0.01 %", "0.12 %", "4.6 %", "50 %", "118 %")
    ]


def test_results_are_short_at_a_prompt(series, posterior, summary):
    linearised = posterior.linearise()
    results = [
        posterior,
        summary,
        posterior.diagnostics(),
        posterior.forecast(u=series.u[:5], num_paths=20).diagnostics,
        linearised,
        linearised.step_response(5),
        linearised.bode(),
        gpssm.analysis.static_gain(posterior),
        gpssm.select(series[:60], [{"method": "last"}, {"method": "mean"}], progress=False),
    ]
    texts = [repr(result) for result in results]
    assert max(map(len, texts)) < 100, texts
    assert all(
        text.startswith(type(result).__name__) for text, result in zip(texts, results, strict=True)
    )
