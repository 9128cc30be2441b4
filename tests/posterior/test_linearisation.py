"""The model around an operating point: a linear one against scipy.signal, a nonlinear one against
its equilibrium.
"""

import numpy as np
import pytest
import scipy.signal

from builders import linear_given, make_model, make_series
from gpssm.data.scaler import Scaler
from gpssm.data.series import Series
from gpssm.posterior.dynamics import relevance, static_gain
from posteriors import make_posterior

SCALER = Scaler((2.0, -1.0), (3.0, 0.5), (1.0,), (0.25,))
STEPS = 12


@pytest.fixture(scope="module")
def linear():
    """Six draws of linear models in other units than the data's, with the exact systems in the user's."""
    rng = np.random.default_rng(0)
    raw = [
        Series(*(10 * part for part in (rng.normal(size=(9, 2)), rng.normal(size=(9, 1)))), dt=0.5)
    ]
    model = make_model("linear")
    posterior = make_posterior(
        model, raw, scaler=SCALER, leaves={}, weights=0.3 * rng.normal(size=(2, 3, 2, 4))
    )
    systems = []
    for weights in np.asarray(posterior.draws.weights).reshape(6, 2, 4):
        A, B, _, C, *_ = map(np.asarray, linear_given(model, weights))
        B, C = B / 0.25, np.diag(SCALER.output_std) @ C
        systems.append(scipy.signal.dlti(A, B, C @ A, C @ B, dt=0.5))
    return posterior, systems


def test_a_linear_model_has_the_poles_and_responses_of_its_matrices(linear):
    posterior, systems = linear
    found = posterior.linearise(row=3)
    assert (found.dt, found.missing, found.A.shape) == (0.5, 0, (6, 2, 2))
    step, impulse, bode = (
        found.step_response(STEPS),
        found.impulse_response(STEPS),
        found.bode([0.01, 0.3, 0.9]),
    )
    np.testing.assert_allclose(step.times, 0.5 * np.arange(STEPS))
    for s, system in enumerate(systems):
        np.testing.assert_allclose(
            np.sort(np.abs(found.poles[s])), np.sort(np.abs(np.linalg.eigvals(system.A)))
        )
        np.testing.assert_allclose(step.values[s, :, :, 0], system.step(n=STEPS)[1][0], rtol=1e-9)
        np.testing.assert_allclose(
            impulse.values[s, :, :, 0], system.impulse(n=STEPS)[1][0], rtol=1e-9, atol=1e-9
        )
        for j in range(2):
            one = scipy.signal.dlti(
                system.A, system.B, system.C[j : j + 1], system.D[j : j + 1], dt=0.5
            )
            _, magnitude, phase = one.bode(w=2 * np.pi * 0.5 * bode.frequencies)
            np.testing.assert_allclose(bode.magnitude[s, :, j, 0], magnitude, rtol=1e-7)
            turns = (bode.phase[s, :, j, 0] - phase) / 360
            np.testing.assert_allclose(turns, np.round(turns), atol=1e-7)
    assert np.all(np.diff(np.abs(found.poles), axis=1) <= 1e-12)
    low, high = step.interval(0.5)
    np.testing.assert_allclose(low, np.quantile(step.values, 0.25, axis=0))
    np.testing.assert_allclose(high, np.quantile(step.values, 0.75, axis=0))


def test_where_a_linear_model_settles_and_how_far_a_unit_takes_it(linear):
    posterior, systems = linear
    found, other = posterior.linearise(at=1.1), posterior.linearise(at={"u": 1.2})
    curve = static_gain(posterior, values=[1.1, 1.2])
    for s, system in enumerate(systems):
        gain = system.C @ np.linalg.solve(np.eye(2) - system.A, system.B) + system.D
        np.testing.assert_allclose(found.gain[s], gain, rtol=1e-8)
        np.testing.assert_allclose((other.y - found.y)[s], 0.1 * gain[:, 0], rtol=1e-6)
        np.testing.assert_allclose(curve.gain[s, 0], gain[:, 0], rtol=1e-8)
    np.testing.assert_allclose(curve.settled[:, 0], found.y)
    np.testing.assert_allclose(curve.settled[:, 1], other.y)
    assert curve.stable.all()
    np.testing.assert_allclose(curve.share, 1)
    weights = np.asarray(posterior.draws.weights).reshape(6, 2, 4)
    for y, one in zip(found.y, weights, strict=True):
        A, B, b, C, d, *_ = map(np.asarray, linear_given(posterior.model, one))
        x = np.linalg.solve(np.eye(2) - A, B @ [(1.1 - 1.0) / 0.25] + b)
        np.testing.assert_allclose(
            y, SCALER.output_std * (C @ x + d) + SCALER.output_mean, rtol=1e-6
        )


def test_results_show_themselves_in_a_line(linear):
    posterior, _ = linear
    linearised = posterior.linearise()
    shown = [
        linearised,
        linearised.step_response(STEPS),
        linearised.bode(),
        static_gain(posterior, values=[1.1, 1.2]),
    ]
    for thing in map(repr, shown):
        assert thing.startswith(
            ("Linearisation(", "Response(step response", "Bode(", "StaticGain(")
        )
        assert "draw" in thing
        assert len(thing) < 120
        assert "array" not in thing


def test_of_a_nonlinear_model_too_the_operating_point_is_at_rest():
    posterior = make_posterior()
    found = posterior.linearise(at=[0.2])
    assert len(found.A) + found.missing == 6
    settled = posterior.transition(found.x[:1], [[0.2]]).draws.reshape(6, 2)
    assert np.min(np.abs(settled - found.x[0]).max(1)) < 1e-6


def test_its_slopes_agree_with_differences_in_the_users_units():
    posterior = make_posterior()
    x, u, size = np.array([0.3, -0.2]), np.array([0.2]), 1e-5
    at = posterior.linearise(at=(x, u))

    def values(x, u):
        return posterior.transition(x, u).draws.reshape(6, 2)

    state = [(values(x + size * e, u) - values(x - size * e, u)) / (2 * size) for e in np.eye(2)]
    inputs = (values(x, u + size) - values(x, u - size)) / (2 * size)
    np.testing.assert_allclose(at.A, np.stack(state, -1), atol=1e-7)
    np.testing.assert_allclose(at.B[..., 0], inputs, atol=1e-7)
    output = np.diag(posterior.dataset.scaler.output_std) @ np.asarray(posterior.model.likelihood.C)
    np.testing.assert_allclose(at.C, output @ at.A, rtol=1e-9)
    np.testing.assert_allclose(at.D, output @ at.B, rtol=1e-9)


def test_relevance_is_the_mean_slope_along_the_data_in_standard_deviations():
    posterior = make_posterior()
    states = [path.mean((0, 1))[:-1] for path in posterior.draws.states]
    x = np.concatenate(states)
    u = np.concatenate([series.u for series in posterior.dataset.experiments])
    squares = np.zeros((6, 2, 3))
    for state, inputs in zip(x, u, strict=True):
        at = posterior.linearise(at=(state, inputs))
        squares += np.concatenate([at.A, at.B], -1) ** 2 / len(x)
    spread = np.concatenate([x.std(0), u.std(0)])
    expected = np.sqrt(squares) * spread / x.std(0)[:, None]
    result = relevance(posterior)
    np.testing.assert_allclose(result, expected.mean(0), rtol=1e-9)
    assert list(result.columns) == ["x1", "x2", "u"]
    assert list(result.index) == ["x1", "x2"]


def test_a_system_without_inputs_has_poles_but_no_responses():
    model = make_model("linear", input_dim=0)
    weights = 0.3 * np.random.default_rng(0).normal(size=(2, 3, 2, 3))
    posterior = make_posterior(model, [make_series(9, input_dim=0)], weights=weights, leaves={})
    found = posterior.linearise()
    for pole, draw in zip(found.poles, weights.reshape(6, 2, 3), strict=True):
        A = model.mean.transition + (np.exp(model.basis.log_scale) * draw)[:, :2]
        np.testing.assert_allclose(np.sort(np.abs(pole)), np.sort(np.abs(np.linalg.eigvals(A))))
    assert relevance(posterior).shape == (2, 2)
    with pytest.raises(ValueError, match="no inputs and therefore no responses"):
        found.step_response()


def test_a_system_without_rest_says_so():
    model, series = make_model("linear"), make_series(9)
    walk = np.zeros((2, 3, 2, 4))
    wanted = np.hstack([np.eye(2), np.zeros((2, 1)), np.ones((2, 1))])
    centre = np.hstack(
        [model.mean.transition, model.mean.input_map, np.asarray(model.mean.offset)[:, None]]
    )
    walk[:] = (wanted - centre) / np.exp(model.basis.log_scale)
    posterior = make_posterior(model, [series], weights=walk, leaves={})
    with pytest.raises(ValueError, match=r"no draw has an equilibrium .* row=\.\.\."):
        posterior.linearise()
    assert np.isnan(static_gain(posterior, values=[0.0]).median).all()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"at": {"pump": 1.0}}, "an input of at must be one of u; got 'pump'"),
        ({"at": 1.0, "row": 2}, "pass only one of them"),
        ({"row": 99}, "has 5 rows, counted from 0; got row 99"),
        ({"at": ([1.0], [0.0])}, "needs a state of 2 numbers"),
        ({"at": [1.0, 2.0]}, "u must have 1 columns: u; got 2"),
    ],
)
def test_bad_operating_points_are_refused(asked, message):
    with pytest.raises((ValueError, IndexError), match=message):
        make_posterior().linearise(**asked)
