"""Delayed inputs: estimation, shifting and settings of delays."""

import numpy as np
import pytest

from gpssm.data.dataset import Dataset
from gpssm.data.delays import arriving, delays, find_lags
from gpssm.data.series import Series


@pytest.mark.parametrize("true", [0, 1, 7])
def test_delays_are_found_and_taken_out(true):
    rng = np.random.default_rng(true)
    u, y = rng.normal(size=(400, 2)), np.zeros(400)
    for t in range(1, 400):
        y[t] = (
            0.8 * y[t - 1]
            + (u[t - true, 0] if t >= true else 0)
            + 0.5 * u[t, 1]
            + 0.3 * rng.normal()
        )
    series = Series(y, u, inputs=["slow", "quick"], dt=0.5)
    found = delays(series)
    assert found.rows.to_dict() == {"slow": true, "quick": 0}
    assert found.time["slow"] == true / 2
    assert (found.gain["slow"] > 0) == (true > 0)
    turned = Dataset.of(series, delay=found.rows.to_dict()).acting[0][true:]
    np.testing.assert_array_equal(turned.u[:, 0], u[: 400 - true, 0])
    np.testing.assert_array_equal(turned.u[:, 1], u[true:, 1])
    np.testing.assert_array_equal(turned.time, series.time[true:])
    assert delays(turned).rows.to_dict() == {"slow": 0, "quick": 0}


def test_inputs_arrive_by_their_own_delays_whoever_knows_the_past():
    u = np.arange(10.0).reshape(5, 2)
    past = np.array([[-6.0, -5.0], [-4.0, -3.0], [-2.0, -1.0]])
    # Column j of row t is that of row t - lag: here three rows before, and in the same row.
    np.testing.assert_array_equal(arriving(u, (3, 0), past)[:, 0], [-6, -4, -2, 0, 2])
    np.testing.assert_array_equal(arriving(u, (3, 0), past)[:, 1], u[:, 1])
    # What is not known is as the first that is.
    past[:2] = np.nan
    np.testing.assert_array_equal(arriving(u, (3, 0), past)[:, 0], [-2, -2, -2, 0, 2])


def test_what_a_user_may_say_of_a_delay():
    series = Series(np.random.default_rng(0).normal(size=40), np.ones((40, 2)), inputs=["a", "b"])
    assert (
        find_lags([series], 2)
        == find_lags([series], [2, 2])
        == find_lags([series], {"b": 2, "a": 2})
        == (2, 2)
    )
    assert find_lags([series], {"b": 1}) == (0, 1)
    assert (
        find_lags([series], 0)
        == find_lags([series], "auto")
        == find_lags([Series(series.y)], "auto")
        == ()
    )
    for wrong, words in (
        ("soon", "'auto', a number of rows"), ({"c": 1}, "no input 'c'"), (-1, "0 or more"), (1.5, "0 or more"),
        ([1], "for each of a, b"), (40, "too long for series of 40"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            find_lags([series], wrong)
