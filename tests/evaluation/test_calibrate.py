"""Calibration: the effect of stretching on all results, estimated factors, and a factor of 1 for
the true model.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import gpssm
from builders import make_model, make_series
from gpssm.core import metrics
from gpssm.core.text import percent
from gpssm.data.scaler import Scaler
from gpssm.data.series import Series
from gpssm.evaluation import held_out
from gpssm.evaluation.held_out import measure
from gpssm.model.likelihoods import Poisson
from gpssm.posterior.calibration import (
    TRUST,
    Calibration,
    estimate,
    needed_factors,
    octaves_to,
    weighted_quantile,
)
from gpssm.posterior.checks import check_calibration
from gpssm.posterior.validation import Fold, make_folds
from posteriors import linear_weights, make_posterior

FACTORS = np.array([[1.0, 1.3], [1.5, 1.0], [2.0, 1.7]])
HORIZON = 5  # two steps more than were measured
REACH = norm.ppf(0.95)


def calibration(factors=FACTORS):
    return Calibration(
        factors, 0 * factors + 0.8, np.arange(len(factors), 0.0, -1), 10, "some rows"
    )


@pytest.fixture(scope="module")
def posterior():
    return dataclasses.replace(make_posterior(), calibration=calibration())


@pytest.fixture(scope="module")
def forecasts(posterior):
    """The model's own, and the widened one, of the same paths."""
    u = make_series(HORIZON).u
    return (
        posterior.forecast(HORIZON, u, num_paths=60, calibrated=given) for given in (False, None)
    )


def test_every_figure_of_a_forecast_is_that_of_its_stretched_paths(forecasts):
    own, wide = forecasts
    s = FACTORS[[0, 1, 2, 2, 2]]
    np.testing.assert_allclose(wide.mean, own.mean)
    np.testing.assert_allclose(wide.std, s * own.std)
    for before, after in zip(own.interval(0.8), wide.interval(0.8), strict=True):
        np.testing.assert_allclose(after - own.mean, s * (before - own.mean))
    for before, after in ((own.moments, wide.moments), (own.moments_ahead, wide.moments_ahead)):
        np.testing.assert_allclose(after[0] - own.mean, s * (before[0] - own.mean))
        np.testing.assert_allclose(after[1], s**2 * before[1])
    # The density of y' = μ + s (y − μ) is that of y over s.
    y = make_series(HORIZON, seed=4).y
    back = own.mean + (y - own.mean) / s
    difference = metrics.nlpd(*wide.moments, y) - metrics.nlpd(*own.moments, back)
    assert difference == pytest.approx(np.mean(np.log(s)))


def test_predictions_are_as_wide_as_forecasts_of_as_many_steps(posterior):
    rows = make_series(4, seed=3)
    own, wide = (
        posterior.predict(rows, 2, num_paths=40, calibrated=given) for given in (False, True)
    )
    np.testing.assert_allclose(wide.std, FACTORS[[0, 1, 1, 1]] * own.std)


def test_a_posterior_that_was_not_calibrated_has_nothing_to_widen_by(posterior):
    plain = dataclasses.replace(posterior, calibration=None)
    u = make_series(HORIZON).u
    with pytest.raises(ValueError, match=r"posterior\.calibrate\(\)"):
        plain.forecast(HORIZON, u, num_paths=60, calibrated=True)
    own = posterior.forecast(HORIZON, u, num_paths=60, calibrated=False)
    np.testing.assert_array_equal(plain.forecast(HORIZON, u, num_paths=60).paths, own.paths)


def test_files_keep_the_calibration(posterior, tmp_path):
    posterior.save(tmp_path / "run.nc")
    found = gpssm.load(tmp_path / "run.nc").calibration
    for field in dataclasses.fields(Calibration):
        np.testing.assert_array_equal(
            getattr(found, field.name), getattr(posterior.calibration, field.name)
        )


def test_the_factor_needed_is_the_least_that_covers(forecasts, posterior):
    own = posterior.forecast(HORIZON, make_series(HORIZON).u, num_paths=60, calibrated=False)
    y = own.mean + np.random.default_rng(0).normal(size=own.mean.shape) * 2 * own.std
    y[1, 0] = np.nan
    needed = needed_factors(own, y)
    assert np.isnan(needed[1, 0])
    for factor in (0.7, 1.0, 1.6):
        low, high = (own.mean + factor * (end - own.mean) for end in own.interval(0.9))
        np.testing.assert_array_equal((low <= y) & (y <= high), needed <= factor)


def autoregression(rng, scale, rows, decay=0.95, spacing=3):
    """Factors that h-step errors of y_t = a y_{t−1} + e_t need, e of standard deviation `scale`, taken to be 1."""
    noise, origins = scale * rng.normal(size=2 * rows), np.arange(0, rows - 1, spacing)
    spread = np.sqrt(np.cumsum(decay ** (2.0 * np.arange(rows))))
    error, needed = np.zeros(len(origins)), np.full((len(origins), rows), np.nan)
    for step in range(rows):
        error = decay * error + noise[origins + step]
        inside = origins + step < rows
        needed[inside, step] = np.abs(error[inside]) / (REACH * spread[step])
    return needed[..., None], spacing


@pytest.mark.parametrize(
    ("scale", "low", "high"), [(1.0, 0.9, 0.93), (1.5, 0.85, 0.92), (0.5, 0.9, 1.0)]
)
def test_intervals_cover_after_what_was_measured_on_few_rows(scale, low, high):
    rng, covered = np.random.default_rng(0), []
    for _ in range(60):
        found = estimate([autoregression(rng, scale, 100) for _ in range(2)], "")
        factors = found.at(np.arange(1, 201))[:, 0]
        assert factors.min() >= 1
        # Far beyond what was measured the last factor holds.
        assert factors[-1] == found.factors[-1, 0]
        covered.append(2 * norm.cdf(REACH * factors[[0, 9, 29, 199]] / scale) - 1)
    mean = np.mean(covered, axis=0)
    if scale < 1:
        # Too wide already: nothing is made wider, or narrower.
        np.testing.assert_allclose(mean, 2 * norm.cdf(REACH / scale) - 1, atol=1e-3)
    else:
        assert np.all((low < mean) & (mean < high)), mean


def test_few_forecasts_hardly_move_anything():
    needed = np.full((2, 20, 1), 3.0)
    found = estimate([(needed, 10)], "")
    assert 1.5 < found.factors[0, 0] < 3 ** (2 / (2 + TRUST)) + 1e-9
    np.testing.assert_allclose(found.effective, 2 * np.minimum(1, 15 / np.arange(1, 16)))


def test_an_output_that_was_never_seen_stays_as_it_is():
    needed = np.full((20, 30, 2), 2.0)
    needed[..., 1] = np.nan
    found = estimate([(needed, 10)], "")
    assert found.factors[:, 0].min() > 1.5
    np.testing.assert_array_equal(found.factors[:, 1], 1)
    with pytest.raises(ValueError, match="too few outputs"):
        estimate([(np.full((5, 5, 1), np.nan), 2)], "")


def test_quantiles_with_whole_weights_are_those_of_repeated_values():
    rng = np.random.default_rng(1)
    values, weights = rng.normal(size=50), rng.integers(1, 6, size=50)
    repeated = np.quantile(np.repeat(values, weights * 20), 0.9, method="hazen")
    gaps = np.diff(np.sort(values))
    assert abs(weighted_quantile(values, weights.astype(float), 0.9) - repeated) < gaps.max()
    assert weighted_quantile(values, np.ones(50), 0.9) == pytest.approx(
        np.quantile(values, 0.9, method="hazen")
    )


@pytest.mark.parametrize(
    ("horizon", "expected"), [(1, [1]), (2, [1, 2]), (5, [1, 2, 5]), (19, [1, 2, 4, 8, 19])]
)
def test_octaves_end_at_the_horizon(horizon, expected):
    assert list(octaves_to(horizon)) == expected


def slow_system(process_std):
    """A posterior that knows a slow linear system, but for its process noise, and 320 rows that follow."""
    model, rng, rows = make_model("linear", output_dim=1), np.random.default_rng(2), 360
    transition, control, offset = np.diag([0.98, 0.9]), np.array([[0.1], [0.3]]), np.zeros(2)
    C, d = np.asarray(model.likelihood.C), np.asarray(model.likelihood.d)
    x, y, u = np.zeros((rows + 1, 2)), np.zeros((rows, 1)), rng.normal(size=(rows, 1))
    for t in range(rows):
        x[t + 1] = transition @ x[t] + control @ u[t] + 0.2 * rng.normal(size=2)
        y[t] = C @ x[t + 1] + d + 0.5 * rng.normal(size=1)
    leaves = {
        "log_process_std": np.log(np.full((1, 1, 2), process_std)),
        "likelihood.log_std": np.log([[[0.5]]]),
    }
    posterior = make_posterior(
        model,
        [Series(y[:40], u[:40])],
        weights=linear_weights(model, transition, control, offset)[None, None],
        leaves=leaves,
        scaler=Scaler((0.0,), (1.0,), (0.0,), (1.0,)),
        states=[x[None, None, :41]],
        chains=1,
        draws=1,
    )
    return posterior, Series(y[40:200], u[40:200]), Series(y[200:360], u[200:360])


@pytest.mark.slow
def test_a_model_with_too_little_noise_is_widened_and_a_right_one_is_not():
    wrong, seen, later = slow_system(0.05)
    found = wrong.calibrate(seen).calibration
    assert found.rows == "160 new rows"
    # Rows that neither the model nor its calibration have seen.
    fold = Fold([], {-1: later}, before=False)
    needed = np.concatenate(
        [
            np.pad(factors[0, :30, 0], (0, max(30 - factors.shape[1], 0)), constant_values=np.nan)
            for factors, _ in measure(wrong.condition(seen), fold, 0)
        ]
    ).reshape(-1, 30)
    factors = found.at(np.arange(1, 31))[:, 0]
    before, after = (
        np.nanmean(np.where(np.isnan(needed), np.nan, needed <= limit)) for limit in (1.0, factors)
    )
    assert before < 0.83
    assert 0.86 < after < 0.95
    right, *_ = slow_system(0.2)
    assert right.calibrate(seen).calibration.factors.max() < 1.2


@pytest.fixture(scope="module")
def fitted():
    series = gpssm.datasets.simulate("linear_gaussian", num_steps=90, seed=1).series
    settings = {"method": "arx", "num_chains": 1, "num_draws": 20, "progress": False, "seed": 3}
    return gpssm.fit(series, calibrate=True, **settings), gpssm.fit(series, **settings)


def test_fit_calibrates_as_the_verb_does_and_twice_the_same(fitted):
    at_once, later = fitted[0].calibration, fitted[1].calibrate().calibration
    np.testing.assert_array_equal(at_once.factors, later.factors)
    assert at_once.rows == "44 held-out training rows"
    assert at_once.origins == 11 + 7
    assert fitted[1].calibration is None


def test_folds_that_were_fitted_are_not_fitted_again(fitted, monkeypatch):
    posterior = fitted[1]
    pairs = held_out.fit_folds(posterior, posterior.seed)
    monkeypatch.setattr(held_out, "fit", None)
    found = posterior.calibrate(without=pairs).calibration
    np.testing.assert_array_equal(found.factors, fitted[0].calibration.factors)


def test_the_summary_shows_the_factors(fitted):
    summary = fitted[0].summary()
    page, table = str(summary), summary.to_dict()["calibration"]
    assert "Calibration of intervals (measured on 44 held-out training rows" in page
    assert [row["step"] for row in table] == sorted({row["step"] for row in table})
    assert f"{table[0]['factors'][0]:.2f}" in page
    assert "Calibration of intervals" not in str(fitted[1].summary())


def test_fit_says_when_held_out_rows_are_not_covered_and_the_summary_leads_with_it(fitted):
    rng = np.random.default_rng(0)
    u = rng.normal(size=200)
    y = np.zeros(201)
    for t in range(200):
        y[t + 1] = 0.5 * y[t] + (1 if t < 150 else 4) * u[t]
    series = Series(y[1:] + 0.05 * rng.normal(size=200), u)
    settings = {"method": "arx", "num_draws": 20, "progress": False}
    with pytest.warns(UserWarning, match="too narrow on held-out rows") as caught:
        widened = gpssm.fit(series, calibrate=True, **settings)
    (message,) = (str(warning.message) for warning in caught)
    horizon = widened.calibration.horizon
    covered = widened.calibration.coverage.mean()
    assert covered < 0.75
    assert message.startswith(
        f"Uncalibrated 90 % intervals of y: {percent(covered)} inside over {horizon} steps, "
        f"widened up to {widened.calibration.factors.max():.2g} times."
    )
    summary = widened.summary()
    assert message in summary.doubts
    head, rows, _, _, measured = str(summary).splitlines()[:5]
    assert head == "Coverage of 90 % intervals"
    assert rows.endswith(f"of 100 held-out training rows over 1 to {horizon} steps,")
    assert measured.split()[:3] == ["y", *percent(covered).split()]
    assert str(fitted[1].summary()).startswith("Coverage of 90 % intervals\n  Not measured")
    assert "Uncalibrated" not in " ".join(fitted[0].summary().doubts)  # enough are covered


@pytest.mark.parametrize(
    ("covered", "effective", "level"),
    [(0.9, 30.0, "good"), (0.7, 30.0, "caution"), (0.7, 4.0, "good"), (np.nan, 4.0, "unknown")],
)
def test_measured_coverage_is_judged_with_room_for_few_forecasts(covered, effective, level):
    measured = Calibration(
        np.ones((3, 1)), np.full((3, 1), covered), np.full(3, effective), 10, "rows"
    )
    (check,) = check_calibration(measured, ["level"])
    assert check.level == level


def test_what_cannot_be_calibrated_says_so(fitted):
    with pytest.raises(ValueError, match="15 rows"):
        measure(fitted[1], Fold([], {-1: fitted[1].dataset.experiments[0][:9]}, False), 0)
    short = make_posterior(raw=[make_series(20)])
    assert make_folds(short.dataset.experiments) == []
    with pytest.raises(ValueError, match=r"posterior\.calibrate\(rows\)"):
        short.calibrate()
    counts = make_model(output_dim=1)
    counts = dataclasses.replace(counts, likelihood=Poisson(jnp.ones((1, 2)), jnp.ones(1)))
    with pytest.raises(TypeError, match="Poisson"):
        make_posterior(counts, [make_series(20, output_dim=1)]).calibrate()
