"""Static nonlinearities: h at the output (Wiener) and g at the control (Hammerstein)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpssm
from gpssm.data.series import Series
from gpssm.fitting.fit import build_model
from gpssm.linear.fit import linear_fit
from gpssm.methods.spec import Spec
from gpssm.model.likelihoods import AMPLITUDE, KNOTS, LENGTH, REACH, make_likelihood

RNG = np.random.default_rng(0)
C, D, STD = jnp.array([[1.0, 0.5], [-0.3, 0.8]]), jnp.array([0.1, -0.2]), jnp.array([0.2, 0.3])
ETA = np.linspace(-5.0, 5.0, 41)


def test_a_wiener_output_is_a_draw_of_its_gaussian_process():
    """h(η) − η has mean 0 and covariance a² k(η, Z) k(Z, Z)⁻¹ k(Z, η): against the dense matrix, over all weights."""
    likelihood = make_likelihood("wiener", C, D, STD)
    slope = jax.jacobian(
        lambda weights: likelihood.curve(jnp.asarray(ETA[:, None] * [1, 1]), weights)
    )
    found = np.asarray(slope(likelihood.weights))  # (N, Dy, Dy, K): linear in the weights
    knots = np.linspace(-REACH, REACH, KNOTS)

    def covariance(left, right):
        return np.exp(-0.5 * ((left[:, None] - right[None]) / LENGTH) ** 2)

    gram = covariance(knots, knots) + 1e-6 * np.eye(KNOTS)
    expected = AMPLITUDE**2 * covariance(ETA, knots) @ np.linalg.solve(gram, covariance(knots, ETA))
    np.testing.assert_allclose(found[:, 0, 0] @ found[:, 0, 0].T, expected, atol=1e-7)
    assert np.all(found[:, 0, 1] == 0)  # an output has a function of its own


def test_a_monotone_output_rises_with_the_slopes_of_its_weights():
    likelihood = make_likelihood("wiener-monotone", C, D, STD)
    weights = jnp.asarray(RNG.normal(size=likelihood.weights.shape))

    def slope(eta):
        return jax.jacobian(
            lambda one: likelihood.curve(one[None, None] * jnp.ones((1, 2)), weights)[0]
        )(eta)

    slopes = np.asarray(jax.vmap(slope)(jnp.asarray(ETA)))
    assert np.all(slopes > 0)
    knots = np.linspace(-REACH, REACH, KNOTS)
    middles = np.asarray(jax.vmap(slope)(jnp.asarray(0.5 * (knots[1:] + knots[:-1]))))
    # Smoothed over a third of the distance of knots: near the slope of the middle, exactly so far out.
    np.testing.assert_allclose(middles, np.exp(weights).T, atol=0.45 * np.exp(weights).max())
    np.testing.assert_allclose(slopes[0], np.exp(weights[:, 0]), rtol=1e-3)
    np.testing.assert_allclose(slopes[-1], np.exp(weights[:, -1]), rtol=1e-3)


def driven(length, seed, static_input=lambda u: u, static_output=lambda y: y):
    rng = np.random.default_rng(seed)
    u, x, y = np.repeat(rng.normal(size=length // 4 + 1), 4)[:length], np.zeros(2), []
    for control in u:
        x = np.array([0.7 * x[0] + 0.3 * x[1], 0.8 * x[1] + 0.5 * static_input(control)])
        y.append(static_output(x[0]) + 0.02 * rng.normal())
    return Series(np.array(y), u)


def test_a_hammerstein_model_is_linear_but_for_its_controls():
    series = driven(60, 0)
    start = linear_fit(series, Spec(state_dim=2))
    model = build_model(series, 2, 7, coupling="hammerstein", linear=start)
    weights = jnp.asarray(RNG.normal(size=model.weights_shape))

    def step(x, u):
        return model.transition()(x[None], u[None]).given(weights)[0]

    x, u = jnp.asarray(RNG.normal(size=2)), jnp.asarray(RNG.normal(size=1))
    ((second, mixed), (_, curved)) = jax.jit(jax.jacfwd(jax.jacfwd(step, (0, 1)), (0, 1)))(x, u)
    np.testing.assert_allclose(second, 0, atol=1e-12)
    np.testing.assert_allclose(mixed, 0, atol=1e-12)
    assert np.all(np.abs(curved) > 1e-6)
    # One function of the control, pushed into all states: the curvatures of two controls are in proportion.
    other = jax.jit(jax.jacfwd(jax.jacfwd(step, (0, 1)), (0, 1)))(x, u + 0.5)[1][1]
    np.testing.assert_allclose(curved[0] * other[1], curved[1] * other[0], rtol=1e-6)
    with pytest.raises(ValueError, match="the data have none"):
        build_model(Series(series.y), 2, 5, coupling="hammerstein")


def test_a_monotone_control_enters_by_a_curve_that_rises():
    """∂f/∂u = B g'(u) with g' > 0, whatever the weights, and nothing else of u."""
    series = driven(60, 0)
    start = linear_fit(series, Spec(state_dim=2))
    model = build_model(series, 2, 7, coupling="hammerstein-monotone", linear=start)
    drawn = jnp.asarray(RNG.normal(size=model.weights_shape))
    u = jnp.linspace(-4, 4, 9)[:, None]

    @jax.jit
    def slopes(slope_weights):
        curved = model.with_leaves({"mean.weights": slope_weights})

        def step(x, u):
            return curved.transition()(x[None], u[None]).given(drawn)[0]

        by_state, by_control = jax.vmap(jax.jacfwd(step, (0, 1)), (None, 0))(
            jnp.array([0.3, -1.0]), u
        )
        return by_state, by_control[..., 0]

    by_state, by_control = map(np.asarray, slopes(jnp.asarray(RNG.normal(size=(1, KNOTS - 1)))))
    np.testing.assert_allclose(by_state - by_state[0], 0, atol=1e-12)
    curve = by_control / np.asarray(start.model.input_map)[:, 0]
    np.testing.assert_allclose(curve[:, 0], curve[:, 1], rtol=1e-9)
    assert np.all(curve > 0)
    np.testing.assert_allclose(
        slopes(jnp.zeros((1, KNOTS - 1)))[1], np.broadcast_to(start.model.input_map[:, 0], (9, 2))
    )
    for words, given in {
        "the data have none": {"series": Series(series.y), "linear": None},
        "leave mean at 'linear'": {"mean": "zero"},
        "needs inducing points and a kernel by name": {"basis": "hilbert"},
        "does not support wiring: use coupling='none'": {"wiring": "cascade"},
    }.items():
        with pytest.raises(ValueError, match=words):
            build_model(
                **(
                    {
                        "series": series,
                        "state_dim": 2,
                        "coupling": "hammerstein-monotone",
                        "linear": start,
                    }
                    | given
                )
            )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "shapes"),
    [
        ({"coupling": "hammerstein"}, {"static_input": lambda u: np.tanh(2 * u)}),
        (
            {"coupling": "hammerstein-monotone", "start": "em+shooting"},
            {"static_input": lambda u: np.tanh(2 * u)},
        ),
        ({"likelihood": "wiener-monotone"}, {"static_output": lambda y: np.tanh(1.5 * y)}),
        ({"likelihood": "wiener"}, {"static_output": np.abs}),
    ],
    ids=["hammerstein", "hammerstein-monotone", "wiener-monotone", "wiener"],
)
def test_the_curve_is_found(given, shapes, tmp_path):
    """A saturation, or a lost sign: simulations of new data have less than half the error of a linear model's."""
    train, test = driven(150, 1, **shapes), driven(100, 2, **shapes)
    how = {"state_dim": 2, "num_chains": 1, "progress": False}
    sizes = {
        "num_inducing": 9,
        "start": "em",
        "num_warmup": 200,
        "num_draws": 40,
        "basis": "inducing",
    }
    if "likelihood" in given:
        sizes |= {"basis": "linear"}
    posterior = gpssm.fit(train, **how, **(sizes | given))
    linear = gpssm.fit(train, method="lgssm", **how)
    errors = [
        np.sqrt(
            np.mean(
                (one.simulate(test.u[10:], warmup=test[:10], num_paths=40).mean - test.y[10:]) ** 2
            )
        )
        for one in (posterior, linear)
    ]
    assert errors[0] < 0.5 * errors[1], errors
    posterior.save(tmp_path / "static.nc")
    u = test.u[:4]
    paths = [
        one.forecast(u=u, num_paths=10).paths
        for one in (posterior, gpssm.load(tmp_path / "static.nc"))
    ]
    np.testing.assert_array_equal(*paths)
