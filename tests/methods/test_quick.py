"""The quick posterior: known distributions, and the bias of long steps."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import builders
import gpssm
import sampling
from gpssm.core.linalg import selected_inverse
from gpssm.inference.parameters import ParameterMoves
from gpssm.linear.state_space import smooth
from gpssm.methods import FFVD, METHODS, Quick
from gpssm.methods.linear import as_linear
from gpssm.methods.quick import QuickSampler
from gpssm.model.likelihoods import Poisson
from gpssm.model.priors import InverseGamma
from gpssm.model.types import Info
from gpssm.posterior.checks import check_sampler
from random_walk import small_series

LENGTHS = (6, 3)


def linear_problem():
    """Two series with missing outputs and weights that cannot move: all is linear and Gaussian."""
    model = builders.make_model("linear").with_roles("fix", "*")
    model = model.with_leaves({"basis.log_scale": jnp.full_like(model.basis.log_scale, -20.0)})
    series = [builders.make_series(n, missing=True, seed=i) for i, n in enumerate(LENGTHS)]
    return model, series, tuple(jnp.asarray(builders.make_states(n)) for n in LENGTHS)


def smoothed(model, series):
    """Means and variances of all states, by the Kalman smoother."""
    exact = smooth(as_linear(model), series)
    return np.asarray(exact.mean), np.diagonal(
        selected_inverse(exact.factor).diagonal, axis1=1, axis2=2
    )


@dataclasses.dataclass(frozen=True)
class Steep(Quick):
    """The method on the square of its target, whose coordinates then are wrong by ω² = 2."""

    def build(self, model, states):
        return SteepSampler(self, model, states)


class SteepMoves(ParameterMoves):
    def density(self, states, series):
        plain = super().density(states, series)
        return lambda model: 2 * plain(model)


class SteepSampler(QuickSampler):
    move_type = SteepMoves


def test_linear_dynamics_give_the_kalman_smoother():
    """Where the coordinates are exact there is no bias at any step, here the longest."""
    model, series, states = linear_problem()
    draws, info, _ = sampling.run(
        Quick(num_warmup=60, rank=5), model, series, states, num_draws=1500
    )
    mean, variances = smoothed(model, series)
    gap = np.concatenate(draws.states, 2) - mean
    for values, expected in ((gap, np.zeros_like(variances)), (gap**2, variances)):
        average, error = sampling.average(values.reshape(*values.shape[:2], -1))
        assert np.abs((average - expected.ravel()) / error).max() < 4.5
    assert not np.any(info.divergent)
    assert np.mean(info.acceptance) > 0.99


@pytest.mark.parametrize("energy_error", [1e-3, 1e3])
def test_the_bias_is_that_of_the_step_and_is_reported(energy_error):
    """A curvature of ω² = 2 in all directions, at a step that is adapted and at the longest."""
    model, series, states = linear_problem()
    config = Steep(num_warmup=60, num_draws=40, rank=5, energy_error=energy_error)
    draws, info, carry = sampling.run(config, model, series, states, num_draws=1200)
    mean, variances = smoothed(model, series)
    gap = np.concatenate(draws.states, 2) - mean
    inflation = np.mean(gap**2 / (0.5 * variances)) - 1
    steps = np.minimum(np.exp(carry.step.log_average), QuickSampler.schedule.longest_step)
    angle = np.outer(steps, np.linspace(0.8, 1.2, 41))  # steps are jittered
    a = 0.5 * angle
    expected = np.mean(2 / (1 + 2 * a / np.tan(angle) - a**2)) - 1
    assert inflation == pytest.approx(expected, abs=0.03)
    level = next(check.level for check in check_sampler(info) if check.name == "Bias")
    if energy_error == 1e3:
        assert expected > 0.15
        assert np.mean(info.bias) == pytest.approx(expected, abs=0.06)
        assert level != "good"
    else:
        assert expected < 0.07
        assert level == "good"


@pytest.mark.slow
def test_it_agrees_with_ffvd():
    """A nonlinear model with both noises: means to .1 standard deviations, variances to 10 %."""
    model, series, states = sampling.small_problem((8, 5), 2, num=4)
    priors = {
        "log_process_std": InverseGamma(5.0, 0.5),
        "likelihood.log_std": InverseGamma(5.0, 0.5),
    }
    model = model.with_priors(priors).with_roles("sample", *priors)
    settings = (Quick(num_warmup=300, rank=10), FFVD(num_warmup=300, rank=10))
    quick, exact = (
        sampling.flatten(sampling.run(config, model, series, states, 3000, thin=2, seed=seed)[0])
        for seed, config in enumerate(settings)
    )
    centre, spread = exact.mean((0, 1)), exact.std((0, 1))
    for power in (1, 2):
        mean, error = sampling.average(((quick - centre) / spread) ** power)
        other, other_error = sampling.average(((exact - centre) / spread) ** power)
        excess = np.maximum(np.abs(mean - other) - 0.1, 0) / np.hypot(error, other_error)
        assert excess.max() < 4


@pytest.mark.slow
def test_other_likelihoods_are_sampled():
    model = builders.make_model("hilbert").with_roles("fix", "*")
    emission = Poisson(C=model.likelihood.C, d=model.likelihood.d)
    counts = eqx.tree_at(lambda m: m.likelihood, model, emission)
    parts = (counts.kernel, counts.basis, counts.mean, counts.likelihood)
    counts = counts.create(*parts, jnp.exp(counts.log_process_std)).with_roles("fix", "*")
    noisy = builders.make_series(7)
    series = [gpssm.Series(np.floor(np.abs(noisy.y)), noisy.u)]
    states = (jnp.asarray(builders.make_states(7)),)
    draws, info, _ = sampling.run(Quick(num_warmup=60, rank=5), counts, series, states, 100)
    assert np.isfinite(sampling.flatten(draws)).all()
    assert np.mean(info.acceptance) > 0.5


def test_a_start_far_away_does_not_end_in_nan():
    model, series, states = linear_problem()
    far = tuple(1e3 * path for path in states)
    draws, info, _ = sampling.run(Quick(num_warmup=60, rank=5), model, series, far, 1500)
    assert np.isfinite(sampling.flatten(draws)).all()
    assert np.isfinite(info.log_target).all()
    assert np.abs(np.concatenate(draws.states, 2)).max() < 20


@pytest.mark.filterwarnings("ignore::UserWarning")  # so short a run has something to warn of
def test_a_seed_gives_the_same_draws_and_the_numbers_are_obeyed():
    def fitted(seed):
        settings = dataclasses.replace(METHODS["quick"], rank=3, num_leapfrog=2)
        sizes = {
            "state_dim": 1,
            "num_inducing": 4,
            "num_chains": 2,
            "num_warmup": 6,
            "num_draws": 4,
        }
        return gpssm.fit(small_series(), method=settings, seed=seed, progress=False, **sizes)

    first, again, other = fitted(1), fitted(1), fitted(2)
    assert first.draws.weights.shape[:2] == (2, 4)
    assert first.warmup.log_target.shape == (2, 6)
    assert first.info.bias.shape == (2, 4)
    for one, same in zip(jax.tree.leaves(first.draws), jax.tree.leaves(again.draws), strict=True):
        np.testing.assert_array_equal(one, same)
    assert not np.array_equal(first.draws.weights, other.draws.weights)


@pytest.mark.parametrize(
    ("bias", "acceptance", "level"),
    [(0.01, 0.9, "good"), (-0.1, 0.9, "caution"), (0.4, 0.9, "problem"), (0.0, 0.05, "problem")],
)
def test_the_check_follows_the_bias(bias, acceptance, level):
    ones = np.ones((4, 50))
    info = Info(-ones, acceptance * ones, ones < 0, 10 * ones, ones, bias * ones)
    assert next(check.level for check in check_sampler(info) if check.name == "Bias") == level
