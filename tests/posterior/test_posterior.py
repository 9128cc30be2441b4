"""Posteriors: subsets of draws, and methods that compile once for all draws of a shape."""

import dataclasses
import pickle

import jax
import numpy as np
import pytest

from builders import make_series
from compilations import compilations
from gpssm.methods.spec import Spec
from gpssm.posterior.posterior import ALIKE
from posteriors import make_posterior


@pytest.mark.parametrize(("most", "kept"), [(100, 10), (20, 10), (10, 5), (7, 4), (1, 1)])
def test_draws_are_evenly_spaced_along_each_chain(most, kept):
    posterior = make_posterior(chains=2, draws=10)
    fewer = posterior.thinned(most)
    assert (fewer.num_chains, fewer.num_draws) == (2, kept)
    every = -(-20 // most)
    for path, whole in zip(fewer.draws.states, posterior.draws.states, strict=True):
        np.testing.assert_array_equal(path, whole[:, ::every])
    assert fewer.info.log_target.shape == (2, kept)
    assert posterior.num_draws == 10


def test_the_current_state_is_thinned_too():
    conditioned = make_posterior().condition(make_series(6, seed=3), num_particles=8)
    fewer = conditioned.thinned(4)
    for name, part in conditioned.current.state._asdict().items():
        np.testing.assert_array_equal(getattr(fewer.current.state, name), part[:, ::2])
    assert fewer.current.rows == 5 + 6


def test_pickles_are_read_in_double_precision_whatever_jax_is_set_to():
    posterior = make_posterior().condition(make_series(6, seed=3))
    posterior = dataclasses.replace(posterior, spec=Spec(kernel=posterior.model.kernel))
    content = pickle.dumps(posterior)
    with jax.enable_x64(False):
        again = pickle.loads(content)
    for part, before in (
        (again.model, posterior.model),
        (again.spec.kernel, posterior.spec.kernel),
    ):
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(part))
        jax.tree.map(np.testing.assert_array_equal, part, before)
    u = np.ones((3, 1))
    paths = [each.forecast(3, u, num_paths=6).paths for each in (posterior, again)]
    np.testing.assert_array_equal(*paths)
    assert again.draws.states[0].dtype == np.float64


def test_draws_that_differ_in_states_alone_are_few():
    weights = np.ones((2, 30, 2, 6))
    assert make_posterior(draws=30, weights=weights, leaves={}).thinned(50).num_draws == ALIKE // 2
    assert make_posterior(draws=30, leaves={}).thinned(50).num_draws == 15


def test_verbs_compile_nothing_for_other_draws_of_the_same_shapes():
    posterior = make_posterior()
    draws = jax.tree.map(lambda leaf: leaf + 0.01, posterior.draws)
    model = posterior.model.with_leaves({"likelihood.d": posterior.model.likelihood.d + 0.1})
    other = dataclasses.replace(posterior, draws=draws, model=model)
    x, u, rows = np.ones((4, 2)), np.ones((4, 1)), make_series(6, seed=3)
    verbs = {
        "diagnostics": lambda one, steps: one.diagnostics(),
        "smooth": lambda one, steps: one.smooth(),
        "transition": lambda one, steps: one.transition(x, u),
        "linearise": lambda one, steps: one.linearise(row=2),
        "forecast": lambda one, steps: one.forecast(steps, np.zeros((steps, 1)), num_paths=30),
        "condition": lambda one, steps: one.condition(rows),
        "predict": lambda one, steps: one.predict(rows, 2, num_paths=30),
    }
    with compilations() as first:
        for verb in verbs.values():
            verb(posterior, 30)
    assert first
    for name, verb in verbs.items():
        with compilations() as again:
            verb(other, 7)  # horizons are rounded up, so that they share a program too
        assert not again, f"{name} compiled {len(again)} programs again"
