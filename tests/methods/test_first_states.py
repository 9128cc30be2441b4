"""Jumps of the first states: their conditional distribution agrees with quadrature in every
mode.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import sampling
from gpssm.inference.whitening import unstack
from gpssm.methods.ffvd import jump_first_states
from gpssm.model.conditionals import draw_gaussian
from gpssm.model.means import Function
from gpssm.model.target import log_collapsed, weights_given_states

GRID = np.linspace(-4.0, 4.0, 201)
LIMIT = 4.0  # standard errors


def test_first_states_are_drawn_from_all_their_modes():
    """x₁ = x₀² − 1 + g(x₀) has two roots, which g tells apart; two series share the weights of g."""
    model, series, states = sampling.small_problem()
    model = eqx.tree_at(lambda one: one.mean, model, Function(lambda x, u: x**2 - 1.0)).with_roles(
        "fix", "*"
    )
    start, second = jnp.concatenate(states), len(series[0]) + 1

    @jax.jit
    def run(key):
        def move(states, key):
            weights_key, key = jax.random.split(key)
            weights = draw_gaussian(
                weights_key, weights_given_states(model, unstack(states, series), series)
            )
            states = jump_first_states(key, model, weights, states, series)
            return states, states

        return jax.lax.scan(move, start, jax.random.split(key, 5000))[1]

    drawn = np.stack(
        [np.asarray(run(jax.random.key(seed))) for seed in range(sampling.NUM_CHAINS)]
    )[..., 0]
    others = np.delete(np.arange(len(start)), [0, second])
    assert np.ptp(drawn[:, :, others], axis=(0, 1)).max() == 0

    # The law of both first states on a grid, all other states held.
    @jax.jit
    def log_density(one, other):
        return log_collapsed(
            model, unstack(start.at[0].set(one).at[second].set(other), series), series
        )

    table = np.asarray(
        jax.lax.map(lambda one: jax.vmap(lambda other: log_density(one, other))(GRID), GRID)
    )
    mass = np.exp(table - table.max())
    for index, marginal in ((0, mass.sum(1)), (second, mass.sum(0))):
        below = np.cumsum(marginal) / marginal.sum()
        assert 0.05 < np.interp(0.0, GRID, below) < 0.95
        cuts = np.quantile(drawn[:, :, index], np.linspace(0.1, 0.9, 9))
        share, error = sampling.average(drawn[:, :, index, None] <= cuts)
        # A point of the grid stands for what lies half a step to either side of it.
        expected = np.interp(cuts, GRID + 0.5 * (GRID[1] - GRID[0]), below)
        assert np.max(np.abs(share - expected) / error) < LIMIT
