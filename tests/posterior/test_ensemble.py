"""Many draws at once: the same numbers as one draw after the other, whichever leaves vary."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from builders import make_model
from gpssm.posterior.rollout import assemble

DRAWS, POINTS = 4, 3
RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    "names", [(), ("log_process_std", "likelihood.log_std"), ("log_process_std", "kernel.log_lengthscale")]
)
@pytest.mark.parametrize("basis", ["inducing", "hilbert"])
def test_each_draw_moves_as_its_own_model_does(basis, names):
    model = make_model(basis)
    leaves = {name: _around(model.leaves()[name]) for name in names}
    weights = jnp.asarray(RNG.normal(size=(DRAWS, model.state_dim, model.basis.size)))
    x = jnp.asarray(RNG.normal(size=(DRAWS, POINTS, model.state_dim)))
    u = jnp.asarray(RNG.normal(size=(DRAWS, POINTS, 1)))
    moments = _run(model, weights, leaves, x, u)
    for draw in range(DRAWS):
        own = model.with_leaves({name: leaf[draw] for name, leaf in leaves.items()})
        step = own.transition()(x[draw], u[draw])
        prior = own.kernel.diagonal(jnp.concatenate([x[draw], u[draw]], -1))
        np.testing.assert_allclose(moments.mean[draw], step.given(weights[draw]), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(moments.variance[draw], (step.residual + own.process_variance[:, None]).T, rtol=1e-7)
        np.testing.assert_allclose(moments.novelty[draw], np.mean(step.residual / prior, 0), rtol=1e-6, atol=1e-12)


def _around(leaf):
    return leaf[None] + 0.1 * jnp.asarray(RNG.normal(size=(DRAWS, *leaf.shape)))


def _run(model, weights, leaves, x, u):
    @jax.jit
    def run(weights, leaves, x, u):
        return assemble(model, weights, leaves, 1).moments(x, u)

    return run(weights, leaves, x, u)
