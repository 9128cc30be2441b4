"""Paths: parallel simulation of draws, the distribution of paths over draws, replacements, and
bounds.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from builders import make_model
from gpssm.posterior.rollout import (
    Box,
    assemble,
    choose_particles,
    path_keys,
    spread_paths,
    stand_in,
    training_box,
)
from posteriors import make_posterior

DRAWS, POINTS = 4, 3
RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    "names",
    [(), ("log_process_std", "likelihood.log_std"), ("log_process_std", "kernel.log_lengthscale")],
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
        np.testing.assert_allclose(
            moments.mean[draw], step.given(weights[draw]), rtol=1e-9, atol=1e-12
        )
        np.testing.assert_allclose(
            moments.variance[draw], (step.residual + own.process_variance[:, None]).T, rtol=1e-7
        )
        np.testing.assert_allclose(
            moments.novelty[draw], np.mean(step.residual / prior, 0), rtol=1e-6, atol=1e-12
        )


def _around(leaf):
    return leaf[None] + 0.1 * jnp.asarray(RNG.normal(size=(DRAWS, *leaf.shape)))


def _run(model, weights, leaves, x, u):
    @jax.jit
    def run(weights, leaves, x, u):
        return assemble(model, weights, leaves, 1).moments(x, u)

    return run(weights, leaves, x, u)


@pytest.mark.parametrize(
    ("num_draws", "num_paths"), [(6, 6), (6, 4), (6, 7), (6, 17), (400, 1000), (999, 1000), (1, 5)]
)
def test_paths_are_spread_evenly_over_the_draws(num_draws, num_paths):
    draws, each, slots = spread_paths(num_draws, num_paths)
    assert len(set(slots)) == num_paths
    assert slots.max() < len(draws) * each
    counts = np.bincount(draws[slots // each], minlength=num_draws)
    assert counts.max() - counts.min() <= 1
    assert each == counts.max()
    if num_paths < num_draws:
        assert np.ptp(np.diff(draws)) <= 1


def test_the_number_of_a_path_within_its_draw_gives_its_key():
    key = jax.random.key(0)
    few, many = path_keys(key, np.array([3, 5]), 2), path_keys(key, np.arange(7), 4)
    np.testing.assert_array_equal(
        jax.random.key_data(few), jax.random.key_data(many[np.array([3, 5]), :2])
    )
    assert len(np.unique(jax.random.key_data(many).reshape(28, -1), axis=0)) == 28


def test_a_stopped_path_keeps_its_donor_while_that_lives_and_then_takes_another():
    rng = np.random.default_rng(0)
    source, alive = np.arange(50), np.ones(50, bool)
    while (alive := alive & (rng.random(50) > 0.2)).any():
        found = np.asarray(
            stand_in(jnp.asarray(source), jnp.asarray(alive), jnp.asarray(rng.random(50)))
        )
        for path in range(50):
            if alive[path]:
                assert found[path] == path
            elif alive[source[path]]:
                assert found[path] == source[path]
            else:
                assert alive[found[path]]
        source = found


def test_donors_are_chosen_with_equal_probability():
    alive = np.array([False, True, False, True, True, False])
    lots = (np.arange(6) + 0.5) / 6
    source = jnp.array([0, 1, 2, 3, 4, 5])
    found = [stand_in(source, jnp.asarray(alive), jnp.full(6, lot))[0] for lot in lots]
    assert list(map(int, found)) == [1, 1, 3, 3, 4, 4]


def test_the_box_is_centred_on_all_training_states_of_a_draw():
    posterior = make_posterior()
    middle, half_range, bounds, some, count = training_box(posterior, np.array([1, 4]), 2.0)
    for place, (chain, draw) in enumerate([(0, 1), (1, 1)]):
        states = np.concatenate([path[chain, draw] for path in posterior.draws.states])
        np.testing.assert_allclose(middle[place] - half_range[place], states.min(0))
        np.testing.assert_allclose(middle[place] + half_range[place], states.max(0))
        np.testing.assert_array_equal(some[place, :count], states)
    assert bounds == 2


def test_the_box_has_room_for_noise():
    box = Box(
        jnp.zeros((1, 2)),
        jnp.array([[1.0, 0.0]]),
        jnp.asarray(2.0),
        jnp.zeros((1, 1, 2)),
        jnp.asarray(1),
    )
    x = jnp.array([[[1.5, 0.6], [-1.0, 1.2]]])
    # The second coordinate was constant: half its range is three process noises of 0.2.
    np.testing.assert_allclose(box.away(x, jnp.array([[1e-4, 0.04]])), [[1.5, 2.0]])


def test_the_box_grows_where_most_paths_start_outside():
    box = Box(
        jnp.zeros((1, 2)), jnp.ones((1, 2)), jnp.asarray(2.0), jnp.zeros((1, 1, 2)), jnp.asarray(1)
    )
    start = np.zeros((1, 5, 2))
    start[0, :1, 0] = 100.0
    start[0, 2, 0] = np.nan
    assert box.grown(jnp.asarray(start), 0.01 * jnp.ones((1, 2))).bounds == 2
    start[0, 3:, 1] = 3.0
    assert box.grown(jnp.asarray(start[:, 1:]), 0.01 * jnp.ones((1, 2))).bounds == 6


def test_particles_are_chosen_by_weight():
    probabilities = np.array([0.5, 0.0, 0.3, 0.2])
    with np.errstate(divide="ignore"):
        log_weights = jnp.log(jnp.asarray(probabilities))[None]
    keys = path_keys(jax.random.key(1), np.array([0]), 20000)
    found = choose_particles(keys, jnp.arange(4.0)[None, :, None], log_weights, jnp.ones(1), False)
    shares = np.bincount(np.asarray(found).ravel().astype(int), minlength=4) / 20000
    np.testing.assert_allclose(shares, probabilities, atol=4 * 0.5 / np.sqrt(20000))
