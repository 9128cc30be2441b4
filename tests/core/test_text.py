"""Text, JSON, validation of arguments, and messages about missing optional packages."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpssm.core.text import as_share, check_whole, jsonable, to_json

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
    code = f"""
import sys
for name in {OPTIONAL}:
    sys.modules[name] = None
import jax, numpy as np, gpssm
from gpssm.core import places
from gpssm.methods import METHODS
gpssm.fit, gpssm.plots, gpssm.benchmark
series = gpssm.Series(np.sin(np.arange(40.0)))
gpssm.fit(series, method="mean", num_draws=2, num_chains=1, progress=False).forecast(3, num_paths=4)
for package, call in {{
    "blackjax": lambda: METHODS["ffvd-nuts"].build(None, ()),
    "joblib": lambda: list(places.run_processes([], None, 2)),
    "distributed": lambda: list(places.run_cluster([], None, "")),
    "matplotlib": lambda: gpssm.plots.plot_series(series),
    "sktime": lambda: gpssm.sktime,
}}.items():
    try:
        call()
    except ImportError as error:
        assert f"pip install {{package}}" in str(error), error
    else:
        raise AssertionError(package)
"""
    environment = {name: value for name, value in os.environ.items() if name != "GPSSM_DATA"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


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
