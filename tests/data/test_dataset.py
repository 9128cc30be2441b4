"""Conversion between the user's data and the model's; windows of long records, and stored
states.
"""

import dataclasses

import jax
import numpy as np
import pandas as pd
import pytest

import gpssm
from builders import make_series
from gpssm.data import dataset
from gpssm.data.columns import align_columns
from gpssm.data.dataset import Dataset
from gpssm.data.series import Series
from gpssm.posterior.draws import stored_rows
from random_walk import PaddedWalk, RandomWalk

TINY = {
    "method": "lgssm",
    "state_dim": 1,
    "num_chains": 2,
    "num_draws": 5,
    "seed": 3,
    "progress": False,
}
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
    jax.tree.map(np.testing.assert_array_equal, now[0].current.state, now[1].current.state)
    assert now[0].current.rows == now[1].current.rows == ROWS + 6


def test_the_rows_that_were_kept_are_a_posterior_of_their_own(whole, short):
    found, expected = stored_rows(short).smooth(), whole.smooth()
    np.testing.assert_allclose(found.paths, expected.paths[:, -KEPT:])
    assert [row.name for row in short.diagnostics().rows] == [
        row.name for row in whole.diagnostics().rows
    ]
    assert f"{ROWS} rows" in str(short.summary())
    assert stored_rows(whole) is whole


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
    with pytest.raises(
        ValueError,
        match=rf"^{verb} needs the states .* the last {KEPT} were stored.*keep_states='all'",
    ):
        call(short)


def test_saved_and_loaded_it_lacks_the_same(short, tmp_path):
    short.save(tmp_path / "short.nc")
    again = gpssm.load(tmp_path / "short.nc")
    assert again.dataset.first_states == short.dataset.first_states == (ROWS - KEPT,)
    np.testing.assert_array_equal(
        again.forecast(4, FUTURE, num_paths=20).paths, short.forecast(4, FUTURE, num_paths=20).paths
    )


def test_by_default_memory_decides(monkeypatch, whole):
    assert whole.dataset.first_states == ()
    numbers = whole.draws.states[0][:, :, 0].size
    monkeypatch.setattr(dataset, "STORED_BYTES", 8 * numbers * 30)
    with pytest.warns(UserWarning, match="Only the states of the last 30 rows were stored"):
        found = gpssm.fit(SERIES, **TINY)
    assert found.dataset.first_states == (ROWS - 30,)
    assert gpssm.fit(SERIES, **TINY, keep_states="all").dataset.first_states == ()


@pytest.mark.filterwarnings("ignore::UserWarning")  # of chains of five draws
def test_a_checkpoint_holds_what_is_kept(tmp_path):
    sampled = TINY | {"method": "ffvd-p", "num_inducing": 4, "num_warmup": 3, "thin": 1}
    first = gpssm.fit(SERIES, **sampled, keep_states=KEPT, checkpoint=tmp_path / "run")
    sizes = [
        leaf.shape
        for path in (tmp_path / "run").glob("chunk-*.npz")
        for leaf in np.load(path).values()
    ]
    assert (2, 5, KEPT + 1, 1) in sizes
    assert (2, 5, ROWS + 1, 1) not in sizes
    again = gpssm.fit(SERIES, **sampled, keep_states=KEPT, checkpoint=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(again.draws.states[0], first.draws.states[0])
    with pytest.raises(ValueError, match="another run, which differs in states"):
        gpssm.fit(SERIES, **sampled, keep_states=KEPT + 1, checkpoint=tmp_path / "run", resume=True)


def test_windows_are_experiments_put_together_again():
    found = gpssm.fit(SERIES, **TINY, windows=3)
    parts = gpssm.fit([SERIES[:20], SERIES[20:40], SERIES[40:]], **TINY)
    first, *others = parts.draws.states
    joined = np.concatenate([first, *(path[:, :, 1:] for path in others)], axis=2)
    np.testing.assert_array_equal(found.draws.states[0], joined)
    scaled = np.concatenate([one.y for one in parts.dataset.scaled])
    np.testing.assert_array_equal(found.dataset.scaled[0].y, scaled)
    assert found.dataset.experiments == (SERIES,)
    ahead = found.forecast(4, FUTURE, num_paths=20, bounds=None)
    np.testing.assert_array_equal(
        ahead.paths, parts.forecast(4, FUTURE, num_paths=20, bounds=None).paths
    )
    assert ahead.start == ROWS
    assert found.spec.windows == 3
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
        found = gpssm.fit(
            SERIES, method=PaddedWalk(), checkpoint=tmp_path / "run", resume=resume, **settings
        )
        np.testing.assert_allclose(
            found.draws.states[0], expected.draws.states[0], rtol=1e-8, atol=1e-8
        )
        np.testing.assert_allclose(
            found.draws.weights, expected.draws.weights, rtol=1e-6, atol=1e-6
        )
        np.testing.assert_allclose(found.info.log_target, expected.info.log_target, rtol=1e-8)


def test_windows_of_states_and_records():
    records = [make_series(41), make_series(60, seed=2)]
    found = Dataset.of(records, windows=2)
    windows = found.windowed()
    assert [len(one) for one in windows.experiments] == [20, 21, 30, 30]
    np.testing.assert_array_equal(
        np.concatenate([one.y for one in windows.scaled[:2]]), found.scaled[0].y
    )
    paths = [np.arange(42.0)[:, None], np.arange(61.0)[:, None]]
    pieces = found.cut(paths)
    assert [(path[0, 0], path[-1, 0]) for path in pieces] == [(0, 20), (20, 41), (0, 30), (30, 60)]
    assert found.cut("em") == "em"
    for first in ([0, 0], [20, 30], [21, 45], [41, 0]):
        local = dataclasses.replace(found, first_states=tuple(first)).windowed().first_states
        kept = [path[one:][None, None] for path, one in zip(pieces, local, strict=True)]
        for path, one, whole in zip(found.join(kept), first, paths, strict=True):
            np.testing.assert_array_equal(path[0, 0], whole[one:])
    assert Dataset.of(records).windowed().first_states == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"keep_states": 19},
            "keep_states must be auto, all, or a number of rows of at least 20; got 19",
        ),
        ({"keep_states": "some"}, "keep_states must be auto, all"),
        ({"windows": 0}, "windows must be a whole number of at least 1"),
        ({"windows": 4}, "shorter than 20 rows"),
    ],
)
def test_mistakes_are_explained(given, message):
    with pytest.raises(ValueError, match=message):
        gpssm.fit(SERIES, **TINY, **given)


VALUES = np.arange(6.0).reshape(3, 2)
NAMES = ("pump", "valve")


@pytest.mark.parametrize(
    "given",
    [
        VALUES,
        VALUES.tolist(),
        pd.DataFrame(VALUES, columns=["pump", "valve"]),
        pd.DataFrame(VALUES[:, ::-1], columns=["valve", "pump"]),
        pd.DataFrame({"time": "noon", "valve": VALUES[:, 1], "level": 1.0, "pump": VALUES[:, 0]}),
        Series(np.zeros(3), VALUES, inputs=NAMES),
        Series(np.zeros(3), VALUES[:, ::-1], inputs=NAMES[::-1]),
        Series(np.zeros(3), VALUES),
    ],
)
def test_columns_come_in_the_order_of_the_names(given):
    np.testing.assert_array_equal(align_columns(given, NAMES, "u"), VALUES)


def test_outputs_of_a_series_are_taken_for_y():
    np.testing.assert_array_equal(
        align_columns(Series(VALUES, np.ones(3)), ("a", "b"), "y"), VALUES
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (VALUES[:, :1], "u must have 2 columns: pump, valve; got 1"),
        (
            pd.DataFrame(VALUES, columns=["pump", "vlave"]),
            r"Missing: valve; unknown: vlave \(nearest: valve\)",
        ),
        (pd.DataFrame(VALUES[:, :1], columns=["pump"]), "Missing: valve; unknown: none"),
        (Series(np.zeros(3), np.ones((3, 3)), inputs=[*NAMES, "x"]), "Missing: none; unknown: x"),
    ],
)
def test_wrong_columns_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        align_columns(given, NAMES, "u")


@pytest.fixture(scope="module")
def late():
    """Two inputs, of which the first acts three rows later, in units far from 0 and 1."""
    rng = np.random.default_rng(0)
    u, y = 5 + rng.normal(size=(20, 2)), 50 + 10 * rng.normal(size=20)
    return Dataset.of(Series(y, u, inputs=NAMES, units={"pump": "m3/h"}), delay={"pump": 3})


def test_inputs_are_encoded_where_they_act_whoever_knows_the_past(late):
    series, scaler = late.experiments[0], late.scaler
    np.testing.assert_array_equal(np.isnan(series.y[:, 0]), np.arange(20) < 3)
    acting = np.stack([np.r_[[series.u[0, 0]] * 3, series.u[:-3, 0]], series.u[:, 1]], 1)
    np.testing.assert_array_equal(late.acting[0].u, acting)
    np.testing.assert_array_equal(late.scaled[0].u, scaler.scale_inputs(acting))
    np.testing.assert_array_equal(
        late.decode(late.scaled[0].y)[3:], scaler.unscale_mean(late.scaled[0].y)[3:]
    )
    past = late.past_inputs()
    np.testing.assert_array_equal(past, series.u[-3:])
    rows = late.align(Series([1.0, 2.0], np.array([[1.0, 2.0], [3.0, 4.0]])))
    assert (rows.inputs, rows.units) == (NAMES, {"pump": "m3/h"})
    seen = late.encode(rows, past)
    np.testing.assert_array_equal(
        seen.u, scaler.scale_inputs(np.stack([past[:2, 0], rows.u[:, 1]], 1))
    )
    # What is not known is as the first that is, and the outputs it acted on count for nothing.
    np.testing.assert_array_equal(late.past_inputs(0, 1)[:2], np.full((2, 2), np.nan))
    assert np.isnan(late.encode(rows, late.past_inputs(0, 1)).y[:, 0]).all()
    assert np.isnan(late.encode(rows).y).all()


def test_inputs_ahead(late):
    ahead, encoded = late.inputs_ahead(VALUES, 2, late.past_inputs())
    np.testing.assert_array_equal(ahead, VALUES[:2])
    np.testing.assert_array_equal(
        encoded, late.encode(Series(np.ones(2), VALUES[:2]), late.past_inputs()).u
    )
    assert len(late.inputs_ahead(VALUES)[0]) == 3
    with pytest.raises(ValueError, match="each of the 4 steps ahead: pass u with 4 rows; got 3"):
        late.inputs_ahead(VALUES, 4)
    with pytest.raises(
        ValueError, match=r"the inputs of the model \(pump, valve\) .* pass u with 4 rows"
    ):
        late.inputs_ahead(None, 4)
    with pytest.raises(ValueError, match=r"row 1 .* of u is NaN or infinite"):
        late.inputs_ahead(np.where(VALUES == 2, np.nan, VALUES))


def test_rows_of_another_step_are_refused_at_every_door():
    series = Series(SERIES.y, SERIES.u, dt=0.1)
    slow = Series(SERIES.y, SERIES.u, dt=10.0)
    dataset = Dataset.of(series)
    for call in (dataset.align, dataset.inputs_ahead, lambda rows: Dataset.of([series, rows])):
        assert call(series) is not None
        with pytest.raises(ValueError, match="rows are 10 apart, but those of the training data 0"):
            call(slow)


def test_a_model_without_inputs_says_so():
    plain = Dataset.of(Series(SERIES.y))
    with pytest.raises(ValueError, match="the model has no u; got 2"):
        plain.inputs_ahead(VALUES)
    assert plain.inputs_ahead(None, 4)[0].shape == (4, 0)
    assert plain.inputs_ahead(np.zeros((7, 0)))[0].shape == (7, 0)


def test_experiments_have_the_columns_of_the_first(late):
    first = late.experiments[0]
    other = Series(first.y[3:], first.u[3:, ::-1], inputs=NAMES[::-1])
    found = Dataset.of([first, other])
    np.testing.assert_array_equal(found.experiments[1].u, first.u[3:])
    with pytest.raises(ValueError, match="'pump' is in l/s, but in m3/h before"):
        Dataset.of([first, dataclasses.replace(other, units={"pump": "l/s"})])
    with pytest.raises(ValueError, match="scales of 1 outputs and 2 inputs"):
        Dataset((SERIES,), late.scaler)
    with pytest.raises(IndexError, match="there are 2 training series"):
        found.experiment(2)


def test_more_rows_follow_an_experiment_or_are_one_of_their_own(late):
    rows = late.align(Series(np.arange(12.0), np.arange(24.0).reshape(12, 2)))
    longer, wider = late.extend(rows, 0), late.extend(rows)
    np.testing.assert_array_equal(longer.experiments[0].u[20:], rows.u)
    np.testing.assert_array_equal(longer.scaled[0].u[20:], late.encode(rows, late.past_inputs()).u)
    np.testing.assert_array_equal(np.isnan(wider.experiments[1].y[:, 0]), np.arange(12) < 3)
    assert longer.scaler == wider.scaler == late.scaler


def test_a_constant_input_is_reported():
    rng = np.random.default_rng(0)
    u = np.stack([rng.normal(size=30), np.full(30, 2.5)], axis=1)
    series = Series(rng.normal(size=30), u, inputs=NAMES)
    with pytest.warns(
        UserWarning, match="Input 'valve' is constant, 2.5: its effect cannot be learned"
    ):
        Dataset.of(series)
    other = dataclasses.replace(series, u=u + 1)
    assert Dataset.of([series, other]).input_range["valve"] == (2.5, 3.5)
