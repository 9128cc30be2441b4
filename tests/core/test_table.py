"""The table of results: what it looks like in a terminal, on a page, and as a data frame."""

import math

import numpy as np
import pandas as pd

from gpssm.core.table import Table, loss


def test_a_table_in_a_terminal():
    rows = [
        ("a [b]", "p30", 0.485312, 5),
        ("mean", "full", math.nan, None),
        ("last", "p30", "12.5*", np.float64(2e9)),
    ]
    columns = ["method", "protocol", "RMSE", "seeds"]
    table = Table(columns, rows, title="Furnace", caption="* the best", words=2)
    assert str(table).split("\n") == [
        "Furnace",
        "",
        " method  protocol    RMSE  seeds",
        " ───────────────────────────────",
        " a [b]   p30       0.4853      5",
        " mean    full           –      –",
        " last    p30        12.5*  2e+09",
        "",
        "* the best",
    ]
    long = Table(["words", "x"], [("many words " * 10, 1.0)])
    assert max(map(len, long.text(40).split("\n"))) <= 40


def test_a_table_on_a_page_is_escaped():
    class Bold:
        def __html__(self):
            return "<b>1</b>"

    page = Table(["<a>", "x"], [("<script>", 0.5), ("y", Bold())]).__html__()
    assert '<th scope="col">&lt;a&gt;</th>' in page
    assert '<th scope="row">&lt;script&gt;</th><td>0.5</td>' in page
    assert "<td><b>1</b></td>" in page


def test_a_data_frame_is_starred_by_column_and_comes_back():
    figures = {
        "rmse": [0.1, 0.2, math.nan],
        "fit": [1.0, 2.0, 3.0],
        "coverage_90": [1.0, 0.88, 0.5],
        "width_90": [1.0, 2.0, 3.0],
    }
    frame = pd.DataFrame(figures, index=["a", "b", "c"])
    starred = Table.of(frame, starred=True).to_dataframe()
    assert list(starred.columns) == ["rmse", "fit", "coverage 90", "width 90"]
    assert starred.map(lambda cell: cell.endswith("*")).to_numpy().tolist() == [
        [True, False, False, False],
        [False, False, True, False],
        [False, True, False, False],
    ]
    pd.testing.assert_frame_equal(
        Table.of(frame).to_dataframe(), frame.rename(columns=lambda name: name.replace("_", " ")),
        check_names=False,
    )  # fmt: skip
    long = Table.of(pd.DataFrame({"x": range(30)})).shortened(4)
    assert [row[0] for row in long.rows] == ["0", "1", "…", "28", "29"]


def test_a_table_in_markdown():
    lines = Table(["", "RMSE"], [("arx", 0.5)], title="Furnace").markdown.split("\n")
    assert lines == ["## Furnace", "", "|  | RMSE |", "| --- | ---: |", "| arx | 0.5 |", ""]


def test_what_is_minimised_of_a_figure():
    values = np.array([0.2, 0.8, 1.0])
    np.testing.assert_allclose(loss("coverage_90", values), [0.7, 0.1, 0.1])
    np.testing.assert_allclose(loss("fit", values), -values)
    np.testing.assert_allclose(loss("crps", values), values)
