"""Times of rows: detection, slices and files, and errors for irregular times."""

import warnings

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
        ([0, 1, 2, 4, 5], "row 3 .*is 4, 2 after the previous row; most steps are 1.*regrid=True"),
        ([0, 1, 1, 2, 3], "row 2 .*is 1, equal to that of the previous row"),
        (
            [3, 2, 1, 0],
            "rows are out of time order: .*row 1 .*is 2, before that of the previous row, 3",
        ),
        ([0, 1, 3, 2, 4], "rows are out of time order: .*row 3 .*is 2, before that"),
        (["2024-01-01", "2024-01-01", "2024-01-02"], "row 1 .*equal.* name the time zone"),
        ([0, 1, 2.4, 3, 4], "row 2 .*is 2.4, 1.4 after"),
        (np.cumsum([0.0, *[1.05] * 6, *[0.95] * 6]), "row 6 .*is 6.3, 0.3 off a grid"),
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


def on_grid(times, y, u=None, **options):
    columns = {"at": times, "y": y} | ({} if u is None else {"u": u})
    inputs = () if u is None else "u"
    return Series.from_dataframe(
        pd.DataFrame(columns), "y", inputs, time="at", regrid=True, **options
    )


def test_a_grid_has_gaps_for_missing_rows_and_a_rule_for_controls():
    times, y, u = [0.0, 4.0, 1.0, 1.0, 5.0], [0.0, 4.0, 1.0, 1.5, 5.0], [0.0, 4.0, 1.0, 1.0, 5.0]
    with pytest.warns(
        UserWarning,
        match=r"averaged: 5 rows fell on 4 points, the first at 1",
    ):
        held = on_grid(times, y, u)
    np.testing.assert_array_equal(held.y[:, 0], [0, 1.25, np.nan, np.nan, 4, 5])
    np.testing.assert_array_equal(held.u[:, 0], [0, 1, 1, 1, 4, 5])
    single = [0, 1, 2, 4]
    between = on_grid(
        *(np.array(part)[single] for part in (times, y, u)), fill_inputs="interpolate"
    )
    np.testing.assert_array_equal(between.u[:, 0], np.arange(6))
    np.testing.assert_array_equal(held.time, np.arange(6))
    with pytest.raises(ValueError, match="1000001 rows for 4"):
        on_grid([0, 1, 2, 1e6], np.arange(4.0))
    rows = pd.DataFrame({"t": [0, 1, 2], "y": np.arange(3.0)})
    with pytest.raises(ValueError, match=r"the times are numbers, so .*got '2s'"):
        Series.from_dataframe(rows, "y", regrid="2s")


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
    with pytest.raises(ValueError, match=r"0\.1 apart according to their times, but dt=2"):
        Series(np.arange(3.0), time=[0, 0.1, 0.2], dt=2)
    with pytest.raises(ValueError, match="cannot be split at '2024-01-01'"):
        series.split("2024-01-01")


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
@pytest.mark.parametrize("frequency", ["2MS", "2QS", "2YS", "2D", "3W", "5B", "2B", "7B", "12h"])
def test_every_other_row_of_several_months_or_days(frequency, zone):
    dates = pd.date_range("2024-03-01", periods=24, freq=frequency, tz=zone)
    series = Series(np.arange(24.0), time=dates)
    wanted = series.decimated(2).to_dataframe().index
    pd.testing.assert_index_equal(wanted, dates[1::2], exact=False, check_names=False)


@pytest.mark.parametrize("frequency", ["MS", "ME", "QE", "YE", "B", "W-WED", "D", "h"])
def test_calendars_need_nothing_that_pandas_will_drop(frequency):
    dates = pd.date_range("2024-01-31", periods=24, freq=frequency, tz="Europe/Berlin")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        series = Series(np.arange(24.0), time=dates).decimated(2)
        assert len(series.clock.shifted(3).index(5)) == 5


def test_dates_that_nanoseconds_cannot_count_are_refused():
    far = pd.date_range("3000-01-01", periods=5, unit="s")
    with pytest.raises(ValueError, match=r"dates outside 1677 to 2262.*numbers"):
        Series(np.arange(5.0), time=far)
    series = Series(np.arange(5.0), time=pd.date_range("2024-01-01", periods=5))
    with pytest.raises(ValueError, match="dates must not exceed 2262"):
        series.clock.times(10**6)
    months = Series(np.arange(5.0), time=pd.date_range("2261-01-01", periods=5, freq="MS"))
    with pytest.raises(ValueError, match="dates must not exceed 2262"):
        months.clock.times(100)


def test_an_hour_that_summer_time_skips_is_the_next_one():
    wall = pd.date_range("2024-03-25 02:30", periods=12)
    dates = wall.tz_localize("Europe/Berlin", nonexistent="shift_forward")
    series = Series(np.arange(12.0), time=dates)
    assert series.clock.calendar == "D"
    index = Series(np.arange(3.0), time=dates[:3]).clock.index(12)
    pd.testing.assert_index_equal(index, dates, exact=False, check_names=False)
    pd.testing.assert_index_equal(
        series.to_dataframe().index, dates, exact=False, check_names=False
    )


def test_seconds_since_1970_keep_their_fractions():
    times = 1.7e9 + 5e-4 * np.arange(1000)
    series = Series(np.arange(1000.0), time=times)
    assert len(np.unique(series.time)) == 1000
    np.testing.assert_allclose(series.time, times, rtol=0, atol=1e-5)
    assert len(set(series.clock.texts(1000))) == 1000


def test_one_reading_of_day_and_month_is_taken_and_said():
    months = pd.date_range("2024-01-01", periods=12, freq="MS")
    texts = months.strftime("%d/%m/%Y")
    frame = pd.DataFrame({"y": np.arange(12.0), "when": texts})
    with pytest.warns(
        UserWarning, match="month before the day, as 12 January 2024; .* 01 December 2024"
    ):
        series = Series.from_dataframe(frame, "y", time="when")
    assert series.dt == 86400
    series = Series.from_dataframe(frame, "y", time="when", dayfirst=True)
    pd.testing.assert_index_equal(
        series.to_dataframe().index, months, exact=False, check_names=False
    )
    by_year = frame.assign(when=months.strftime("%Y-%m-%d"))
    assert Series.from_dataframe(by_year, "y", time="when", dayfirst=True).clock == series.clock
    longer = pd.date_range("2024-01-01", periods=24, freq="MS")
    clock = Clock.of(longer.strftime("%d/%m/%Y"))
    pd.testing.assert_index_equal(clock.index(24), longer, exact=False, check_names=False)
    with pytest.raises(
        ValueError, match=r"row 1 .*'13/01/2024', .* nor a date like that of row 0, '12/01/2024'"
    ):
        Series.from_dataframe(
            pd.DataFrame({"y": [1.0, 2.0], "when": ["12/01/2024", "13/01/2024"]}),
            "y",
            time="when",
            dayfirst=False,
        )


def test_a_jittered_clock_has_no_gaps():
    rng = np.random.default_rng(0)
    times = np.arange(5000) + rng.uniform(-0.2, 0.2, 5000)
    series = on_grid(times, np.arange(5000.0))
    assert (len(series), series.dt) == (5000, 1.0)
    assert not np.isnan(series.y).any()
    dates = pd.Timestamp("2024-01-01") + pd.to_timedelta(times * 60, unit="s")
    assert on_grid(dates, np.arange(5000.0)).dt == 60
    gap = np.r_[times[:2000], times[2010:]]
    filled = on_grid(gap, np.arange(4990.0))
    assert np.flatnonzero(np.isnan(filled.y[:, 0])).tolist() == list(range(2000, 2010))


@pytest.mark.parametrize("step", ["D", "h", "90min", "10min", "1min", "5s", "100ms"])
@pytest.mark.parametrize("jitter", [0.0, 1e-3])
def test_a_grid_has_the_step_of_the_rows_whatever_is_missing(step, jitter):
    dates = pd.date_range("2024-02-01", periods=40, freq=step)
    noise = np.random.default_rng(0).normal(size=40)
    moved = dates + (dates[1] - dates[0]) * jitter * noise
    for rows in ([0, 1, 2, 12], [0, 2, 3, 4, 5, 9], np.setdiff1d(np.arange(40), [7, 8, 30])):
        filled = on_grid(moved[rows], np.asarray(rows, float))
        wanted = np.full(rows[-1] + 1, np.nan)
        wanted[rows] = rows
        np.testing.assert_array_equal(filled.y[:, 0], wanted)
        if not jitter:
            index = filled.to_dataframe().index
            pd.testing.assert_index_equal(
                index, dates[: rows[-1] + 1], exact=False, check_names=False
            )
        assert pd.Timedelta(seconds=filled.dt) == dates[1] - dates[0]


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
@pytest.mark.parametrize("frequency", ["MS", "ME", "2MS", "QS", "YS", "D", "2D"])
def test_a_grid_follows_the_calendar_of_its_dates(frequency, zone):
    dates = pd.date_range("2024-02-01", periods=60, freq=frequency, tz=zone)
    rows = np.setdiff1d(np.arange(60), [3, 20, 21, 40])
    filled = on_grid(dates[rows], rows.astype(float))
    pd.testing.assert_index_equal(
        filled.to_dataframe().index, dates, exact=False, check_names=False
    )
    assert np.flatnonzero(np.isnan(filled.y[:, 0])).tolist() == [3, 20, 21, 40]


def test_an_hour_that_occurs_twice_is_kept_in_its_time_zone():
    dates = pd.date_range("2024-10-26", periods=72, freq="30min", tz="Europe/Berlin")
    frame = pd.DataFrame({"y": np.arange(72.0), "when": dates.tz_localize(None).astype(str)})
    series = Series.from_dataframe(frame, "y", time="when", regrid=True, zone="Europe/Berlin")
    np.testing.assert_array_equal(series.y[:, 0], np.arange(72.0))
    pd.testing.assert_index_equal(
        series.to_dataframe().index, dates, exact=False, check_names=False
    )
    with pytest.warns(UserWarning, match=r"72 rows fell on 70 points.* zone='Europe/Berlin'"):
        Series.from_dataframe(frame, "y", time="when", regrid=True)
    with pytest.raises(ValueError, match=r"rows are out of time order: .*2024-10-27 02:00:00"):
        Series.from_dataframe(frame, "y", time="when")


def test_an_hour_that_occurs_twice_does_not_move_the_days_around_it():
    days = pd.date_range("2024-10-20 02:30", periods=12)
    second = days.tz_localize("Europe/Berlin", ambiguous=np.zeros(12, bool))
    series = Series(np.arange(12.0), time=second)
    assert series.clock.calendar == "D"
    index = series.to_dataframe().index
    assert (index == second).tolist() == [day.day != 27 for day in days]
