"""R-hat against its formula; effective sample sizes and the sampler's figures against cases with known answers."""

import jax
import numpy as np
import pytest
from scipy import stats

from gpssm.posterior import diagnostics, forecast
from posteriors import fitted


def autoregression(chains, draws, rho, shape=(), seed=0):
    """x_t = rho x_{t−1} + ε, one chain a row."""
    x = np.random.default_rng(seed).normal(size=(chains, draws, *shape))
    for t in range(1, draws):
        x[:, t] += rho * x[:, t - 1]
    return x


def textbook_rhat(values):
    """The larger √((B/W + n − 1) / n) of the normal scores of halved chains and of their distances from the median."""
    half = values.shape[1] // 2
    halves = np.concatenate([values[:, :half], values[:, -half:]])
    found = []
    for part in (halves, np.abs(halves - np.median(halves))):
        scores = stats.norm.ppf((stats.rankdata(part) - 3 / 8) / (part.size + 1 / 4)).reshape(
            part.shape
        )
        between, within = half * np.var(scores.mean(1), ddof=1), np.mean(scores.var(1, ddof=1))
        found.append(np.sqrt((between / within + half - 1) / half))
    return max(found)


@pytest.mark.parametrize(("chains", "draws"), [(1, 8), (1, 101), (2, 5), (4, 60)])
def test_rhat_is_that_of_the_textbook(chains, draws):
    values = np.round(autoregression(chains, draws, 0.5, (2, 3)) ** 3, 1)
    found = diagnostics.rhat(values)
    assert found.shape == (2, 3)
    for entry in np.ndindex(2, 3):
        np.testing.assert_allclose(found[entry], textbook_rhat(values[(..., *entry)]), rtol=1e-12)


@pytest.mark.parametrize("chains", [1, 3])
def test_figures_are_of_each_quantity_and_mind_its_ranks_alone(chains):
    values = autoregression(chains, 60, 0.5, (2, 3))
    for figure in (diagnostics.rhat, diagnostics.ess_bulk, diagnostics.ess_tail):
        found = figure(values)
        assert found.shape == (2, 3)
        assert found[1, 2] == figure(values[:, :, 1, 2])
    np.testing.assert_array_equal(
        diagnostics.ess_bulk(np.exp(values)), diagnostics.ess_bulk(values)
    )


def test_what_does_not_vary_and_what_is_too_short():
    values = autoregression(2, 40, 0.0, (2,))
    values[..., 1] = 7.0
    assert np.isnan(diagnostics.rhat(values)).tolist() == [False, True]
    assert diagnostics.ess_bulk(values)[1] == diagnostics.ess_tail(values)[1] == 80
    assert np.isnan(diagnostics.bfmi(values[..., 1])).all()
    for figure in (diagnostics.rhat, diagnostics.ess_bulk, diagnostics.ess_tail):
        assert np.isnan(figure(values[:, :3])).all()
        assert np.isnan(figure(values[:1, :3])).all()


def test_rhat_sees_a_chain_elsewhere_and_a_chain_with_another_spread():
    values = autoregression(4, 200, 0.0)
    assert diagnostics.rhat(values) < 1.02
    assert diagnostics.rhat(values + np.array([0, 0, 0, 2.0])[:, None]) > 1.2
    assert diagnostics.rhat(values * np.array([1, 1, 1, 5.0])[:, None]) > 1.1


def test_effective_size_of_an_autoregression():
    # N (1 − ρ) / (1 + ρ)
    values = autoregression(4, 5000, 0.6)
    assert diagnostics.ess_bulk(values) == pytest.approx(20000 * 0.4 / 1.6, rel=0.1)


def test_energies_drawn_afresh_have_a_bfmi_of_two_and_a_slow_walk_near_none():
    assert diagnostics.bfmi(autoregression(2, 4000, 0.0)) == pytest.approx([2.0, 2.0], rel=0.1)
    assert np.all(diagnostics.bfmi(autoregression(2, 4000, 0.999)) < 0.05)


def test_rows_take_the_worst_and_leave_constants_out():
    values = autoregression(4, 100, 0.0, (3,))
    values[:, :, 1] = 7.0
    values[:, :, 2] += np.arange(4)[:, None]
    one = diagnostics.row("x", values)
    assert one.number == 2
    assert one.rhat == diagnostics.rhat(values[:, :, 2])
    assert np.isnan(diagnostics.row("x", np.ones((2, 10, 3))).rhat)


def test_chains_with_other_coordinates_are_fine_within():
    values = autoregression(4, 200, 0.0, (2,)) * np.array([1, -1, 3, -3.0])[:, None, None]
    values += 3 * np.arange(4)[:, None, None]
    assert diagnostics.row("x", values).rhat > 1.2
    within = diagnostics.row_within("x", values)
    assert within.rhat < 1.05
    assert 400 < within.ess_bulk_median < 1600


def test_many_quantities_of_chains_that_settled_are_fine_within_and_one_that_drifts_is_not():
    values = autoregression(4, 250, 0.0, (150,))
    settled = diagnostics.row_within("x", values)
    assert settled.rhat < 1.02
    assert settled.ess_bulk > 500
    values[1, 125:, 7] += 2  # in one chain of four, one quantity
    drifting = diagnostics.row_within("x", values)
    assert drifting.rhat > 1.1
    assert drifting.ess_bulk < 50


def test_the_dynamics_as_outputs_show_them():
    """C f(x_t, u_t) + d along a draw's own path, and √diag(C Q Cᵀ + R), by NumPy."""
    posterior = fitted()
    draws, model = posterior.draws, posterior.model
    draw = jax.tree.map(lambda leaf: leaf[1, 3], draws)
    leaves = {name: np.asarray(leaf) for name, leaf in (model.leaves() | draw.leaves).items()}
    u = posterior.dataset.acting[0].u
    f = posterior.transition(draw.states[0][:-1], u).draws[1, 3]
    with jax.enable_x64(True):
        found = np.asarray(
            diagnostics.one_step_dynamics(
                model.with_leaves(draw.leaves), draw, posterior.dataset.scaled[0].u
            )
        )
    C, d = leaves["likelihood.C"], leaves["likelihood.d"]
    assert found[:-1] == pytest.approx(f @ C.T + d)
    covariance = C @ np.diag(np.exp(2 * leaves["log_process_std"])) @ C.T
    assert found[-1] == pytest.approx(
        np.sqrt(np.diag(covariance) + np.exp(2 * leaves["likelihood.log_std"]))
    )


def test_the_diagnostics_of_a_posterior():
    posterior = fitted()
    found = posterior.diagnostics()
    names = [one.name for one in found.rows]
    assert names[:2] == ["likelihood.log_std", "log_process_std"]
    assert names[2:] == [
        *(
            "function values",
            "states, within chains",
            "smoothed outputs",
            "one-step outputs",
            "one-step noise",
        ),
        *("30-step forecast mean", "log target"),
    ]
    assert found["smoothed outputs"].rhat == pytest.approx(
        np.max(diagnostics.rhat(forecast.outputs_of(posterior)))
    )
    assert found["function values"].number == 20 * 2
    assert found["log target"].ess_bulk == pytest.approx(
        diagnostics.ess_bulk(posterior.info.log_target)
    )
    assert "identified only up to" in str(found)
    assert list(found.to_frame().index) == names
    with pytest.raises(KeyError, match="smoothed outputs"):
        found["outputs"]
