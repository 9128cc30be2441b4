"""Preparation of data: trends, sampling times, several experiments."""

import numpy as np
import pytest

from gpssm.data.preparing import detrend, resample
from gpssm.data.series import Series

TIME = np.arange(400)


def test_a_line_is_taken_out_and_gaps_stay():
    wave = np.sin(2 * np.pi * TIME / 50)  # whole periods, but a little of it is along a line
    y = wave + 3 - 0.2 * TIME
    y[7] = np.nan
    found = detrend(Series(y, dt=2.0))
    seen = ~np.isnan(y)
    line = np.polynomial.Polynomial.fit(TIME[seen], wave[seen], 1)(TIME)
    np.testing.assert_allclose(found.y[seen, 0], (wave - line)[seen], atol=1e-10)
    assert np.isnan(found.y[7])
    assert detrend([Series(y)], order=0)[0].y[seen].mean() == pytest.approx(0, abs=1e-10)


def test_resampling_keeps_slow_signals_and_drops_fast_ones():
    slow, fast = np.sin(2 * np.pi * TIME / 80), np.sin(2 * np.pi * TIME * 0.45)
    series = Series(5 + slow + fast, slow, dt=0.1)
    found = resample(series, 0.25)
    middle = slice(10, -10)
    np.testing.assert_allclose(found.y[middle, 0], (5 + slow)[::4][middle], atol=0.01)
    np.testing.assert_allclose(found.u[middle, 0], slow[::4][middle], atol=0.01)
    assert (
        np.abs(series.y[::4, 0] - 5 - slow[::4]).max() > 0.9
    )  # every fourth row has the fast one, folded
    assert found.dt == pytest.approx(0.4)
    assert len(resample(series, 1.5)) == 600
