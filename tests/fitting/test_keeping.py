"""Long records: cut into windows that share everything but their states, and kept with their last states alone."""

import numpy as np
import pytest

import gpssm
from builders import make_series
from gpssm.fitting import keeping
from gpssm.fitting.keeping import Windows, cut
from random_walk import PaddedWalk, RandomWalk

TINY = {"method": "lgssm", "state_dim": 1, "num_chains": 2, "num_draws": 5, "seed": 3, "progress": False}
ROWS, KEPT = 61, 25
SERIES = make_series(ROWS)
FUTURE = np.zeros((4, 1))


@pytest.fixture(scope="module")
def whole():
    return gpssm.fit(SERIES, **TINY)


@pytest.fixture(scope="module")
def short():
    return gpssm.fit(SERIES, **TINY, keep_states=KEPT)


def test_what_is_kept_is_as_if_all_were(whole, short):
    np.testing.assert_array_equal(short.draws.weights, whole.draws.weights)
    np.testing.assert_array_equal(short.draws.states[0], whole.draws.states[0][:, :, -KEPT - 1 :])
    forecasts = [one.forecast(4, FUTURE, num_paths=20, bounds=None) for one in (short, whole)]
    np.testing.assert_array_equal(forecasts[0].paths, forecasts[1].paths)
    assert forecasts[0].start == forecasts[1].start == ROWS
    new = make_series(6, seed=5)
    now = [one.condition(new) for one in (short, whole)]
    np.testing.assert_array_equal(now[0].current.particles, now[1].current.particles)
    assert now[0].current.rows == now[1].current.rows == ROWS + 6


def test_the_rows_that_were_kept_are_a_posterior_of_their_own(whole, short):
    found, expected = short.with_states().smooth(), whole.smooth()
    np.testing.assert_array_equal(found.states, expected.states[:, -KEPT - 1 :])
    np.testing.assert_allclose(found.outputs.paths, expected.outputs.paths[:, -KEPT:])
    assert [row.name for row in short.diagnostics().rows] == [row.name for row in whole.diagnostics().rows]
    assert f"{ROWS} rows" in str(short.summary())
    assert whole.with_states() is whole


@pytest.mark.parametrize(
    ("verb", "call"),
    [
        ("smooth", lambda one: one.smooth()),
        ("to_arviz", lambda one: one.to_arviz()),
        ("learn", lambda one: one.learn(SERIES)),
        ("update", lambda one: one.update(SERIES)),
        ("a prior", lambda one: gpssm.fit(SERIES, prior=one)),
    ],
)
def test_a_verb_that_needs_all_states_says_what_is_lacking(short, verb, call):
    with pytest.raises(ValueError, match=rf"^{verb} needs the states .* the last {KEPT} were kept.*keep_states='all'"):
        call(short)


def test_saved_and_loaded_it_lacks_the_same(short, tmp_path):
    short.save(tmp_path / "short.nc")
    again = gpssm.load(tmp_path / "short.nc")
    assert again.kept_from == short.kept_from == (ROWS - KEPT,)
    np.testing.assert_array_equal(
        again.forecast(4, FUTURE, num_paths=20).paths, short.forecast(4, FUTURE, num_paths=20).paths
    )


def test_by_default_memory_decides(monkeypatch, whole):
    assert whole.kept_from == ()
    monkeypatch.setattr(keeping, "KEPT_BYTES", 8 * 2 * 5 * 30)
    with pytest.warns(UserWarning, match="The states of the last 30 rows alone were kept"):
        found = gpssm.fit(SERIES, **TINY)
    assert found.kept_from == (ROWS - 30,)
    assert gpssm.fit(SERIES, **TINY, keep_states="all").kept_from == ()


def test_a_checkpoint_holds_what_is_kept(short, tmp_path):
    gpssm.fit(SERIES, **TINY, keep_states=KEPT, checkpoint=tmp_path / "run")
    sizes = [leaf.shape for path in (tmp_path / "run").glob("chunk-*.npz") for leaf in np.load(path).values()]
    assert (2, 5, KEPT + 1, 1) in sizes
    assert (2, 5, ROWS + 1, 1) not in sizes
    again = gpssm.fit(SERIES, **TINY, keep_states=KEPT, checkpoint=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(again.draws.states[0], short.draws.states[0])
    with pytest.raises(ValueError, match="another run, with another states"):
        gpssm.fit(SERIES, **TINY, keep_states=KEPT + 1, checkpoint=tmp_path / "run", resume=True)


def test_windows_are_experiments_put_together_again():
    found = gpssm.fit(SERIES, **TINY, windows=3)
    parts = gpssm.fit([SERIES[:20], SERIES[20:40], SERIES[40:]], **TINY)
    first, *others = parts.draws.states
    joined = np.concatenate([first, *(path[:, :, 1:] for path in others)], axis=2)
    np.testing.assert_array_equal(found.draws.states[0], joined)
    np.testing.assert_array_equal(found.series[0].y, np.concatenate([one.y for one in parts.series]))
    assert found.raw == (SERIES,) or found.raw[0] is SERIES
    ahead = found.forecast(4, FUTURE, num_paths=20, bounds=None)
    np.testing.assert_array_equal(ahead.paths, parts.forecast(4, FUTURE, num_paths=20, bounds=None).paths)
    assert ahead.start == ROWS
    assert found.config["fit"]["windows"] == 3
    kept = gpssm.fit(SERIES, **TINY, windows=3, keep_states=KEPT)
    np.testing.assert_array_equal(kept.draws.states[0], joined[:, :, -KEPT - 1 :])


def test_padding_changes_nothing(tmp_path):
    """Draws of a method whose random numbers are those of the rows are the same with padding, and so is a checkpoint's
    continuation."""
    settings = TINY | {"num_inducing": 4, "windows": 3, "keep_states": KEPT}
    del settings["method"]
    expected = gpssm.fit(SERIES, method=RandomWalk(), **settings)
    assert np.ptp(expected.draws.states[0], axis=1).max() > 0
    for resume in (False, True):
        found = gpssm.fit(SERIES, method=PaddedWalk(), checkpoint=tmp_path / "run", resume=resume, **settings)
        np.testing.assert_allclose(found.draws.states[0], expected.draws.states[0], rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(found.draws.weights, expected.draws.weights, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(found.info.log_target, expected.info.log_target, rtol=1e-8)


def test_windows_of_states_and_records():
    records = [make_series(41), make_series(60, seed=2)]
    found = cut(records, 2)
    assert [len(one) for one in found.series] == [20, 21, 30, 30]
    paths = [np.arange(42.0)[:, None], np.arange(61.0)[:, None]]
    pieces = found.cut_states(paths)
    assert [(path[0, 0], path[-1, 0]) for path in pieces] == [(0, 20), (20, 41), (0, 30), (30, 60)]
    assert found.cut_states("em") == "em"
    for first in ([0, 0], [20, 30], [21, 45], [41, 0]):
        local = found.kept_from(first)
        kept = [path[one:][None, None] for path, one in zip(pieces, local, strict=True)]
        for path, one, whole in zip(found.join(kept), first, paths, strict=True):
            np.testing.assert_array_equal(path[0, 0], whole[one:])
    assert cut(records, 1).kept_from([0, 0]) is None
    assert isinstance(found, Windows)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"keep_states": 19}, "keep_states must be auto, all, or a number of rows of at least 20; got 19"),
        ({"keep_states": "some"}, "keep_states must be auto, all"),
        ({"windows": 0}, "windows must be a whole number of at least 1"),
        ({"windows": 4}, "shorter than 20 rows"),
    ],
)
def test_mistakes_are_explained(given, message):
    with pytest.raises(ValueError, match=message):
        gpssm.fit(SERIES, **TINY, **given)
