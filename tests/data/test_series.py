import copy
import pickle
from dataclasses import FrozenInstanceError, replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gpssm.data.clock import Clock
from gpssm.data.series import Series, align_rows, as_list, check_trainable, varying


@st.composite
def all_series(draw, max_length=8):
    length, output_dim, input_dim = draw(
        st.tuples(st.integers(2, max_length), st.integers(1, 3), st.integers(0, 2))
    )
    numbers = st.floats(-1e6, 1e6)
    y = draw(hnp.arrays(np.float64, (length, output_dim), elements=numbers | st.just(np.nan)))
    u = draw(hnp.arrays(np.float64, (length, input_dim), elements=numbers))
    names = [f"out{column}" for column in range(output_dim)]
    return Series(y, u, name=draw(st.sampled_from(["a", None])), dt=0.5, outputs=names, window=1)


def example():
    return Series(
        [[1.0, 2.0], [np.nan, 3.0], [4.0, 5.0]], [6.0, 7.0, 8.0], name="tank", dt=0.1, window=2
    )


def test_shapes_names_and_defaults():
    series = Series([1, 2, 3])
    assert (series.y.shape, series.u.shape) == ((3, 1), (3, 0))
    assert (series.output_dim, series.input_dim, len(series)) == (1, 0, 3)
    assert (series.outputs, series.inputs) == (("y",), ())
    assert (series.name, series.dt, series.window) == (None, None, None)
    assert (example().outputs, example().inputs) == (("y0", "y1"), ("u",))


def test_names_of_pandas_columns_become_outputs_and_inputs():
    frame = pd.DataFrame({"level": [1.0, None], "pump": [0, 1]})
    series = Series(frame[["level"]], frame["pump"])
    assert (series.outputs, series.inputs) == (("level",), ("pump",))
    assert np.isnan(series.y[1, 0])


def test_it_is_frozen_down_to_its_arrays():
    series = example()
    with pytest.raises(FrozenInstanceError):
        series.name = "other"  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        series.y[0] = 0.0


@settings(deadline=None, max_examples=40)
@given(series=all_series(), at=st.integers(1, 7))
def test_slices_and_splits_put_together_are_the_whole(series, at):
    at = min(at, len(series) - 1)
    train, test = series.split(at)
    assert len(train) == at
    assert (train, test) == (series[:at], series[at:])
    whole = replace(train, y=np.concatenate([train.y, test.y]), u=np.concatenate([train.u, test.u]))
    assert whole == series  # metadata included


@settings(deadline=None)
@given(length=st.integers(2, 2000), percent=st.integers(1, 99))
def test_a_fraction_splits_at_its_exact_floor(length, percent):
    cut = length * percent // 100
    series = Series(np.arange(length))
    if cut == 0:
        with pytest.raises(ValueError, match="such that both parts have rows"):
            series.split(percent / 100)
    else:
        assert len(series.split(percent / 100)[0]) == cut


@pytest.mark.parametrize("at", [0, 3, -1, 0.0, 1.0, 1.5, 0.1, -0.5])
def test_a_split_that_leaves_a_part_empty_is_refused(at):
    with pytest.raises(ValueError, match=r"index from 1 to 2, or a fraction"):
        example().split(at)


def test_only_slices_without_a_step():
    with pytest.raises(TypeError, match=r"series\.y\[t\]"):
        example()[0]  # type: ignore[index]
    with pytest.raises(ValueError, match="must not have a step"):
        example()[::2]
    with pytest.raises(ValueError, match="at least one row"):
        example()[3:]


@settings(deadline=None, max_examples=40)
@given(series=all_series())
def test_equality_sees_values_missing_entries_and_metadata(series):
    assert series == replace(series)
    assert series == copy.deepcopy(series)
    assert series == pickle.loads(pickle.dumps(series))
    assert series != replace(series, y=np.where(np.isnan(series.y), 0.0, series.y + 1.0))
    assert series != replace(series, name="other")
    assert series != replace(series, dt=None)
    assert series != series[1:]
    assert series != "series"


def test_repr_says_what_a_user_asks_first():
    assert repr(example()) == (
        "Series('tank', T=3, outputs=('y0', 'y1'), inputs=('u',), dt=0.1, window=2, missing=1)"
    )
    assert repr(Series([1.0])) == "Series(T=1, outputs=('y',), inputs=())"
    assert repr(jax.tree.map(lambda leaf: None, example())) == "Series(T=?, outputs=(), inputs=())"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"y": []}, "at least one row"),
        ({"y": np.zeros((3, 0))}, "one column"),
        ({"y": [1.0, np.inf], "outputs": "p"}, r"column 'p', row 1 .*infinite.*NaN where"),
        ({"y": [1, 2], "u": [[0, 1], [2, np.nan]]}, r"column 'u1', row 1 .*Fill the gap"),
        ({"y": [1, 2], "u": [-np.inf, 0]}, r"column 'u', row 0 .*Fill the gap"),
        ({"y": [1, 2], "u": [1, 2, 3]}, "2 rows of y, 3 of u"),
        ({"y": [1, "a"]}, "row 1 .*not a number"),
        ({"y": [1, 2], "dt": 0.0}, "dt.*positive"),
        ({"y": [1, 2], "dt": np.nan}, "dt.*positive"),
        ({"y": [1, 2], "window": -1}, "window"),
        ({"y": [1, 2], "window": 1.5}, "window"),
    ],
)
def test_bad_values_are_refused_with_their_place_and_a_remedy(arguments, message):
    with pytest.raises(ValueError, match=message):
        Series(**arguments)


def test_whole_missing_rows_are_allowed():
    assert np.isnan(Series([[np.nan, np.nan], [1.0, 2.0]]).y[0]).all()


def benchmark_object():
    return SimpleNamespace(
        u=np.arange(4.0),
        y=np.arange(4.0) ** 2,
        sampling_time=0.2,
        name="tanks",
        state_initialization_window_length=3,
    )


def test_of_takes_benchmark_objects_series_and_lists():
    series = Series.of(benchmark_object())
    assert series == Series(np.arange(4.0) ** 2, np.arange(4.0), name="tanks", dt=0.2, window=3)
    assert Series.of(series) is series
    assert Series.of([series, benchmark_object()]) == [series, series]
    assert Series.of((series,)) == [series]
    assert Series.of(SimpleNamespace(u=[1], y=[2])) == Series([2], [1])


def test_of_takes_the_objects_of_nonlinear_benchmarks():
    utilities = pytest.importorskip("nonlinear_benchmarks.utilities")
    first = utilities.Input_output_data(np.arange(4.0), np.arange(4.0) ** 2, 0.2, "tanks", 3)
    assert Series.of(first) == Series.of(benchmark_object())
    plain = utilities.Input_output_data(np.ones((4, 2)), np.arange(4.0))
    assert Series.of([plain]) == [Series(np.arange(4.0), np.ones((4, 2)))]


def test_of_takes_arrays_and_tables_of_every_library():
    y, u = np.arange(6.0), np.ones((6, 1))
    days = pd.date_range("2024-01-01", periods=6, tz="Europe/Berlin", name="day")
    frame = pd.DataFrame({"level": y, "pump": 1.0, "note": "fine"}, index=days)
    table = pl.from_dict({"day": list(days.tz_convert("UTC")), "level": y, "pump": u[:, 0]})
    table = table.with_columns(pl.col("day").cast(pl.Datetime("ns", "Europe/Berlin")))
    names = {"outputs": "level", "inputs": ["pump"]}
    expected = Series(y, u, outputs="level", inputs="pump", time=days)
    assert expected.clock.zone == "Europe/Berlin"
    assert Series.of(frame, **names) == expected
    assert Series.of(frame.reset_index(), **names) == expected
    assert Series.of(table, **names) == expected
    assert Series.of(table.lazy(), **names) == expected
    naive = frame.tz_localize(None)
    dataset = naive[["level", "pump"]].to_xarray()
    assert Series.of(dataset, **names) == Series.of(naive, **names)
    assert Series.of(table[["level", "pump"]], **names) == Series.of(y, u, "level", "pump")
    assert Series.of([frame, table], outputs="level")[1] == Series(y, outputs="level", time=days)
    assert Series.of(expected) is expected
    assert Series.of(y.tolist()) == Series(y)
    assert Series(dataset["level"], dataset["pump"]).clock == Series.of(naive, **names).clock


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((None,), TypeError, "expected a Series, an array or a DataFrame; got None"),
        (
            (pd.DataFrame({"a": [1.0]}),),
            ValueError,
            r"from_dataframe\(frame, outputs=\[...\].*; it has a",
        ),
        (
            (pl.DataFrame({"a": [1.0]}),),
            ValueError,
            r"from_dataframe\(frame, outputs=\[...\].*; it has a",
        ),
        ((pd.DataFrame({"a": [1.0]}), [1.0], "a"), ValueError, "u is for arrays"),
        ((Series([1.0]), None, "a"), ValueError, "leave them out for a Series"),
        (
            (xr.Dataset({"a": (("t", "s"), np.ones((2, 2)))}), None, "a"),
            ValueError,
            "one dimension",
        ),
    ],
)
def test_of_says_what_is_missing(arguments, error, message):
    with pytest.raises(error, match=message):
        Series.of(*arguments)


def test_experiments_are_matched_by_name_unit_and_step():
    u = np.arange(12.0).reshape(6, 2)
    first = Series(u[:, 0], u, outputs="level", inputs=["a", "b"], dt=0.1, units={"level": "m"})
    turned = Series(u[:, 0], u[:, ::-1], outputs="level", inputs=["b", "a"], dt=0.1)
    assert as_list([first, turned]) == [first, first]
    frame = pd.DataFrame({"b": u[:, 1], "other": 0.0, "level": u[:, 0], "a": u[:, 0]})
    assert align_rows(frame, first) == replace(first, dt=None)
    for changes, message in [
        ({"inputs": ["a", "c"]}, r"series 1 .*Missing: b; unknown: c \(nearest: b\)"),
        ({"outputs": "temperature", "units": {}}, "unknown: temperature"),
        ({"units": {"level": "cm"}}, "'level' is in cm, but in m before"),
        ({"dt": 10.0}, "rows are 10 apart, but those of the training data 0.1"),
        (
            {"clock": Clock.of(pd.date_range("2024", periods=6)), "dt": None},
            "rows are 86400 s apart",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            as_list([first, replace(first, **changes)])


@pytest.mark.parametrize("frequency", ["D", "B", "MS", "2QS", "h"])
def test_a_few_rows_of_a_calendar_have_its_step(frequency):
    dates = pd.date_range("2024-01-01", periods=60, freq=frequency, tz="Europe/Berlin")
    series = Series(np.arange(60.0), time=dates)
    for first in range(50):
        for length in (1, 2, 3, 6):
            rows = slice(first, first + length)
            few = Series(series.y[rows], time=dates[rows])
            assert align_rows(few, series) == few
    daily = Series(np.arange(20.0), time=pd.date_range("2024-03-01", periods=20))
    if frequency != "D":
        with pytest.raises(ValueError, match="apart, but those of the training data"):
            align_rows(daily, series)


def test_outputs_and_inputs_at_different_times_are_refused():
    days, hours = (pd.date_range("2024-01-01", periods=9, freq=step) for step in ("D", "h"))
    with pytest.raises(ValueError, match=r"step of 86400 s, u at 2024-01-01 00:00:00 with a step"):
        Series(pd.Series(np.ones(9), days), pd.Series(np.ones(9), hours))


def test_numbers_under_the_name_of_a_time_are_times():
    table = {"time": np.arange(5) / 10, "y": np.arange(5.0)}
    expected = Series(table["y"], time=table["time"])
    frame = pd.DataFrame(table)
    dataset = frame.set_index("time").to_xarray()
    for holder in (frame, frame.set_index("time"), pl.DataFrame(table), dataset):
        assert Series.of(holder, outputs="y") == expected
    assert Series(dataset["y"]) == expected
    assert Series.of(expected.to_dataframe(), outputs="y") == expected
    assert Series.from_dataframe(frame, "y", time=None).clock is None
    days = frame.assign(time=pd.date_range("2024-01-01", periods=5).astype(str))
    assert Series.of(days, outputs="y").dt == 86400


def test_as_list_of_one_or_several():
    series = example()
    assert as_list(series) == [series]
    assert as_list((series, series[1:])) == [series, series[1:]]
    with pytest.raises(ValueError, match="empty list"):
        as_list([])
    with pytest.raises(
        ValueError, match="series 1 is not compatible with series 0: y must have 2 columns"
    ):
        as_list([series, Series([1, 2])])


def test_check_trainable():
    rng = np.random.default_rng(0)
    good = Series(rng.normal(size=(10, 2)), outputs=["a", "b"])
    check_trainable([good, good])
    with pytest.raises(ValueError, match="at least 10 rows; series number 0 has 9"):
        check_trainable([good[1:]])
    with pytest.raises(ValueError, match="series 'short' has 9"):
        check_trainable([good, replace(good[1:], name="short")])
    for value, message in [
        (2.5, "output 'b' is constant, 2.5"),
        (np.nan, "output 'b' is missing in every row"),
    ]:
        flat = replace(good, y=np.column_stack([good.y[:, 0], np.full(10, value)]))
        with pytest.raises(ValueError, match=message):
            check_trainable([flat])
        check_trainable([flat, good])


def test_varying_ignores_missing_entries_and_rounding():
    rows = np.array(
        [[1.0, 1e9, 5.0, np.nan], [2.0, 1e9 + 1e-6, np.nan, np.nan], [1.0, 1e9, 5.0, np.nan]]
    )
    assert varying(rows).tolist() == [True, False, False, False]


def test_a_series_is_a_pytree_of_two_leaves():
    series = example()
    leaves = jax.tree.leaves(series)
    assert [leaf is array for leaf, array in zip(leaves, (series.y, series.u), strict=True)] == [
        True,
        True,
    ]
    renamed = replace(series, name="other", dt=None, outputs=["a", "b"])
    assert jax.tree.structure(series) == jax.tree.structure(renamed)
    assert [
        jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(series)
    ] == [
        ".y",
        ".u",
    ]
    doubled = jax.tree.map(lambda leaf: 2 * leaf, renamed)
    np.testing.assert_array_equal(doubled.y, 2 * series.y)
    assert (doubled.outputs, doubled.inputs, doubled.name) == (("y0", "y1"), ("u",), None)


def test_unflatten_checks_nothing():
    structure = jax.tree.structure(example())
    invalid = jax.tree.unflatten(structure, [jnp.full((2, 1), jnp.inf), None])
    assert invalid.outputs == ("y",)


def test_names_never_compile_twice():
    traces = []

    @jax.jit
    def total(series):
        traces.append(series)
        return jnp.nansum(series.y) + series.u.sum() + series.output_dim + len(series)

    series = example()
    assert total(series) == total(replace(series, name="other", inputs="valve", dt=3.0))
    assert len(traces) == 1
    assert isinstance(jax.jit(lambda s: s)(series), Series)


def test_vmap_over_a_stack_of_series():
    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[example()] * 3)
    assert jax.vmap(lambda series: jnp.nansum(series.y))(stack).shape == (3,)


def test_a_decimated_integrator_is_an_integrator():
    """y_t = y_{t−1} + u_t has, every k rows, y'_t = y'_{t−1} + k u'_t: the mean of the inputs is all that counts."""
    u = np.random.default_rng(0).normal(size=(23, 2))
    series = Series(np.cumsum(u, axis=0), u, dt=0.1, window=9)
    fewer = series.decimated(5)
    assert (len(fewer), fewer.dt, fewer.window) == (4, 0.5, 1)
    np.testing.assert_array_equal(fewer.y, series.y[[4, 9, 14, 19]])
    np.testing.assert_allclose(np.cumsum(5 * fewer.u, axis=0), fewer.y)
    assert series.decimated(3).window == 3
    assert series.decimated(1) == series
    for wrong in (0, 24, 1.5):
        with pytest.raises(ValueError, match="whole number from 1 to the 23 rows"):
            series.decimated(wrong)
