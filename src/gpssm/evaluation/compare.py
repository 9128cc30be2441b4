"""Compare forecasters on the same rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gpssm.core.metrics import LEVELS
from gpssm.core.table import Table, card
from gpssm.core.text import check_seed, check_shares, check_whole, in_line
from gpssm.data.columns import align_columns, as_frame
from gpssm.data.dataset import Dataset
from gpssm.data.series import Series
from gpssm.fitting.fit import fit
from gpssm.inference.progress import Mode, check_progress, tracked
from gpssm.posterior.forecast import Forecast
from gpssm.posterior.stack import Forecaster

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Averages over outputs in different units, which mean little.
MIXED_UNITS = {"rmse", "mae", "crps", "energy", *(f"width_{100 * level:g}" for level in LEVELS)}


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Forecasts of the same rows by name, and their scores.

    `print` shows a table in which a star marks the best score: the lowest, the highest `fit`, the
    coverage nearest to its level. Widths have no star, because narrow intervals are better only if
    they cover. With several outputs, the first table has `nrmse` and `ncrps`, errors in standard
    deviations of the training outputs, and each output has a table in its units.

    Parameters
    ----------
    forecasts : dict of str to Forecast
        The forecasts by name.
    actual : Series
        The actual rows.
    levels : tuple of float
        Levels of the intervals to score.
    """

    forecasts: Mapping[str, Forecast]
    actual: Series
    levels: tuple[float, ...]

    @cached_property
    def scores(self) -> dict[str, dict[str, float]]:
        """`Forecast.score` by name."""
        return {
            name: forecast.score(self.actual, self.levels)
            for name, forecast in self.forecasts.items()
        }

    @property
    def table(self) -> pd.DataFrame:
        """One row per forecast, one column per score."""
        return pd.DataFrame.from_dict(self.scores, orient="index")

    @property
    def by_output(self) -> pd.DataFrame:
        """One row per output and forecast, one column per score, in the units of the output."""
        rows = {
            (output, name): figures
            for name, forecast in self.forecasts.items()
            for output, figures in forecast.score_outputs(self.actual, self.levels).items()
        }
        index = pd.MultiIndex.from_tuples(rows, names=["output", ""])
        frame = pd.DataFrame(list(rows.values()), index=index)
        return frame.sort_index(level=0, sort_remaining=False)

    def plot(self, output: str | None = None, level: float = 0.9) -> "Figure":
        """Plot medians and central intervals of all outputs, or one of them, with the actual
        rows."""
        from gpssm.plots.forecasts import plot_comparison

        return plot_comparison(self.forecasts, self.actual, None, output, level)

    def __repr__(self) -> str:
        return in_line(f"Comparison({', '.join(self.forecasts)}; {len(self.actual)} steps)")

    def _repr_html_(self) -> str:
        return card(repr(self), tables={f"{len(self.actual)} steps ahead": self.table})

    def __str__(self) -> str:
        caption = f"{len(self.actual)} steps ahead; * the best"
        outputs = list(dict.fromkeys(self.by_output.index.get_level_values(0)))
        if len(outputs) < 2:
            return figure_table(self.table, "", caption, starred=True)
        total = self.table
        if "ncrps" in total:
            total = total.drop(columns=list(MIXED_UNITS.intersection(total)))
        pages = [figure_table(total, "", f"all outputs, {caption}", starred=True)]
        for name in outputs:
            frame = self.by_output.loc[name]
            pages.append(figure_table(frame, "", f"{name}, {caption}", starred=True))
        return "\n\n".join(pages)


def compare(
    candidates: Mapping[str, Forecaster],
    test: Any,
    *,
    horizon: int | None = None,
    levels: Sequence[float] = LEVELS,
    baselines: Sequence[str] = (),
    num_paths: int = 1000,
    seed: int = 0,
    progress: Mode = True,
) -> Comparison:
    """Score posteriors on the same test rows.

        fits = {"2 states": small, "4 states": large}
        print(gpssm.compare(fits, test, horizon=30, baselines=["arx", "last"]))

    Parameters
    ----------
    candidates : mapping of str to Posterior or Stack
        Posteriors by name; they forecast from the end of their data, with the inputs of `test`.
    test
        The rows that follow these data, in the user's units: a Series, a DataFrame of pandas or
        polars, or a Dataset of xarray.
    horizon : int, optional
        Number of steps; by default all rows of `test`.
    levels
        Levels of the intervals to score.
    baselines : sequence of str
        Methods to fit to the training data of the first posterior and to include in the comparison.
    num_paths : int
        Paths of each forecast.
    seed : int
        Seed of forecasts and baselines.
    progress
        True for a bar over the candidates, "plain" for one line each, False for no output.

    Returns
    -------
    Comparison
    """
    _check_names(candidates, baselines)
    check_progress(progress)
    check_whole("num_paths", num_paths, 1)
    check_whole("horizon", horizon, 1, none="for all rows of test")
    seed = check_seed(seed)
    levels = tuple(check_shares("levels", levels))
    table = as_frame(test)
    rows = single_series("compare", test) if table is None else table
    steps = len(rows) if horizon is None else horizon
    if steps > len(rows):
        raise ValueError(f"horizon is {steps}, and there are {len(rows)} test rows")
    train = next(iter(candidates.values())).dataset
    options: dict[str, Any] = {"delay": train.delay or 0, "seed": seed, "progress": False}
    forecasts = {}
    for name in tracked([*candidates, *baselines], progress, "compare"):
        candidate = candidates.get(name) or fit(list(train.experiments), method=name, **options)
        u = rows if candidate.dataset.inputs else None
        try:
            align_columns(rows, candidate.dataset.outputs, "y")
            forecasts[name] = candidate.forecast(steps, u, num_paths=num_paths, seed=seed)
        except ValueError as error:
            raise ValueError(f"{name} does not fit the test rows: {error}") from error
    if isinstance(rows, Series):
        y = align_columns(rows, train.outputs, "y")
        actual = replace(rows, y=y, outputs=train.outputs, units={}, window=None)[:steps]
    else:
        actual = Series.from_dataframe(rows, list(train.outputs))[:steps]
    return Comparison(forecasts, actual, levels)


def _check_names(candidates: Any, baselines: Any) -> None:
    """Raise unless there are named candidates, and baselines with different names."""
    if not isinstance(candidates, Mapping) or not candidates:
        raise ValueError(
            "the first argument of compare(posteriors, series) must be a dict with at least one "
            f"posterior by name; got {type(candidates).__name__}"
        )
    for name, candidate in candidates.items():
        if training_data(candidate) is None:
            raise TypeError(f"{name} must be a Posterior or a Stack; got {type(candidate)}")
    listed = isinstance(baselines, Sequence) and not isinstance(baselines, str)
    if not listed or not all(isinstance(name, str) for name in baselines):
        raise TypeError(f"baselines must be a list of names of methods; got {baselines!r}")
    if duplicates := [name for name in baselines if name in candidates]:
        raise ValueError(
            f"{', '.join(duplicates)} is already a candidate: leave it out of baselines, or "
            "rename it"
        )


def single_series(caller: str, rows: Any) -> Series:
    """Return one series from anything that `Series.of` accepts; raise if there are several."""
    series = Series.of(rows)
    if isinstance(series, list):
        raise TypeError(f"{caller} accepts one series at a time; got a list of {len(series)}")
    return series


def training_data(candidate: Any) -> Dataset | None:
    """Return the dataset of a posterior or a stack; None for other forecasters."""
    dataset = getattr(candidate, "dataset", None)
    return dataset if isinstance(dataset, Dataset) else None


def figure_table(frame: pd.DataFrame, first: str, caption: str, *, starred: bool = False) -> str:
    """Return scores as a text table without redundant columns.

    Omitted are the log score of the paper, the energy score if it equals the CRPS, all widths
    except the last, and errors in standard deviations if the table has them in the user's units.

    Parameters
    ----------
    frame : DataFrame
        One row per forecast, step or output, one column per score.
    first : str
        Heading of the first column.
    caption : str
        Explanation below the table.
    starred : bool
        Whether a star marks the best of each column.
    """
    widths = [name for name in frame if str(name).startswith("width")]
    hidden = {"nmll_paper", *widths[:-1]}
    if "energy" in frame and np.allclose(frame["energy"], frame["crps"], equal_nan=True):
        hidden.add("energy")
    if "rmse" in frame:
        hidden |= {"nrmse", "ncrps"}
    shown = frame.drop(columns=list(hidden.intersection(frame))).rename_axis(index=first)
    return str(Table.of(shown, starred=starred, caption=caption))
