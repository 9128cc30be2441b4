"""One function per path: its distribution at one and two inputs is that of the conditional Gaussian
process.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from builders import make_model
from gpssm.model.bases import InducingPoints, Stacked
from gpssm.model.kernels import KERNELS, Active, Kernel, SquaredExponential, make_kernel
from gpssm.posterior.rollout import Members, assemble, can_draw_functions, draw_functions
from posteriors import make_posterior

STATE_DIM, DIM = 2, 3
RNG = np.random.default_rng(0)
Z = jnp.asarray(RNG.normal(size=(3, DIM)))
KERNEL_SPECS = (*KERNELS, "se+linear", "se*periodic", "matern32*se+linear*rq")


def kernel_of(spec):
    return make_kernel(spec, STATE_DIM, DIM, variance=0.7, lengthscale=1.3)


@pytest.mark.parametrize("spec", KERNEL_SPECS)
def test_the_features_of_every_kernel_have_its_covariance(spec):
    """E ψ(z) ψ(z')ᵀ = k(z, z') over many spectra, within five standard errors."""
    kernel = kernel_of(spec)
    keys = jax.random.split(jax.random.key(0), 2000)

    @jax.jit
    def products(key):
        features = kernel.features(kernel.spectrum(key, 4, DIM), Z)
        return jnp.matmul(features, features.mT)

    found = np.asarray(jax.vmap(products)(keys))
    error = found.std(0) / np.sqrt(len(keys))
    assert np.all(np.abs(found.mean(0) - kernel(Z, Z)) < 5 * error + 1e-9)


def test_sums_products_and_chosen_coordinates_share_out_their_features():
    kernel = (kernel_of("se") + kernel_of("linear")) * Active(
        SquaredExponential.build(STATE_DIM, 1), (2,)
    )
    spectrum = kernel.spectrum(jax.random.key(1), 5, DIM)
    features = kernel.features(spectrum, Z)
    assert features.shape == (STATE_DIM, 3, 10)
    left, right = kernel.left.features(spectrum[0], Z), kernel.right.features(spectrum[1], Z)
    np.testing.assert_allclose(features[..., 5:], np.sqrt(5) * left[..., 5:] * right, rtol=1e-12)


@pytest.mark.parametrize("basis", ["inducing", "stacked"])
@pytest.mark.parametrize("names", [(), ("kernel.log_variance",)])
def test_what_is_left_open_has_the_covariance_of_the_conditional_process(basis, names):
    """k(z, z') − A(z)·A(z') over many paths, at two inputs, and nothing at an inducing point."""
    model = make_model(basis)
    leaves = {name: jnp.stack([model.leaves()[name], model.leaves()[name] + 0.5]) for name in names}
    weights = jnp.asarray(RNG.normal(size=(2, STATE_DIM, model.basis.size)))
    keys = jax.random.split(jax.random.key(2), (2, 1500))
    inducing = model.basis.parts[0] if isinstance(model.basis, Stacked) else model.basis
    inputs = jnp.concatenate([Z[:2], inducing.locations[:1]])

    @jax.jit
    def run(keys):
        ensemble, functions = (
            assemble(model, weights, leaves, 1),
            draw_functions(Members(model, weights, leaves), keys, 1),
        )

        def at(z):
            x, u = (
                jnp.broadcast_to(part, (*keys.shape, part.shape[0]))
                for part in (z[:STATE_DIM], z[STATE_DIM:])
            )
            return ensemble.moments(x, u, functions), ensemble.moments(x, u)

        return [at(z) for z in inputs]

    found = run(keys)
    for draw in range(2):
        own = model.with_leaves({name: leaf[draw] for name, leaf in leaves.items()})
        gaps = np.stack([np.asarray(path.mean[draw] - step.mean[draw]) for path, step in found])
        gain = inducing.projector(own.kernel)(inputs).gain
        exact = np.asarray(own.kernel(inputs, inputs) - jnp.matmul(gain, gain.mT))
        products = np.einsum("apd,bpd->dpab", gaps, gaps)
        error = products.std(1) / np.sqrt(keys.shape[1])
        assert np.all(np.abs(products.mean(1) - exact) < 5 * error + 1e-4)
        # The jitter of the inducing points' covariance is all that is left there.
        assert np.abs(gaps[2]).max() < 0.02
        for path, step in found:
            np.testing.assert_allclose(
                path.variance[draw], np.tile(own.process_variance, (1500, 1))
            )
            np.testing.assert_array_equal(path.novelty, step.novelty)


def test_a_path_keeps_its_function():
    """Without noise, two paths of one draw differ by their functions alone, and a longer forecast begins the same."""
    posterior = make_posterior(leaves={"log_process_std": np.full((2, 3, 2), -20.0)})
    assert can_draw_functions(posterior.model)
    u = np.zeros((40, 1))
    settings = {"num_paths": 12, "noise": False, "one_function": True, "bounds": None}
    long = posterior.forecast(40, u, **settings).paths
    np.testing.assert_array_equal(posterior.forecast(7, u[:7], **settings).paths, long[:, :7])
    # A contraction under one function settles; drawn afresh at each step it does not.
    afresh = posterior.forecast(40, u, **(settings | {"one_function": False})).paths
    moves, jumps = (np.abs(np.diff(paths[:, 30:], axis=1)).mean() for paths in (long, afresh))
    assert moves < 0.2 * jumps


def test_where_there_is_no_function_to_draw_steps_are_as_before():
    class Own(Kernel):
        inner: SquaredExponential

        def __call__(self, left, right):
            return self.inner(left, right)

        def diagonal(self, z):
            return self.inner.diagonal(z)

    two = Stacked((InducingPoints(Z), InducingPoints(Z + 1)))
    model = make_model()
    changed = [
        make_model("hilbert"),
        model.__class__.create(
            Own(model.kernel), model.basis, model.mean, model.likelihood, jnp.ones(2)
        ),
    ]
    changed.append(
        model.__class__.create(model.kernel, two, model.mean, model.likelihood, jnp.ones(2))
    )
    assert not any(map(can_draw_functions, changed))
    posterior = make_posterior(make_model("hilbert"), leaves={})
    u = np.zeros((5, 1))
    same = [
        posterior.forecast(5, u, num_paths=12, one_function=given).paths for given in (True, False)
    ]
    np.testing.assert_array_equal(*same)
