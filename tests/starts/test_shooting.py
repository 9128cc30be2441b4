"""The objective of shooting against loops, and its results for known systems."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from builders import BASIS_NAMES, make_model, make_series
from gpssm.data.series import Series
from gpssm.fitting.fit import build_model
from gpssm.linear.fit import linear_fit
from gpssm.methods.spec import Spec
from gpssm.starts import shooting
from gpssm.starts.build import Start
from gpssm.starts.shooting import BOX, DEFECT, Point, cut, loss, shoot, window_lengths


def make_point(model, series, length, seed=0, scale=0.5):
    rng = np.random.default_rng(seed)
    blocks = cut(series, length)
    leaves = {name: leaf for name, leaf in model.free_leaves().items() if name != "log_process_std"}
    weights = scale * rng.normal(size=(model.state_dim, model.basis.size))
    starts = rng.normal(size=(*blocks.u.shape[:2], model.state_dim))
    return Point(jnp.asarray(weights), leaves, jnp.asarray(starts)), blocks


def loop(model, point, series, length, starts_of):
    """J / N, one row after the other; `starts_of(index, t)` is the start of the window at row t of a series."""
    step, total, rows = model.transition(), 0.5 * np.sum(np.asarray(point.weights) ** 2), 0
    for index, one in enumerate(series):
        x = None
        for t in range(len(one)):
            if t % length == 0:
                start = starts_of(index, t)
                total += (
                    0.5 * np.sum(start**2)
                    if x is None
                    else 0.5 * np.sum((start - x) ** 2) / DEFECT**2
                )
                x = start
            x = np.clip(
                np.asarray(step(x[None], one.u[t : t + 1]).given(point.weights))[0], -BOX, BOX
            )
            error = one.y[t] - np.asarray(model.likelihood.C) @ x - np.asarray(model.likelihood.d)
            std = np.exp(np.asarray(model.likelihood.log_std))
            total -= np.nansum(-0.5 * (error / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi))
            rows += bool(np.isfinite(one.y[t]).any())
    total -= sum(float(model.priors[name].log_prob(leaf)) for name, leaf in point.leaves.items())
    return total / rows


@pytest.mark.parametrize("basis", BASIS_NAMES)
def test_the_objective_is_that_of_a_loop_over_simulations(basis):
    model = make_model(basis)
    series = [make_series(7, missing=True), make_series(4, seed=1)]
    point, blocks = make_point(model, series, 3)
    expected = loop(model, point, series, 3, lambda index, t: np.asarray(point.starts)[index, t])
    assert float(loss(point, model, blocks)[0]) == pytest.approx(expected, rel=1e-10)


def test_long_series_in_blocks_have_the_same_objective(monkeypatch):
    monkeypatch.setattr(shooting, "WHOLE", 5)
    monkeypatch.setattr(shooting, "LENGTHS", (2, 4))
    model, series = make_model(), [make_series(7), make_series(10, seed=1)]
    assert window_lengths([7, 10]) == [2, 4]
    for length in (2, 4):
        point, blocks = make_point(model, series, length)
        assert blocks.u.shape[:2] == (5, 4)
        starts = np.asarray(point.starts)
        expected = loop(
            model, point, series, length, lambda index, t, s=starts: s[2 * index + t // 4, t % 4]
        )
        assert float(loss(point, model, blocks)[0]) == pytest.approx(expected, rel=1e-10)


def test_slopes_are_finite_where_outputs_are_missing_and_where_paths_run_away():
    model, series = make_model(), [make_series(7, missing=True)]
    point, blocks = make_point(model, series, 4, scale=1e3)
    (_, (*_, following)), slope = jax.value_and_grad(loss, has_aux=True)(point, model, blocks)
    assert np.abs(following).max() == BOX
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slope))


def simulated(length=96, seed=0, controls=1, outputs=1, noise=0.02, bend=0.5):
    """A driven, damped oscillator whose restoring force bends; without controls it is kept going by a limit cycle."""
    rng = np.random.default_rng(seed)
    u = np.repeat(rng.normal(size=(length // 8 + 1, controls)), 8, axis=0)[:length]
    x, y = rng.normal(size=2), []
    for t in range(length):
        push = 0.3 * u[t].sum() if controls else 0.1 * x[1] * (1.5 - x[0] ** 2)
        x = np.array(
            [
                x[0] + 0.3 * x[1],
                x[1] - 0.3 * np.tanh(bend * x[0]) / bend - (0.12 if controls else 0) * x[1] + push,
            ]
        )
        y.append(x[:outputs])
    return Series(np.array(y) + noise * rng.normal(size=(length, outputs)), u)


def scaled(series):
    return Series((series.y - np.nanmean(series.y, 0)) / np.nanstd(series.y, 0), series.u)


def simulation_error(model, weights, states, series, emission=lambda eta: eta):
    """RMSE of one simulation through a whole series, from its first state."""
    step, x, errors = model.transition(), states[0], []
    for t in range(len(series)):
        x = np.clip(np.asarray(step(x[None], series.u[t : t + 1]).given(weights))[0], -BOX, BOX)
        predicted = emission(np.asarray(model.likelihood.C) @ x + np.asarray(model.likelihood.d))
        errors.append(series.y[t] - predicted)
    return np.sqrt(np.nanmean(np.square(errors)))


def missing_rows(series):
    y = series.y.copy()
    y[10:14] = np.nan
    return Series(y, series.u)


CASES = {
    "linear": lambda: [simulated(bend=1e-3)],
    "nonlinear": lambda: [simulated()],
    "missing rows": lambda: [missing_rows(simulated())],
    "two series": lambda: [simulated(60), simulated(36, seed=1)],
    "no controls": lambda: [simulated(controls=0)],
    "two outputs": lambda: [simulated(outputs=2)],
}


@pytest.mark.parametrize("case", CASES)
def test_simulations_get_better(case):
    series = [scaled(one) for one in CASES[case]()]
    start = linear_fit(series, Spec(state_dim=2))
    model = build_model(series, 2, 10, linear=start)
    found = shoot(Start(model, start.states), series, num_steps=200)
    assert [len(path) for path in found.start.states] == [len(one) + 1 for one in series]
    zero = np.zeros((2, model.basis.size))
    for before, after, one in zip(start.states, found.start.states, series, strict=True):
        first = simulation_error(model, zero, before, one)
        assert simulation_error(found.start.model, found.weights, after, one) < max(
            0.5 * first, 0.1
        )
    assert found.clipped == 0.0


def test_an_emission_that_loses_the_sign():
    driven = simulated()
    series = Series(np.abs(driven.y) / driven.y.std(), driven.u)
    start = linear_fit(series, Spec(state_dim=2, likelihood="abs"))
    model = build_model(series, 2, 10, likelihood="abs", linear=start)
    found = shoot(Start(model, start.states), series, num_steps=200)
    first = simulation_error(
        model, np.zeros((2, model.basis.size)), start.states[0], series, np.abs
    )
    assert (
        simulation_error(found.start.model, found.weights, found.start.states[0], series, np.abs)
        < first
    )


def test_fixed_leaves_stay_and_the_result_is_the_same_twice():
    series = scaled(simulated(48))
    start = linear_fit(series, Spec(state_dim=2))
    model = build_model(series, 2, 10, linear=start).with_roles("fix", "likelihood.*")
    one, two = (shoot(Start(model, start.states), series, num_steps=20) for _ in range(2))
    np.testing.assert_array_equal(one.start.states[0], two.start.states[0])
    np.testing.assert_array_equal(one.weights, two.weights)
    np.testing.assert_array_equal(one.start.model.likelihood.C, model.likelihood.C)
    assert not np.array_equal(one.start.model.kernel.log_lengthscale, model.kernel.log_lengthscale)
