"""Known wiring: excluded arguments have exactly no influence, and known rows are exact."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import builders
from gpssm.model.bases import InducingPoints, LinearFeatures, RandomFourier, Stacked
from gpssm.model.kernels import Active, Masked, make_kernel
from gpssm.model.likelihoods import Gaussian
from gpssm.model.means import LinearMap, Wired
from gpssm.model.model import GPSSM
from gpssm.model.target import log_collapsed, log_target, weights_given_states
from gpssm.model.wiring import Wiring, make_wiring, wired_size

RNG = np.random.default_rng(0)
# Three states and a control: a sum, one that sees itself and the control, and one that sees the first two.
WIRING = Wiring([[0, 0, 0, 0], [0, 1, 0, 1], [1, 1, 0, 0]], integrators={0: 1}, measured={0: 0})
X, U = jnp.asarray(RNG.normal(size=(4, 3))), jnp.asarray(RNG.normal(size=(4, 1)))
LOCATIONS = jnp.asarray(RNG.normal(size=(5, 4)))
KNOWN = jnp.asarray([[1.0, 0.2, 0.0, 0.0, 0.1], [0.0] * 5, [0.0] * 5])


def wired_model(kernel="se", part="inducing"):
    covariance = make_kernel(kernel, 3, 4, 0.5, 1.5)
    basis = (
        InducingPoints(LOCATIONS)
        if part == "inducing"
        else RandomFourier.build(covariance, 6, 4, jax.random.key(1))
    )
    linear = LinearMap(*(jnp.asarray(RNG.normal(size=shape)) for shape in ((3, 3), (3, 1), 3)))
    return GPSSM.create(
        Masked(covariance, WIRING.mask),
        Stacked((basis, LinearFeatures.build(3, 4, 0.3, WIRING.mask))),
        Wired(linear, KNOWN, WIRING.mask),
        Gaussian.build(jnp.eye(3)[:1], jnp.zeros(1), jnp.ones(1)),
        jnp.array([0.003, 0.2, 0.3]),
    )


@eqx.filter_jit
def slopes(model, x, u):
    """∂m/∂z, ∂A/∂z and ∂B/∂z of one row, as (Dx, ..., Dz)."""

    def step(z):
        found = model.transition()(z[None, :3], z[None, 3:])
        return found.mean[0], found.gain[:, 0], found.residual[:, 0]

    return jax.jacfwd(step)(jnp.concatenate([x, u]))


# One of each family and way to put kernels together; others differ in a function of the same scaled distances.
CASES = [
    ("se+linear*matern32", "inducing"),
    ("periodic", "inducing"),
    ("polynomial", "inducing"),
    ("se", "fourier"),
]


@pytest.mark.parametrize(("kernel", "part"), CASES)
def test_what_does_not_enter_has_no_influence(kernel, part):
    model = wired_model(kernel, part)
    mean, gain, residual = slopes(model, X[0], U[0])
    enters = np.array(WIRING.enters)
    assert np.all(np.asarray(mean)[~enters] == 0)
    assert np.all(np.asarray(mean)[enters] != 0)
    functions = np.array(WIRING.mask)
    assert np.all(np.moveaxis(np.asarray(gain), 1, -1)[~functions] == 0)
    assert np.all(np.any(np.moveaxis(np.asarray(gain), 1, -1)[functions] != 0, -1))
    assert np.all(np.asarray(residual)[~functions] == 0)
    # By finite differences too, of the whole transition.
    weights = jnp.asarray(RNG.normal(size=(3, model.basis.size)))
    for row, column in zip(*np.nonzero(~enters), strict=True):
        z = jnp.concatenate([X, U], -1).at[:, column].add(0.7)
        here, there = (model.transition()(*pair) for pair in ((X, U), (z[:, :3], z[:, 3:])))
        np.testing.assert_array_equal(here.given(weights)[:, row], there.given(weights)[:, row])
        np.testing.assert_array_equal(here.residual[row], there.residual[row])


def test_a_known_row_is_exact_and_has_no_function():
    step = wired_model().transition()(X, U)
    np.testing.assert_array_equal(step.gain[0], 0)
    np.testing.assert_array_equal(step.residual[0], 0)
    np.testing.assert_allclose(step.mean[:, 0], X[:, 0] + 0.2 * X[:, 1] + 0.1, rtol=1e-14)


def test_gain_and_residual_are_those_of_a_kernel_on_the_columns_that_enter():
    model, z = wired_model(), jnp.concatenate([X, U], -1)
    gain, residual = model.basis.parts[0].projector(model.kernel)(z)
    for row in (1, 2):
        seen = tuple(np.flatnonzero(WIRING.mask[row]).tolist())
        alone = Active(make_kernel("se", 1, len(seen), 0.5, 1.5), seen)
        expected = InducingPoints(LOCATIONS).projector(alone)(z)
        np.testing.assert_allclose(gain[row], expected.gain[0], atol=1e-9)
        np.testing.assert_allclose(residual[row], expected.residual[0], atol=1e-9)


def test_gradients_are_finite_and_forbidden_lengthscales_have_none():
    model, series, states = (
        wired_model(),
        builders.make_series(6, 1, 1, missing=True),
        builders.make_states(6, 3),
    )

    @jax.jit
    def slope(leaves):
        return jax.grad(
            lambda own: log_collapsed(model.with_leaves(own), jnp.asarray(states), series)
        )(leaves)

    found = slope(model.leaves())
    assert all(np.isfinite(leaf).all() for leaf in found.values())
    lengthscale = np.asarray(found["kernel.inner.log_lengthscale"])
    assert np.all((lengthscale == 0) == ~np.array(WIRING.mask))
    assert np.all(np.asarray(found["mean.inner.transition"])[~np.array(WIRING.mask)[:, :3]] == 0)


def test_collapsing_integrates_the_weights_out():
    """The joint is Gaussian in v: its mode and dense Hessian give the collapsed target, over two series."""
    model = wired_model()
    series = [builders.make_series(n, 1, 1, missing=True, seed=n) for n in (5, 3)]
    paths = [jnp.asarray(builders.make_states(n, 3, seed=n)) for n in (5, 3)]
    shape = (3, model.basis.size)

    @jax.jit
    def everything(flat):
        def joint(flat):
            return log_target(model, paths, flat.reshape(shape), series)

        return joint(flat), jax.grad(joint)(flat), jax.hessian(joint)(flat)

    zero = jnp.zeros(np.prod(shape))
    _, slope, hessian = everything(zero)
    mode = np.linalg.solve(-hessian, slope)
    integral = everything(jnp.asarray(mode))[0] + 0.5 * (
        zero.size * np.log(2 * np.pi) - np.linalg.slogdet(-hessian)[1]
    )
    np.testing.assert_allclose(log_collapsed(model, paths, series), integral, rtol=1e-8)
    found = weights_given_states(model, paths, series)
    np.testing.assert_allclose(np.ravel(found.mean), mode, rtol=1e-6, atol=1e-9)
    # The weights of a row without a function are told nothing.
    np.testing.assert_allclose(found.precision[0], np.eye(shape[1]), atol=1e-12)


def test_what_is_written_down_makes_it_again():
    for wiring in (WIRING, make_wiring("sparse", 2, 1, 2)):
        assert Wiring(*wiring.plain()) == wiring


def test_names():
    cascade = make_wiring("cascade", 3, 1, 1)
    assert np.array_equal(cascade.enters, [[1, 0, 0, 1], [1, 1, 0, 0], [0, 1, 1, 0]])
    assert cascade.measured == ((2, 0),)
    assert all(cascade.learned)
    second = make_wiring("second-order", 4, 1, 2)
    assert second.integrators == ((0, 1), (2, 3))
    assert second.measured == ((0, 0), (2, 1))
    assert second == make_wiring("chain", 4, 1, 2)
    assert second.learned == (False, True, False, True)
    assert make_wiring("chain", 3, 0, 1).integrators == ((0, 1), (1, 2))
    assert make_wiring("sparse", 2, 1, 2).sparse
    assert make_wiring("sparse", 2, 1, 2).measured == ((0, 0), (1, 1))
    assert wired_size("second-order", 2) == 4
    assert wired_size(WIRING, 1) == 3
    assert wired_size("cascade", 1) is None
    assert second.words(["force"]).startswith("x1 from x1, x2 (sum); x2 from x1, x2, x3, x4, force")


BAD = {
    "Known: cascade, chain": lambda: make_wiring("casade", 2, 1, 1),
    "state_dim=4": lambda: make_wiring("second-order", 3, 1, 2),
    "Use state_dim=1, or Wiring": lambda: make_wiring("sparse", 2, 1, 1),
    "a multiple of 2": lambda: make_wiring("chain", 3, 1, 2),
    "cannot have 3 outputs": lambda: make_wiring("cascade", 2, 1, 3),
    "Pass state_dim=2": lambda: make_wiring([[1, 1, 1], [1, 0, 0]], 3, 1, 1),
    "nothing enters the transition of state 1": lambda: Wiring([[1, 1], [0, 0]]),
    "only true and false": lambda: Wiring([[0.5, 1.0], [1.0, 1.0]]),
    "one row per state": lambda: Wiring([1, 0, 1]),
    "a boolean matrix": lambda: Wiring([["x"]]),
    "cannot integrate itself": lambda: Wiring(np.ones((2, 2)), integrators={0: 0}),
    "both an integrator and a delay": lambda: Wiring(
        np.ones((2, 2)), integrators={0: 1}, delays={0: 1}
    ),
    "cycle through state 0": lambda: Wiring(np.ones((3, 4)), delays={0: 1, 1: 0}),
    "outside of 2 states": lambda: Wiring(np.ones((2, 2)), delays={0: 2}),
    "same output": lambda: Wiring(np.ones((2, 2)), measured={0: 0, 1: 0}),
    "measured: no output 1": lambda: make_wiring(Wiring(np.ones((2, 2)), measured={0: 1}), 2, 0, 1),
}


@pytest.mark.parametrize("words", BAD)
def test_bad_wirings_say_what_to_do(words):
    with pytest.raises((KeyError, TypeError, ValueError), match=words):
        BAD[words]()
