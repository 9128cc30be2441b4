"""The recursive filter: the Kalman filter for known functions, regression for observed states, and
inducing points.
"""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from gpssm.data.series import Series
from gpssm.fitting.fit import fit
from gpssm.linear import kalman
from gpssm.linear.fit import linear_fit
from gpssm.linear.state_space import LinearSSM
from gpssm.methods import RecursiveGPSSM
from gpssm.methods.rgpssm import (
    Belief,
    Dynamics,
    PointSet,
    as_dynamics,
    as_model,
    draw_states,
    first_dynamics,
    predict,
    run,
    update,
    with_factors,
    without,
)
from gpssm.methods.sparse_regression import covariance, inverse_factor
from gpssm.methods.spec import Spec
from gpssm.starts.build import SLACK

HYPER = np.array([[-1.0, 0.1, 0.2, 0.3], [-0.5, 0.0, 0.3, -0.1]])
# A kernel and linear weights so small that nothing can be learned.
SILENT = np.array([[-40.0, 0.0, 0.0, 0.0], [-40.0, 0.1, 0.2, 0.3]])
LOCATIONS = np.random.default_rng(1).normal(size=(6, 3))


def dynamics_of(hyper=HYPER, slack=0.1, noise=(0.2, 0.3)):
    """Two states, an input, two outputs."""
    rng = np.random.default_rng(0)
    linear = LinearSSM(
        0.5 * np.eye(2) + 0.1 * rng.normal(size=(2, 2)),
        0.3 * rng.normal(size=(2, 1)),
        0.1 * rng.normal(size=2),
        rng.normal(size=(2, 2)),
        0.1 * rng.normal(size=2),
        np.diag([0.05, 0.1]),
        np.array(noise),
    )
    return Dynamics(linear, hyper, slack)


def gapped_series(length=30, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.normal(size=(length, 2))
    y[3, 0] = np.nan
    y[length // 2] = np.nan
    return Series(y, rng.normal(size=(length, 1)))


def bent_series(length=200, seed=0):
    """x' = 0.8 tanh(2 x) + 0.5 u + noise, seen with noise."""
    rng = np.random.default_rng(seed)
    u, x, outputs = rng.normal(size=length), 0.0, []
    for control in u:
        x = 0.8 * np.tanh(2 * x) + 0.5 * control + 0.02 * rng.normal()
        outputs.append(x + 0.05 * rng.normal())
    return Series(np.array(outputs), u)


@functools.cache
def fitted():
    method = RecursiveGPSSM(num_draws=50, num_passes=12)
    return fit(
        bent_series(),
        method=method,
        state_dim=1,
        num_inducing=10,
        num_chains=2,
        progress=False,
    )


def test_without_anything_to_learn_it_is_the_kalman_filter():
    dynamics = dynamics_of(SILENT, 1e-9)
    series = [gapped_series(), gapped_series(12, 1)]
    belief, _, log_density = run(dynamics, series, PointSet.of(dynamics, [], 5 + 1), 0.05)
    models = kalman.stack([dynamics.linear])
    assert log_density == pytest.approx(kalman.log_density(models, series)[0], rel=1e-8)
    filtered = kalman.filter_states(models, series[1])
    np.testing.assert_allclose(belief.mean[:2], filtered.means[0, -1], rtol=1e-6)
    np.testing.assert_allclose(
        belief.covariance[:2, :2], filtered.covariances[0, filtered.group[-1]], rtol=1e-6
    )


def test_where_states_are_seen_it_is_recursive_regression():
    """v_d ~ N(0, I), x'_d = m_d + A_d v_d + N(0, B_d + Q_d): the dense posterior of the weights."""
    dynamics = dynamics_of()
    linear = dynamics.linear._replace(C=np.eye(2), d=np.zeros(2), noise_std=np.full(2, 1e-7))
    dynamics = dynamics._replace(linear=linear)
    points = PointSet.of(dynamics, LOCATIONS, len(LOCATIONS))
    rng = np.random.default_rng(2)
    states, inputs = rng.normal(size=(40, 2)), rng.normal(size=(39, 1))
    size = 2 * (1 + 6 + 4)
    belief = Belief(np.zeros(size), np.eye(size))
    belief.mean[:2] = states[0]
    belief.covariance[:2, :2] = 0.0
    for before, u, following in zip(states[:-1], inputs, states[1:], strict=True):
        z = np.concatenate([before, u])
        belief, _ = update(
            dynamics, predict(dynamics, belief, points.gain(dynamics, z), z), following
        )
    z = np.hstack([states[:-1], inputs])
    gain = points.gain(dynamics, z)
    error = states[1:] - dynamics.mean(z)
    for dimension in range(2):
        place = slice(2 + 10 * dimension, 12 + 10 * dimension)
        noise = gain.residual[:, dimension] + dynamics.process_variance[dimension]
        columns = gain.value[:, dimension] / noise[:, None]
        precision = np.eye(10) + columns.T @ gain.value[:, dimension]
        expected = np.linalg.solve(precision, columns.T @ error[:, dimension])
        np.testing.assert_allclose(belief.mean[place], expected, rtol=1e-5, atol=1e-8)
        np.testing.assert_allclose(
            belief.covariance[place, place], np.linalg.inv(precision), rtol=1e-5, atol=1e-8
        )


def test_points_are_added_in_whitened_coordinates():
    dynamics = dynamics_of()
    points = PointSet.of(dynamics, LOCATIONS[:4], 5)
    gain = points.gain(dynamics, LOCATIONS)
    for dimension, row in enumerate(dynamics.hyper):
        hyper = np.append(row, 0.0)
        inverse = inverse_factor(hyper, LOCATIONS[:4])
        np.testing.assert_allclose(points.inverse[dimension, :4, :4], inverse, rtol=1e-9)
        expected = covariance(hyper, LOCATIONS, LOCATIONS[:4]) @ inverse.T
        np.testing.assert_allclose(gain.value[:, dimension, :4], expected, atol=1e-12)
    assert not gain.value[:, :, 4].any()
    np.testing.assert_allclose(gain.residual[:4], 0.0, atol=1e-5)


def test_gains_are_those_of_the_model_and_slopes_of_the_gains():
    dynamics = dynamics_of()
    points = PointSet.of(dynamics, LOCATIONS[:4], 4)
    z = np.random.default_rng(3).normal(size=(7, 3))
    gain = points.gain(dynamics, z)
    step = as_model(dynamics, points).transition()(jnp.asarray(z[:, :2]), jnp.asarray(z[:, 2:]))
    np.testing.assert_allclose(step.gain, gain.value.swapaxes(0, 1), atol=1e-12)
    np.testing.assert_allclose(step.residual, gain.residual.T, atol=1e-12)
    np.testing.assert_allclose(step.mean, dynamics.mean(z), atol=1e-12)
    for column in range(2):
        moved = points.gain(dynamics, z + 1e-6 * np.eye(3)[column]).value
        np.testing.assert_allclose((moved - gain.value) / 1e-6, gain.slope[..., column], atol=1e-5)


def test_a_point_that_is_removed_leaves_the_law_of_the_others():
    """U = L v of the points that stay; the weight that is free is N(0, 1) and independent."""
    dynamics = dynamics_of()
    points = PointSet.of(dynamics, LOCATIONS[:5], 5)
    rng = np.random.default_rng(4)
    root = rng.normal(size=(20, 20))
    before = Belief(rng.normal(size=20), root @ root.T)
    after, fewer = without(dynamics, before, points)
    index = points.least(before.mean[2:].reshape(2, -1))
    others = [place for place in range(5) if place != index]
    np.testing.assert_array_equal(fewer.locations[:4], LOCATIONS[others])
    changes = []
    for place in range(5):
        rest = [other for other in range(5) if other != place]
        change = 0.0
        for dimension in range(2):
            hyper = np.append(HYPER[dimension], 0.0)
            old = np.linalg.inv(inverse_factor(hyper, LOCATIONS[:5]))
            begin = 2 + 9 * dimension
            values = old @ before.mean[begin : begin + 5]
            # |f − f₋|² in the norm of the kernel, by dense solves.
            kernel = old @ old.T
            whole = values @ np.linalg.solve(kernel, values)
            part = values[rest] @ np.linalg.solve(kernel[np.ix_(rest, rest)], values[rest])
            change += whole - part
            if place == index:
                new = np.linalg.inv(inverse_factor(hyper, LOCATIONS[others]))
                here, there = slice(begin, begin + 5), slice(begin, begin + 4)
                expected = (old @ before.covariance[here, here] @ old.T)[np.ix_(others, others)]
                law = new @ after.covariance[there, there] @ new.T
                np.testing.assert_allclose(law, expected, rtol=1e-8)
                np.testing.assert_allclose(new @ after.mean[there], values[others], rtol=1e-8)
                free = np.zeros(20)
                free[begin + 4] = 1.0
                np.testing.assert_array_equal(after.covariance[begin + 4], free)
        changes.append(change)
    assert index == np.argmin(changes)


def test_points_are_found_where_they_are_new_and_never_more_than_the_budget():
    dynamics = dynamics_of()
    series = [gapped_series(60)]
    wide, few, tight = (
        run(dynamics, series, PointSet.of(dynamics, [], budget + 1), novelty)[1]
        for budget, novelty in ((50, 0.05), (50, 0.5), (3, 0.05))
    )
    assert few.size < wide.size < 50
    assert tight.size == 3
    gain = wide.gain(dynamics, wide.locations[: wide.size])
    assert gain.residual.max() < 1e-4


def test_states_given_weights_are_those_of_the_smoother():
    """With nothing to learn, draws have the law of the linear smoother."""
    dynamics = dynamics_of(SILENT, 1e-9)
    series = gapped_series(15)
    points = PointSet.of(dynamics, LOCATIONS, len(LOCATIONS))
    rng = np.random.default_rng(0)
    paths = draw_states(dynamics, points, np.zeros((4000, 2, 10)), series, rng)
    exact = kalman.draw_states(dynamics.linear, series, 4000, np.random.default_rng(1))
    error = np.sqrt((paths.var(0) + exact.var(0)) / 4000)
    assert np.abs((paths.mean(0) - exact.mean(0)) / error).max() < 4.5
    np.testing.assert_allclose(paths.std(0), exact.std(0), rtol=0.08)


def test_factors():
    dynamics = dynamics_of()
    changed = with_factors(dynamics, np.log([2.0, 3.0, 5.0, 7.0]))
    np.testing.assert_allclose(np.exp(changed.hyper[:, 0]), 4 * np.exp(HYPER[:, 0]))
    np.testing.assert_allclose(np.exp(changed.hyper[:, 1:]), 3 * np.exp(HYPER[:, 1:]))
    np.testing.assert_allclose(changed.process_variance, 25 * dynamics.process_variance)
    np.testing.assert_allclose(changed.linear.noise_std, 7 * dynamics.linear.noise_std)


def test_a_fit_learns_what_is_bent():
    """One-step predictions and forecasts beat those of the linear model; weights have a law."""
    posterior = fitted()
    dynamics, locations = as_dynamics(posterior.model)
    assert 1 < len(locations) <= 10
    assert dynamics.slack == pytest.approx(SLACK)
    silent = dynamics._replace(hyper=dynamics.hyper - np.array([40.0, 0, 0]), slack=1e-9)
    series = posterior.dataset.scaled
    points = PointSet.of(silent, locations, len(locations))
    assert posterior.info.log_target[0, 0] > run(silent, series, points)[2] + 20
    assert (posterior.draws.weights.std((0, 1)) > 0).all()
    assert not posterior.draws.leaves
    test = bent_series(60, 1)
    line = fit(bent_series(), method="arx", num_chains=2, progress=False)
    ours, linear = (
        model.condition(test[:40], new_experiment=True).forecast(u=test.u[40:]).score(test[40:])
        for model in (posterior, line)
    )
    assert ours["crps"] < 0.7 * linear["crps"]


def test_learning_goes_on():
    """Rows that come later are learned from by the filter of `learn`."""
    later = fitted().learn(bent_series(40, 2), new_experiment=True)
    assert later.learned.rows == 40
    before = fitted().draws.weights.var((0, 1)).mean()
    dim = fitted().model.state_dim
    covariance = later.learned.state.covariance[..., dim:, dim:]
    assert covariance.shape[-1] == dim * fitted().model.basis.size
    assert np.mean(np.diagonal(covariance, axis1=-2, axis2=-1)) < 1.5 * before + 0.1


def test_the_first_dynamics_explain_what_the_line_misses():
    linear = linear_fit(list(fitted().dataset.scaled), Spec(state_dim=1))
    dynamics = first_dynamics(linear, 15)
    assert dynamics.process_variance[0] < 0.8 * np.diagonal(linear.model.process_cov)[0]


def test_mistakes_are_explained():
    for settings in (
        {"likelihood": "poisson"},
        {"kernel": "matern52"},
        {"basis": "hilbert"},
        {"mean": "zero"},
        {"coupling": "shared"},
    ):
        (name,) = settings
        with pytest.raises(ValueError, match=f"`rgpssm` supports only {name}="):
            fit(bent_series(40), method="rgpssm", state_dim=1, progress=False, **settings)
    with pytest.raises(ValueError, match="between 0 and 1"):
        RecursiveGPSSM(novelty=1.0)
