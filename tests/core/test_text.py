"""Text, JSON, validation of arguments, and messages about missing optional packages."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from gpssm.core.text import as_share, check_whole, jsonable, to_json
from programs import run_program

OPTIONAL = ("blackjax", "joblib", "distributed", "matplotlib", "pyarrow", "sktime")


def test_json_has_no_nan_and_no_numpy():
    value = {
        1: [math.nan, math.inf, -0.5, True, None, "ü"],
        "numpy": (np.float32(0.5), np.int64(3), np.bool_(True), np.array([[1.0, np.nan]])),
        "path": Path("a/b"),
        "function": print,
    }
    expected = {
        "1": [None, None, -0.5, True, None, "ü"],
        "numpy": [0.5, 3, True, [[1.0, None]]],
        "path": "a/b",
        "function": "<built-in function print>",
    }
    assert jsonable(value) == json.loads(to_json(value)) == expected
    assert "at 0x" not in jsonable(object())


def test_the_core_does_without_optional_packages():
    environment = {name: value for name, value in os.environ.items() if name != "GPSSM_DATA"}
    run_program("without_packages", *OPTIONAL, env=environment)


def test_whole_numbers():
    check_whole("thin", 1, 1)
    check_whole("window", None, 1, none="for all rows")
    for value in (0, 2.0, "3", True, None):
        with pytest.raises(
            ValueError, match=f"^thin must be a whole number of at least 1, got {value!r}\\.$"
        ):
            check_whole("thin", value, 1)
    with pytest.raises(
        ValueError, match="window must be a whole number of at least 1, or None for all rows; got 0"
    ):
        check_whole("window", 0, 1, none="for all rows")


def test_levels_are_shares():
    assert as_share(np.float64(0.9)) == 0.9
    for level, hint in ((1.5, r"For 1\.5 % give 0\.015"), (90, r"For 90 % give 0\.9")):
        with pytest.raises(
            ValueError, match=rf"a fraction between 0 and 1, .* got {level}\. {hint}"
        ):
            as_share(level)
    for level in (0, 1, -0.1, 100, np.nan, True, "0.9"):
        with pytest.raises(ValueError, match="a fraction between 0 and 1"):
            as_share(level)
