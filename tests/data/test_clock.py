"""Times of rows: found, kept through slices and files, and refused where they are not regular."""

import numpy as np
import pandas as pd
import pytest

from gpssm.data.clock import Clock
from gpssm.data.readers import read
from gpssm.data.series import Series


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
@pytest.mark.parametrize("frequency", ["10min", "h", "D", "B", "W", "MS"])
def test_rows_before_after_and_between_are_where_pandas_has_them(frequency, zone):
    # March has the hour that a day in Berlin does without.
    wanted = pd.date_range(
        "2024-01-31", periods=90, freq=frequency, tz=zone, name="when", unit="ns"
    )
    clock = Clock.of(wanted[:60], "when")
    pd.testing.assert_index_equal(clock.index(90), wanted, exact=False, check_names=True)
    pd.testing.assert_index_equal(clock.shifted(50).index(40), wanted[50:], exact=False)
    pd.testing.assert_index_equal(clock.every(3).index(30), wanted[2::3], exact=False)
    np.testing.assert_array_equal(
        clock.times(30, 60), wanted[60:].tz_convert(None) if zone else wanted[60:]
    )


def test_numbers_on_a_grid_may_be_rounded():
    assert Clock.of(np.round(np.arange(100) / 30, 2)[::3]).step == pytest.approx(0.1, rel=1e-2)
    np.testing.assert_array_equal(Clock(0.0, 0.1).times(4), [0.0, 0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([0, 1, 2, 4, 5], "row 3 .*is 4, 2 after the row before; most are 1 apart.*regrid=True"),
        ([0, 1, 1, 2, 3], "row 2 .*is 1, as the row before"),
        ([3, 2, 1, 0], "row 1 .*is 2, before that of the row before, 3"),
        ([0, 1, 2.4, 3, 4], "row 2 .*is 2.4, 1.4 after"),
        ([0, np.nan, 2], "row 1 .*is missing"),
        (
            ["2024-01-01", "2024-01-02", "2024-01-04", "2024-01-05"],
            "row 2 .*2024-01-04 .*172800 s after",
        ),
        (["2024-01-01", "soon"], "row 1 .*'soon', which is neither a number nor a date"),
    ],
)
def test_what_is_not_regular_is_named(times, message):
    with pytest.raises(ValueError, match=message):
        Series(np.arange(float(len(times))), time=times)


def test_day_and_month_are_told_apart_by_the_days_between():
    days = pd.date_range("2024-01-01", periods=40, unit="ns")
    for how in ("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%Y-%m-%d"):
        pd.testing.assert_index_equal(
            Clock.of(days.strftime(how)).index(40), days, check_names=False, exact=False
        )


def test_a_grid_has_gaps_for_missing_rows_and_a_rule_for_controls():
    times, y, u = [0.0, 4.0, 1.0, 1.0, 5.0], [0.0, 4.0, 1.0, 1.5, 5.0], [0.0, 4.0, 1.0, 1.0, 5.0]
    held = Series.on_grid(times, y, u)
    np.testing.assert_array_equal(held.y[:, 0], [0, 1.5, np.nan, np.nan, 4, 5])
    np.testing.assert_array_equal(held.u[:, 0], [0, 1, 1, 1, 4, 5])
    np.testing.assert_array_equal(
        Series.on_grid(times, y, u, controls="interpolate").u[:, 0], np.arange(6)
    )
    np.testing.assert_array_equal(held.time, np.arange(6))
    with pytest.raises(ValueError, match="1000001 rows for 4"):
        Series.on_grid([0, 1, 2, 1e6], np.arange(4.0))


def test_frames_keep_their_dates_through_slices_splits_and_files(tmp_path):
    dates = pd.date_range(
        "2024-03-30 22:00", periods=30, freq="h", tz="Europe/Berlin", name="when", unit="ns"
    )
    frame = pd.DataFrame({"level": np.arange(30.0), "pump": 1.0, "note": "fine"}, index=dates)
    series = Series.from_dataframe(frame, "level", "pump", units={"level": "m"})
    assert series == Series(frame[["level"]], frame[["pump"]], units={"level": "m"})
    train, test = series.split("2024-03-31 12:00")
    assert test.to_dataframe().index[0] == pd.Timestamp("2024-03-31 12:00", tz="Europe/Berlin")
    pd.testing.assert_frame_equal(
        pd.concat([train.to_dataframe(), test.to_dataframe()]),
        frame[["level", "pump"]],
        check_freq=False,
    )
    pd.testing.assert_index_equal(
        series[5:].decimated(5).to_dataframe().index, dates[9::5], exact=False
    )
    frame.to_csv(tmp_path / "tank.csv")
    assert (
        read(tmp_path / "tank.csv", "level", "pump", units={"level": "m"}, name=None).axis.step
        == series.axis.step
    )
    frame.drop(frame.index[7]).to_csv(tmp_path / "gap.csv")
    with pytest.raises(ValueError, match=r"gap.csv: the time in column 'when', row 7"):
        read(tmp_path / "gap.csv", "level", "pump")
    filled = read(tmp_path / "gap.csv", "level", "pump", regrid=True)
    assert np.flatnonzero(np.isnan(filled.y[:30])).tolist() == [7]
    assert read(tmp_path / "gap.csv", "level", "pump", time=None).clock is None


def test_a_sampling_time_counts_on_in_slices():
    series = Series(np.arange(10.0), dt=0.1)
    np.testing.assert_array_equal(series.split(4)[1].time, np.arange(4, 10) / 10)
    assert series[:4] == Series(np.arange(4.0), dt=0.1)
    with pytest.raises(ValueError, match=r"0\.1 apart by their times, and dt=2"):
        Series(np.arange(3.0), time=[0, 0.1, 0.2], dt=2)
    with pytest.raises(ValueError, match="cannot be split at '2024-01-01'"):
        series.split("2024-01-01")
