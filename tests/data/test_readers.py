import sys
import zipfile

import numpy as np
import pandas as pd
import pytest
import scipy.io
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gpssm.data.readers import read
from gpssm.data.series import Series
from programs import run_program

NUMBERS = st.floats(-1e12, 1e12) | st.floats(-1e-6, 1e-6)
TABLES = hnp.arrays(np.float64, st.tuples(st.integers(2, 6), st.just(3)), elements=NUMBERS)
NAMES = ["level", "pump rate", "flow"]


def rows(table, delimiter):
    return "".join(
        delimiter.join("" if np.isnan(x) else repr(float(x)) for x in row) + "\n" for row in table
    )


def text_writer(delimiter, header=True, ending="\n", encoding="utf-8", end_mark=""):
    def write(path, table):
        text = (delimiter.join(NAMES) + "\n" if header else "") + rows(table, delimiter)
        path.write_bytes(text.replace("\n", end_mark + ending).encode(encoding))

    return write


def named(table):
    return dict(zip(NAMES, table.T, strict=True))


WRITERS = {
    "comma.csv": text_writer(","),
    "semicolon.csv": text_writer(";"),
    "tab.csv": text_writer("\t"),
    "crlf.csv": text_writer(",", ending="\r\n"),
    "bom.csv": text_writer(",", encoding="utf-8-sig"),
    "trailing.csv": text_writer(",", end_mark=","),
    "bare.csv": text_writer(",", header=False),
    "tab.tsv": text_writer("\t"),
    "bare.tsv": text_writer("\t", header=False),
    "trailing.dat": text_writer("\t", header=False, end_mark="\t"),
    "named.dat": text_writer("\t", end_mark="\t"),
    "spaces.dat": text_writer("   ", header=False),
    "comma.txt": text_writer(","),
    "UPPER.TXT": text_writer(" ", header=False),
    "columns.mat": lambda path, table: scipy.io.savemat(
        path, {name.replace(" ", "_"): column for name, column in named(table).items()}
    ),
    "columns.npz": lambda path, table: np.savez(path, **named(table)),
    "columns.parquet": lambda path, table: pd.DataFrame(named(table)).to_parquet(path),
}


@pytest.mark.parametrize("file", WRITERS)
@settings(
    deadline=None, max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(table=TABLES)
def test_what_was_written_is_read_back(tmp_path, file, table):
    path = tmp_path / file
    WRITERS[file](path, table)
    series = read(path, [0, 2], [1], dt=0.5)
    np.testing.assert_allclose(series.y, table[:, [0, 2]], rtol=1e-15)
    np.testing.assert_allclose(series.u, table[:, [1]], rtol=1e-15)
    bare = file.startswith(("bare", "trailing.dat", "spaces", "UPPER"))
    assert series.outputs == (("column 0", "column 2") if bare else ("level", "flow"))
    assert (series.name, series.dt) == (path.stem, 0.5)
    if not bare:
        assert read(
            str(path), ["level", "flow"], "pump_rate" if path.suffix == ".mat" else "pump rate"
        ) == (read(path, [0, 2], 1))


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("blank", ["", "NaN", "NA", " "])
def test_missing_cells_are_nan(tmp_path, blank):
    series = read(
        write(tmp_path / "gaps.csv", f"a,b,c\n1,2,3\n{blank},5,{blank}\n7,8,9\n"), ["a", "c"], "b"
    )
    np.testing.assert_array_equal(series.y, [[1, 3], [np.nan, np.nan], [7, 9]])


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("blank-lines.csv", "\n\na,b\n\n1,2\n3,4\n\n", [2, 4]),
        ("decimal-comma.csv", "a;b\n1;2\n1,5;-2,25\n", [2, -2.25]),
        ("quoted.csv", '"a;1","b, in m"\n"1","2"\n3,4\n', [2, 4]),
        ("index.csv", ",b\n0,2\n1,4\n", [2, 4]),
        ("numeric-name.csv", "time,2020\n0.0,2\n0.1,4\n", [2, 4]),
        ("dates.csv", "2020-01-01,2\n2020-01-02,4\n", [2, 4]),
        ("dates-header.csv", "time,b\n2020-01-01,2\n2020-01-02,4\n", [2, 4]),
        ("starts-missing.csv", "NA,NA\n1,4\n", [np.nan, 4]),
        ("starts-blank.csv", ",\n1,4\n", [np.nan, 4]),
        ("one-row.csv", "1,2\n", [2]),
        ("padded.dat", "  1.0e+00\t  2.0e+00\t\n -1.0e+00\t  4.0e+00\t\n", [2, 4]),
        ("header.txt", "a b\n 1 2 \n 3   4\n", [2, 4]),
        ("empty-last-column.csv", "a,b,c\n1,2,\n3,4,\n", [2, 4]),
    ],
)
def test_layouts_found_in_the_wild(tmp_path, file, text, expected):
    np.testing.assert_array_equal(read(write(tmp_path / file, text), 1).y[:, 0], expected)


def test_a_single_column_is_enough(tmp_path):
    assert read(write(tmp_path / "one.csv", "level\n1\n2\n"), "level") == Series(
        [1, 2], name="one", outputs="level"
    )


def test_matrices_scalars_and_text_in_mat_and_npz(tmp_path):
    arrays = {
        "y": np.arange(6.0).reshape(3, 2),
        "u": np.arange(3)[None],
        "note": "text",
        "cube": np.zeros((2, 2, 2)),
    }
    scipy.io.savemat(tmp_path / "a.mat", arrays)
    np.savez(tmp_path / "a.npz", **arrays)
    expected = Series(arrays["y"], np.arange(3), name="a", outputs=["y0", "y1"], inputs="u")
    assert read(tmp_path / "a.mat", ["y0", "y1"], "u") == expected
    assert read(tmp_path / "a.npz", ["y0", "y1"], "u") == expected
    with pytest.raises(ValueError, match=r"no column 'cube'; it has 0: 'y0', 1: 'y1', 2: 'u'\."):
        read(tmp_path / "a.npz", "cube")


def test_columns_of_one_name_are_told_apart(tmp_path):
    path = write(tmp_path / "twice.csv", "a,a\n1,2\n")
    with pytest.raises(ValueError, match="0: 'a column 0', 1: 'a column 1'"):
        read(path, "a")
    assert read(path, [0], [1]).inputs == ("a column 1",)


def test_unknown_columns_list_the_known_and_the_nearest(tmp_path):
    path = write(tmp_path / "known.csv", "temperature,pump\n1,2\n")
    with pytest.raises(
        ValueError, match=r"no column 'temprature'.*1: 'pump'.*mean 'temperature'\?"
    ):
        read(path, "temprature")
    for number in (2, -1):
        with pytest.raises(ValueError, match=f"no column {number}; it has 0: 'temperature'"):
            read(path, number)


def test_a_wrong_delimiter_is_suspected(tmp_path):
    with pytest.raises(ValueError, match="Only one column was found: is the delimiter a comma"):
        read(write(tmp_path / "bars.csv", "a|b\n1|2\n"), "a")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3,warm\n", r"bad\.csv: column 'b', row 1 .*'warm'.*not a number"),
        ("a,b\n1,2\n,4\n", r"bad\.csv: column 'a', row 1 .*inputs must be known"),
        ("a,b\n1,inf\n", r"column 'b', row 0 .*infinite"),
        ("a,b\n1,2\n3\n", "line 3 has 1 of 2 cells.*cut short"),
        ("a,b\n1,2\n3\n4,5\n", "line 3 has 1 of 2 cells"),
        ("a,b\n1,2\n3,4,5\n", "line 3.*damaged"),
        ("a,b\n1,2,3\n4,5,6\n", "header names 2 columns, the rows have 3 cells"),
        ("a,b,c\n1,2\n4,5\n", "header names 3 columns, the rows have 2 cells"),
        ("a,b\n", "a header and no rows"),
        ("", "no lines"),
    ],
)
def test_bad_text_files(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read(write(tmp_path / "bad.csv", text), "b", "a")


def test_a_short_line_between_spaces_is_refused(tmp_path):
    with pytest.raises(ValueError, match="line 2 has 1 of 2 cells"):
        read(write(tmp_path / "short.dat", "1 2\n3\n4 5\n"), 1)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-8-sig", "latin-1", "cp1252"])
def test_text_in_any_encoding(tmp_path, encoding):
    path = tmp_path / "a.csv"
    path.write_bytes("température,b\n1,2\n3,4\n".encode(encoding))
    assert read(path, "température", "b", encoding=encoding).y[:, 0].tolist() == [1, 3]
    if encoding in ("utf-16", "utf-8-sig"):
        assert read(path, "température").y[:, 0].tolist() == [1, 3]
    elif encoding == "utf-16-le":
        with pytest.raises(ValueError, match=r"zero bytes, like UTF-16 .* encoding='utf-16-le'"):
            read(path, "b")
    else:
        with pytest.warns(UserWarning, match="not UTF-8 and was read as Latin-1"):
            assert read(path, 0).outputs == ("température",)


UNITS = "when,level,pump\n,[m],m3/h\n2024-01-01,1.5,2\n2024-01-02,2.5,3\n"


def test_a_row_of_units_below_the_header(tmp_path):
    series = read(write(tmp_path / "a.csv", UNITS), "level", "pump")
    assert series.units == {"level": "m", "pump": "m3/h"}
    assert series.y[:, 0].tolist() == [1.5, 2.5]
    assert series.clock.show(1) == "2024-01-02 00:00:00"
    assert read(tmp_path / "a.csv", "level", units={"level": "ft"}).units == {"level": "ft"}
    # What marks missing values is not the name of a unit.
    path = write(tmp_path / "b.csv", "a,b\nBad,Bad\n1,2\n")
    with pytest.raises(ValueError, match=r"row 0 .*'Bad'.*pass na='Bad' \(--na\)"):
        read(path, "a")
    np.testing.assert_array_equal(read(path, "a", na="Bad").y[:, 0], [np.nan, 1])


@pytest.mark.parametrize("above", [0, 1, 3])
@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_lines_above_the_header(tmp_path, above, mark):
    lines = [f"Export of station {number}" for number in range(above)]
    path = write(tmp_path / "a.csv", "\n".join([*lines, UNITS.replace(",", mark)]))
    if above:
        with pytest.warns(UserWarning, match=f"Lines? 1 .*{above if above > 1 else ''}.* skipped"):
            found = read(path, "level", "pump")
        assert found == read(path, "level", "pump", skip=above)
    else:
        found = read(path, "level", "pump")
    assert found.u[:, 0].tolist() == [2, 3]
    path = write(tmp_path / "wide.csv", "Station,5\n" * above + "a,b,c\n1,2,3\n4,5,6\n")
    assert read(path, "c", skip=above).y[:, 0].tolist() == [3, 6]
    if above:
        with pytest.raises(ValueError, match="pass their number as skip"):
            read(path, 0)


def test_marks_of_missing_values(tmp_path):
    path = write(tmp_path / "a.csv", "a,b\n1,2\n-9999,Bad\n-,4\n-9999.0,5\n")
    marks = ["-", "Bad", -9999]
    expected = [[1, 2], [np.nan, np.nan], [np.nan, 4], [np.nan, 5]]
    np.testing.assert_array_equal(read(path, ["a", "b"], na=marks).y, expected)
    frame = pd.DataFrame({"a": [1, -9999.0, -9999, -9999], "b": [2, -9999.0, 4, 5]})
    frame.to_parquet(tmp_path / "a.parquet")
    np.savez(tmp_path / "a.npz", y=frame.to_numpy())
    np.testing.assert_array_equal(read(tmp_path / "a.parquet", [0, 1], na=-9999).y, expected)
    np.testing.assert_array_equal(read(tmp_path / "a.npz", [0, 1], na="-9999").y, expected)


def test_thousands(tmp_path):
    path = write(tmp_path / "a.csv", 'a,b\n"1,234.5",2\n"-12,345,678",4\n')
    with pytest.raises(ValueError, match=r"row 0 .*'1,234.5'.* pass thousands=','"):
        read(path, "a")
    np.testing.assert_array_equal(read(path, "a", thousands=",").y[:, 0], [1234.5, -12345678])
    path = write(tmp_path / "b.csv", "a;b\n1.234,5;2\n2.000,0;3\n")
    np.testing.assert_array_equal(read(path, "a", thousands=".").y[:, 0], [1234.5, 2000])


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d.%m.%Y"])
def test_date_and_time_in_two_columns(tmp_path, form):
    dates = pd.date_range("2024-01-30 22:00", periods=8, freq="30min", name="Date")
    frame = pd.DataFrame(
        {"Date": dates.strftime(form), "Hour": dates.strftime("%H:%M"), "y": np.arange(8.0)}
    )
    frame.to_csv(tmp_path / "a.csv", index=False)
    for time in ("auto", ["Date", "Hour"], [0, 1]):
        series = read(tmp_path / "a.csv", "y", time=time)
        pd.testing.assert_index_equal(series.to_dataframe().index, dates, exact=False)
    assert Series.from_dataframe(frame, "y", time=["Date", "Hour"]).clock == series.clock
    assert Series.of(frame, outputs="y").clock == series.clock


def test_a_workbook(tmp_path):
    dates = pd.date_range("2024-01-01", periods=5, freq="h")
    frame = pd.DataFrame({"when": dates, "level": np.arange(5.0), "note": "fine"})
    frame.loc[2, "level"] = -9999
    path = tmp_path / "a.xlsx"
    frame.to_excel(path, index=False)
    series = read(path, "level", na=-9999)
    assert (series.dt, series.name) == (3600, "a")
    np.testing.assert_array_equal(series.y[:, 0], [0, 1, np.nan, 3, 4])
    apart = frame.assign(day=dates.normalize(), hour=dates.time).drop(columns="when")
    apart.to_excel(tmp_path / "two.xlsx", index=False)
    assert read(tmp_path / "two.xlsx", "level").dt == 3600
    head = pd.DataFrame([["Export", None], ["level", "flow"], ["m", "m3/h"], [1.0, 2.0], [3, 4]])
    with pd.ExcelWriter(tmp_path / "b.xlsx") as book:
        head.to_excel(book, sheet_name="Data", header=False, index=False)
        frame.to_excel(book, sheet_name="More", index=False)
    with (
        pytest.warns(UserWarning, match="'Data' was read, and 'More' ignored"),
        pytest.warns(UserWarning, match="Line 1 was skipped"),
    ):
        series = read(tmp_path / "b.xlsx", "level", "flow")
    assert series.units == {"level": "m", "flow": "m3/h"}
    np.testing.assert_array_equal(np.hstack([series.y, series.u]), [[1, 2], [3, 4]])
    assert read(tmp_path / "b.xlsx", "level", sheet="More", na=-9999).dt == 3600
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ValueError, match="damaged, cut short, or of another format"):
        read(path, 0)


def test_the_index_of_a_parquet_file_is_a_column_of_times(tmp_path):
    dates = pd.date_range("2024-01-01", periods=5, freq="h", name="when")
    pd.DataFrame({"y": np.arange(5.0)}, index=dates).to_parquet(tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", "y").dt == 3600


@pytest.mark.parametrize("file", ["columns.mat", "columns.npz", "columns.parquet"])
@pytest.mark.parametrize("kept", [0.0, 0.1, 0.6])
def test_binary_files_cut_short_are_refused(tmp_path, file, kept):
    path = tmp_path / file
    WRITERS[file](path, np.random.default_rng(0).normal(size=(100, 3)))
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    with pytest.raises(ValueError, match="damaged, cut short, or of another format"):
        read(path, 0)


def test_bad_choices(tmp_path):
    path = write(tmp_path / "a.csv", "a,b\n1,2\n")
    with pytest.raises(ValueError, match="column 'a' was chosen twice"):
        read(path, "a", 0)
    with pytest.raises(ValueError, match="at least one column"):
        read(path, [], "a")
    with pytest.raises(FileNotFoundError, match=r"no file .*absent\.csv"):
        read(tmp_path / "absent.csv", 0)
    with pytest.raises(ValueError, match=r"one of \.csv.*got '\.ods'. Save the table as .csv"):
        read(tmp_path / "a.ods", 0)
    with pytest.raises(ValueError, match="regrid needs a column of times, but none was found"):
        read(path, "a", regrid=True)
    np.savez(tmp_path / "lengths.npz", y=np.zeros(3), u=np.zeros(4))
    with pytest.raises(ValueError, match=r"equal numbers of rows; got \{'y': 3, 'u': 4\}"):
        read(tmp_path / "lengths.npz", "y", "u")


def test_without_pyarrow_the_error_is_about_pyarrow(tmp_path, monkeypatch):
    WRITERS["columns.parquet"](tmp_path / "a.parquet", np.zeros((2, 3)))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match="pyarrow"):
        read(tmp_path / "a.parquet", 0)


def test_a_million_rows_are_read(tmp_path):
    table = np.random.default_rng(0).integers(0, 1000, size=(10**6, 2))
    pd.DataFrame(table, columns=["a", "b"]).to_csv(tmp_path / "long.csv", index=False)
    assert len(read(tmp_path / "long.csv", "a", "b")) == 10**6


def test_importing_the_readers_leaves_the_parsers_alone():
    heavy = ("pandas", "scipy.io", "pyarrow")
    assert run_program("loaded", "gpssm.data.readers", *heavy) == "[]\n"


@pytest.mark.parametrize(
    ("file", "text", "said", "outputs", "rows"),
    [
        (
            "comment.dat",
            "# position force\n1 2\n3 4\n",
            "line 1 .*used as the header",
            "position",
            [1, 3],
        ),
        (
            "comment.csv",
            "% written by hand\n\n1,2\n3,4\n",
            "line 1 .*treated as comments",
            "column 0",
            [1, 3],
        ),
        (
            "comments.dat",
            "# one\n# two\n1 2\n3 4\n",
            "line 2 .*treated as comments",
            "column 0",
            [1, 3],
        ),
        ("marks.csv", "?,?\n1,2\n3,4\n", "line 1 .*used as the header", "? column 0", [1, 3]),
        (
            "words.csv",
            "broken,2.5\n1,2\n3,4\n",
            "line 1 .*used as the header.*'broken', '2.5'",
            "broken",
            [1, 3],
        ),
    ],
)
def test_a_doubtful_header_is_said(tmp_path, file, text, said, outputs, rows):
    with pytest.warns(UserWarning, match=said):
        series = read(write(tmp_path / file, text), 0)
    assert series.outputs == (outputs,)
    np.testing.assert_array_equal(series.y[:, 0], rows)


def test_comments_above_a_header_need_no_word(tmp_path):
    series = read(
        write(tmp_path / "both.csv", "# of Tuesday\nlevel,pump\n1,2\n3,4\n"), "level", "pump"
    )
    np.testing.assert_array_equal(series.u[:, 0], [2, 4])


@pytest.mark.parametrize("suffix", [".mat", ".npz"])
def test_a_matrix_that_lies_on_its_side_is_asked_about(tmp_path, suffix):
    path, arrays = tmp_path / f"wide{suffix}", {"data": np.zeros((2, 60)), "y": np.arange(5.0)}
    scipy.io.savemat(path, arrays) if suffix == ".mat" else np.savez(path, **arrays)
    for chosen in ("data", 0):
        with pytest.raises(
            ValueError, match="'data' has 2 rows and 60 columns, but each row must be a time step"
        ):
            read(path, chosen)
    assert len(read(path, "y")) == 5


def test_a_file_with_very_many_columns_is_refused(tmp_path):
    path = write(tmp_path / "wide.csv", (",".join(f"{n}" for n in range(100_000)) + "\n") * 3)
    with pytest.raises(ValueError, match="100000 columns, but each row must be a time step"):
        read(path, 0)
    wide = (
        ",".join(f"c{n}" for n in range(5000))
        + "\n"
        + (",".join("1" for n in range(5000)) + "\n") * 12
    )
    assert len(read(write(tmp_path / "many.csv", wide), "c4999")) == 12


def test_an_array_that_claims_more_than_the_file_has_is_never_made(tmp_path):
    path = tmp_path / "claims.npz"
    with zipfile.ZipFile(path, "w") as archive, archive.open("y.npy", "w") as member:
        header = {"descr": "<f8", "fortran_order": False, "shape": (2**50,)}
        np.lib.format.write_array_header_1_0(member, header)
        member.write(b"0" * 80)
    with pytest.raises(ValueError, match="has the shape"):
        read(path, 0)


def test_a_quoted_name_may_take_several_lines(tmp_path):
    path = tmp_path / "lines.csv"
    path.write_bytes(b'"a\nb","c\r\nd"\n1,2\n3,4\n')
    found = read(path, "a\nb", "c\r\nd")
    np.testing.assert_array_equal(np.hstack([found.y, found.u]), [[1, 2], [3, 4]])
