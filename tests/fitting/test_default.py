"""What users get from `gpssm.fit(series)`: the default start, with no part of the comparison replaced."""

from collections import Counter

import numpy as np
import pytest

import gpssm
from gpssm.methods.ffvd import FFVD

# A small budget for the chains; the comparison of starts has its own, which is not touched.
BUDGET = {
    "method": FFVD(num_warmup=24, num_draws=4, thin=1, num_leapfrog=2, rank=2),
    "state_dim": 2,
    "num_inducing": 6,
    "progress": False,
}

# Chains of so few draws may be stuck, or worse than their start: their quality is not tested here.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def make_series(rows=72):
    """A linear system with two states, driven by steps."""
    rng = np.random.default_rng(0)
    inputs = np.repeat(rng.normal(size=-(-rows // 8)), 8)[:rows, None]
    state = np.zeros(2)
    outputs = []
    for value in inputs[:, 0]:
        state = np.array([[0.9, 0.2], [-0.2, 0.9]]) @ state + np.array([0.1, 0.4]) * value
        outputs.append(state[0])
    return gpssm.Series(np.array(outputs)[:, None] + 0.05 * rng.normal(size=(rows, 1)), inputs)


@pytest.fixture(scope="module")
def driven():
    """The default fit of a series with inputs."""
    return gpssm.fit(make_series(), num_chains=4, **BUDGET)


def starts_of_chains(posterior):
    """The number of chains from each start of the comparison."""
    chains = Counter()
    for row in posterior.comparison:
        chains[row["start"]] += row.get("chains", 0)
    return chains


def test_a_fit_with_inputs_compares_its_starts_and_forecasts(driven):
    chains = starts_of_chains(driven)
    assert set(chains) == {"em", "output-error+shooting"}
    assert sum(chains.values()) == driven.num_chains == 4
    forecast = driven.forecast(u=np.zeros((10, 1)), num_paths=20)
    assert np.isfinite(forecast.paths).all()


def test_a_fit_without_inputs_compares_its_starts_and_forecasts():
    posterior = gpssm.fit(gpssm.Series(make_series().y), num_chains=2, **BUDGET)
    chains = starts_of_chains(posterior)
    assert set(chains) == {"em", "em+shooting"}
    assert sum(chains.values()) == posterior.num_chains == 2
    assert np.isfinite(posterior.forecast(10, num_paths=20).paths).all()


def test_the_default_fit_can_be_calibrated(driven):
    """Whatever starts its chains come from; tests/methods/test_spec.py has a fit that has two for certain."""
    assert np.all(driven.calibrate().calibration.factors >= 1)


def test_a_fit_with_a_prior_can_be_calibrated():
    series = make_series(132)
    sister = gpssm.fit(series[:60], start="em", num_chains=1, **BUDGET)
    sizes = {"num_chains": 1, "num_warmup": 12, "num_draws": 4, "progress": False}
    posterior = gpssm.fit(series[60:], prior=sister, **sizes)
    assert np.all(posterior.calibrate().calibration.factors >= 1)
