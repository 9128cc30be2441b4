"""Columns by name where there are names, by position where there are none, and plain words where neither works."""

import numpy as np
import pandas as pd
import pytest

from gpssm.data.align import align_columns, future_inputs
from gpssm.data.series import Series

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
    np.testing.assert_array_equal(align_columns(Series(VALUES, np.ones(3)), ("a", "b"), "y"), VALUES)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (VALUES[:, :1], "u must have 2 columns: pump, valve; got 1"),
        (pd.DataFrame(VALUES, columns=["pump", "vlave"]), r"Missing: valve; unknown: vlave \(nearest: valve\)"),
        (pd.DataFrame(VALUES[:, :1], columns=["pump"]), "Missing: valve; unknown: none"),
        (Series(np.zeros(3), np.ones((3, 3)), inputs=[*NAMES, "x"]), "Missing: none; unknown: x"),
    ],
)
def test_wrong_columns_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        align_columns(given, NAMES, "u")


def test_a_model_without_controls_says_so():
    with pytest.raises(ValueError, match="the model has no u; got 2"):
        future_inputs(VALUES, (), None, 5)
    assert future_inputs(None, (), 4, 5).shape == (4, 0)
    assert future_inputs(None, (), None, 5).shape == (5, 0)
    assert future_inputs(np.zeros((7, 0)), (), None, 5).shape == (7, 0)


def test_the_horizon_cuts_and_its_absence_takes_all():
    assert len(future_inputs(VALUES, NAMES, 2, 5)) == 2
    assert len(future_inputs(VALUES, NAMES, None, 5)) == 3
