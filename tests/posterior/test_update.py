"""Sampling again with new rows: starts, results and fit."""

import dataclasses

import jax
import numpy as np
import pytest

from gpssm.inference.runner import Runtime, Sample
from random_walk import RandomWalk, small_fit, small_series


@pytest.fixture(scope="module")
def rows():
    return small_series(30)[20:]


@pytest.fixture(scope="module")
def posterior():
    return small_fit()


@pytest.fixture(scope="module")
def updated(posterior, rows):
    return posterior.update(rows)


def test_states_cover_old_and_new_rows(posterior, rows, updated):
    assert updated.draws.states[0].shape == (2, 10, 31, 1)
    assert updated.info.log_target.shape == (2, 10)
    assert updated.warmup.log_target.shape == (2, 3)
    np.testing.assert_array_equal(
        updated.dataset.experiments[0].y, np.concatenate([small_series().y, rows.y])
    )
    assert updated.dataset.scaler == posterior.dataset.scaler
    assert posterior.draws.states[0].shape == (2, 10, 21, 1)
    assert updated.model.roles == posterior.model.roles
    assert (updated.seed, updated.spec) == (posterior.seed + 1, posterior.spec)


def test_it_starts_near_the_new_outputs(rows, updated):
    fitted = updated.smooth().mean[20:]
    assert np.std(fitted - rows.y) < 0.4 * np.std(rows.y)


def test_a_new_experiment_is_a_series_of_its_own(posterior, rows, monkeypatch):
    asked = {}

    def run(method, starts, series, runtime):
        (start,) = starts
        asked.update(
            method=method, model=start.model, lengths=[len(one) for one in series], runtime=runtime
        )
        draws = posterior.draws._replace(
            states=tuple(np.tile(path, (2, 10, 1, 1)) for path in start.states)
        )
        return Sample(draws, posterior.info, posterior.warmup, 0.0, 0.0, ())

    monkeypatch.setattr("gpssm.posterior.learning.run_chains", run)
    # Conditioning in between changes nothing: training data and new series are learned from.
    updated = posterior.condition(rows).update(
        rows, new_experiment=True, num_warmup=4, num_draws=5, seed=9
    )
    assert [path.shape for path in updated.draws.states] == [(2, 10, 21, 1), (2, 10, 11, 1)]
    assert (updated.current, updated.seed, len(updated.dataset.experiments)) == (None, 9, 2)
    assert (asked["method"], asked["lengths"]) == (RandomWalk(num_warmup=4, num_draws=5), [20, 10])
    assert asked["runtime"] == Runtime(num_chains=2, seed=9, progress=False)
    chain = np.argmax(np.mean(posterior.info.log_target, 1))
    drawn = posterior.draws.leaves["log_process_std"][chain, -1]
    np.testing.assert_array_equal(asked["model"].log_process_std, drawn)


def test_bad_calls_are_told_what_to_do(posterior, rows):
    with pytest.raises(ValueError, match="conditioned on rows that it has not learned from"):
        posterior.condition(rows).update(rows)
    with pytest.raises(ValueError, match="training needs at least 10 rows; series number 1 has 3"):
        posterior.update(rows[:3], new_experiment=True)
    with pytest.raises(IndexError, match="1 training series"):
        posterior.update(rows, index=1)
    with pytest.raises(ValueError, match=r"one of auto, .*this was 'RandomWalk'"):
        dataclasses.replace(posterior, spec=posterior.spec.plain()).update(
            rows
        )  # as it comes from a file
    with pytest.raises(ValueError, match="'arx' cannot be updated: fit it again"):
        dataclasses.replace(posterior, spec=posterior.spec.replace(method="arx")).update(rows)


def test_extend_does_what_condition_learn_and_update_do(posterior, rows, updated):
    options = {"seed": 3, "new_experiment": True}
    for relearn, method in ((None, posterior.condition), ("weights", posterior.learn)):
        found, wanted = posterior.extend(rows, relearn, **options), method(rows, **options)
        jax.tree.map(np.testing.assert_array_equal, found.draws, wanted.draws)
        jax.tree.map(np.testing.assert_array_equal, found.current.state, wanted.current.state)
    again = posterior.extend(rows, "all", seed=updated.seed)
    jax.tree.map(np.testing.assert_array_equal, again.draws, updated.draws)
    for relearn in ("everything", True, ["all"]):
        with pytest.raises(ValueError, match="relearn must be None, 'weights' or 'all'"):
            posterior.extend(rows, relearn)
