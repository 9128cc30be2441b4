"""One-step residuals: normal for the true model, and detected correlations."""

import numpy as np
import pytest

import gpssm
from gpssm.evaluation.training import autocorrelation, cross_correlation, find_residuals
from linear_systems import arx_series


def test_correlations_find_what_is_there():
    rng = np.random.default_rng(7)
    white = rng.normal(size=600)
    moving = white.copy()
    moving[1:] += 0.8 * white[:-1]
    assert not autocorrelation(white).found
    found = autocorrelation(moving)
    assert found.p_value < 1e-6
    assert found.correlations[0] == pytest.approx(0.8 / 1.64, abs=0.1)
    u = rng.normal(size=600)
    driven = white + 0.5 * np.concatenate([np.zeros(4), u[:-4]])
    found = cross_correlation(driven, u)
    assert np.argmax(np.abs(found.correlations)) == 20 + 4
    assert found.p_value < 1e-6
    driven[::7] = np.nan
    assert np.argmax(np.abs(cross_correlation(driven, u).correlations)) == 20 + 4


def test_whiteness_is_seldom_denied_to_white_residuals_even_under_smooth_controls():
    rng = np.random.default_rng(8)
    u = np.sin(np.arange(300) / 9) + np.sin(np.arange(300) / 5)
    residuals = rng.normal(size=(300, 300))
    residuals[:, 40:60] = np.nan
    for test in (autocorrelation, lambda values: cross_correlation(values, u)):
        rejected = np.mean([test(values).p_value < 0.1 for values in residuals])
        assert 0.05 < rejected < 0.17


def test_residuals_of_a_right_model_are_standard_normal():
    posterior = gpssm.fit(arx_series(300), method="arx", num_chains=1, num_draws=20, progress=False)
    found = find_residuals(posterior, num_paths=80)
    assert np.nanstd(found.values) == pytest.approx(1, abs=0.15)
    assert abs(np.nanmean(found.values)) < 0.25
    assert found.own[0].p_value > 1e-3
    assert found.inputs[0]["u"].p_value > 1e-3
    own, control = found.table()
    assert (own["output"], own["with"], own["p"]) == ("y", "its past", found.own[0].p_value)
    assert abs(own["correlation"]) == np.abs(found.own[0].correlations).max()
    assert found.own[0].correlations[own["lag"] - 1] == own["correlation"]
    assert found.inputs[0]["u"].correlations[control["lag"] + 20] == control["correlation"]
