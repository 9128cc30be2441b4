"""Excerpts are spread over the records, and fits that use them are equally good."""

import jax
import numpy as np
import pytest

import gpssm
from gpssm.linear import descent
from gpssm.linear.descent import fit_output_error, stages
from gpssm.linear.fit import fit_linear
from gpssm.linear.state_space import RADIUS, log_marginal, spectral_radius


def numbered(*lengths):
    return [
        gpssm.Series(np.arange(float(length)) + 1e6 * record, np.zeros((length, 1)))
        for record, length in enumerate(lengths)
    ]


def test_short_series_are_searched_through_as_they_are():
    series = numbered(3000, 1096)
    ((records, steps, _),) = stages(series, 50)
    assert [len(one) for one in records] == [3000, 1096]
    assert steps == 50


def test_excerpts_are_spread_and_cost_as_much_as_all_rows():
    series = numbered(20_000, 500, 10_000)
    (excerpts, _, first), (records, steps, _) = stages(series, 300)
    rows = np.concatenate([one.y[:, 0] for one in excerpts])
    assert [len(one) for one in excerpts] == [1024, 1024, 67, 1024]
    assert len(np.unique(rows)) == len(rows)
    assert [excerpts[index].y[0, 0] for index in first] == [0.0, 1e6, 2e6]
    assert {0.0, 19_999.0, 2e6} <= set(rows)
    assert steps == 300 * descent.ROWS // 30_500
    assert [len(one) for one in records] == [20_000, 500, 10_000]


def simulated(rows, radius):
    """A slow mode and an oscillation, driven, with little noise."""
    rng = np.random.default_rng(0)
    turn = 0.95 * np.array([[np.cos(0.3), -np.sin(0.3)], [np.sin(0.3), np.cos(0.3)]])
    A = np.block([[np.array([[radius]]), np.zeros((1, 2))], [np.zeros((2, 1)), turn]])
    u, x, y = rng.normal(size=(rows, 1)), np.zeros(3), []
    for push in u:
        x = A @ x + np.array([0.1, 1.0, 0.5]) * push + 0.01 * rng.normal(size=3)
        y.append(x.sum() + 0.05 * rng.normal())
    return [gpssm.Series(np.asarray(y)[:, None], u)]


@pytest.mark.slow
def test_fits_by_way_of_excerpts_are_as_good(monkeypatch):
    """Of the simulation, and of the likelihood among stable models."""
    series, unstable = simulated(600, 0.98), simulated(600, 1.0015)
    errors, likelihoods = [], []
    for name, value in (("NUM_STARTS", 4), ("NUM_STEPS", 100), ("NUM_BEST", 1)):
        monkeypatch.setattr(descent, name, value)
    for rows, stretch in ((600, 600), (256, 128)):
        monkeypatch.setattr(descent, "ROWS", rows)
        monkeypatch.setattr(descent, "STRETCH", stretch)
        found = fit_output_error(series, 3, lambda predictor: predictor, jax.random.key(0))
        errors.append(float(found.model.noise_std[0]))
        linear = fit_linear(unstable, 3)
        assert spectral_radius(linear) <= RADIUS
        likelihoods.append(float(log_marginal(linear, unstable)))
    assert errors[1] < 1.05 * errors[0]
    assert likelihoods[1] > likelihoods[0] - 0.02 * abs(likelihoods[0])
