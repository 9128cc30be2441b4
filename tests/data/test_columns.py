import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gpssm.data.columns import default_names, to_columns, where_first

TABLES = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 6), st.integers(1, 3)),
    elements=st.floats(-1e9, 1e9) | st.just(np.nan),
)
CONTAINERS = {
    "numpy": lambda table: table,
    "jax": jnp.asarray,
    "list": lambda table: table.tolist(),
    "pandas": pd.DataFrame,
    "nullable": lambda table: pd.DataFrame(table).convert_dtypes(),
    "xarray": lambda table: xr.DataArray(table, dims=("time", "column")),
    "masked": lambda table: np.ma.masked_invalid(table),
    "objects": lambda table: np.where(np.isnan(table), None, table.astype(object)),
}


@pytest.mark.parametrize("container", CONTAINERS)
@settings(deadline=None, max_examples=15)
@given(table=TABLES)
def test_every_container_gives_the_same_read_only_float64_copy(container, table):
    numbers, names = to_columns(CONTAINERS[container](table), None, "y")
    np.testing.assert_array_equal(numbers, table)
    assert numbers.dtype == np.float64
    assert not numbers.flags.writeable
    assert not np.shares_memory(numbers, table)
    assert len(names) == table.shape[1]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (pd.DataFrame({"a": [1, 2], "b": [3.0, 4.0]}), ("a", "b")),
        (pd.DataFrame([[1, 2]]), ("y0", "y1")),
        (pd.Series([1.0, 2.0], name="speed"), ("speed",)),
        (pd.Series([1.0, 2.0]), ("y",)),
        (xr.DataArray([[1.0, 2.0]], dims=("t", "c"), coords={"c": ["a", "b"]}), ("a", "b")),
        (xr.DataArray([[1.0, 2.0]], dims=("t", "c"), coords={"c": [3, 4]}), ("y0", "y1")),
        (xr.DataArray([1.0, 2.0], name="speed"), ("speed",)),
        ([[1, 2, 3]], ("y0", "y1", "y2")),
        (np.arange(4), ("y",)),
        (np.zeros((3, 0)), ()),
    ],
)
def test_names_are_those_of_the_container_or_defaults(values, names):
    assert to_columns(values, None, "y")[1] == names


def test_given_names_win_and_one_may_be_a_plain_string():
    frame = pd.DataFrame({"a": [1, 2]})
    assert to_columns(frame, "speed", "y")[1] == ("speed",)
    assert to_columns(frame, ["speed"], "y")[1] == ("speed",)


@pytest.mark.parametrize("names", [("a",), ("a", "b", "c"), ("a", "a")])
def test_names_must_be_as_many_as_columns_and_different(names):
    with pytest.raises(ValueError, match="2 columns and needs the same number of different names"):
        to_columns([[1, 2]], names, "y")


@pytest.mark.parametrize(
    ("bad", "shown"),
    [
        ("warm", "'warm'"),
        (pd.Timestamp("2020-01-02"), "2020-01-02"),
        (1 + 2j, r"1\+2j"),
        ("", "''"),
    ],
)
def test_a_cell_that_is_no_number_is_named(bad, shown):
    cells = np.array([[1.0, 2.0], [3.0, bad]], dtype=object)
    with pytest.raises(ValueError, match=rf"column 'b', row 1 .*{shown}.*not a number"):
        to_columns(cells, ["a", "b"], "y")


def test_dates_are_not_numbers():
    with pytest.raises(ValueError, match="not a number"):
        to_columns(pd.date_range("2020", periods=3), None, "y")


def test_booleans_and_numbers_as_text_are_numbers():
    np.testing.assert_array_equal(to_columns([True, False], None, "u")[0], [[1.0], [0.0]])
    np.testing.assert_array_equal(to_columns([["1.5"], ["-2"]], None, "u")[0], [[1.5], [-2.0]])


@pytest.mark.parametrize("values", [3.0, np.zeros((2, 2, 2))])
def test_scalars_and_cubes_are_refused(values):
    with pytest.raises(ValueError, match=r"shape \(T,\) or \(T, columns\)"):
        to_columns(values, None, "y")


def test_ragged_rows_are_refused():
    with pytest.raises(ValueError, match="same length"):
        to_columns([[1, 2], [3]], None, "y")


def test_default_names_of_what_has_no_shape_are_empty():
    assert default_names("y", object()) == ()
    assert default_names("y", jnp.float32(1.0)) == ()


def test_place_is_the_first_entry():
    assert where_first(np.array([[False, True], [True, True]]), ["a", "b"]).startswith(
        "column 'b', row 0"
    )
