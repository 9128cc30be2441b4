"""Posteriors and forecasts side by side, judged on the same rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpssm.core.metrics import LEVELS
from gpssm.core.notebook import card
from gpssm.core.table import Table, loss
from gpssm.core.text import (
    check_choice,
    check_kind,
    check_seed,
    check_shares,
    check_whole,
    in_line,
)
from gpssm.data.dataset import align_columns
from gpssm.data.series import Series
from gpssm.fitting.fit import fit
from gpssm.inference.progress import Mode, check_progress, tracked
from gpssm.posterior.forecast import Forecast
from gpssm.posterior.posterior import Posterior

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MIXED = {
    "rmse",
    "mae",
    "crps",
    "energy",
    *(f"width_{100 * level:g}" for level in LEVELS),
}  # averages over all units


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Forecasts of the same rows under several names, and what `Forecast.score` makes of each.

    `print` it for a table in which a star marks the best figure: the lowest, the highest `fit`, the coverage nearest to
    its level. Widths have none: a narrow interval is better only if it covers. Where there are several outputs, the
    first table has `nrmse` and `ncrps`, errors in standard deviations of the training outputs, and each output a table
    of its own in its own units.
    """

    forecasts: Mapping[str, Forecast]
    actual: Series
    levels: tuple[float, ...]
    scores: Mapping[str, dict[str, float]]

    @property
    def table(self) -> "pd.DataFrame":
        """A row a name, a column a figure."""
        import pandas

        return pandas.DataFrame(list(self.scores.values()), index=list(self.scores))

    @property
    def by_output(self) -> "pd.DataFrame":
        """A row an output and name, a column a figure, each in that output's units."""
        import pandas

        rows = {
            (output, name): figures
            for name, one in self.forecasts.items()
            for output, figures in one.score_outputs(self.actual, self.levels).items()
        }
        index = pandas.MultiIndex.from_tuples(rows, names=["output", ""])
        return pandas.DataFrame(list(rows.values()), index=index).sort_index(
            level=0, sort_remaining=False
        )

    def best(self, figure: str | None = None) -> str:
        """The name with the best figure: by default the CRPS, in standard deviations of the training outputs."""
        figure = ("ncrps" if "ncrps" in self.table else "crps") if figure is None else figure
        check_choice("figure", figure, map(str, self.table))
        column = self.table[figure].to_numpy(float)
        if np.isnan(column).all():
            raise ValueError(f"there is no best {figure!r}: it is NaN for every forecast")
        return list(self.scores)[int(np.nanargmin(loss(figure, column)))]

    def plot(self, output: str | None = None, level: float = 0.9) -> "Figure":
        """Medians and central intervals over each other, with what happened; all outputs, or the one named."""
        from gpssm.plots.forecasts import plot_comparison

        return plot_comparison(self.forecasts, self.actual, None, output, level)

    def __repr__(self) -> str:
        return in_line(f"Comparison({', '.join(self.forecasts)}; {len(self.actual)} steps)")

    def _repr_html_(self) -> str:
        return card(repr(self), tables={f"{len(self.actual)} steps ahead": self.table})

    def __str__(self) -> str:
        caption = f"{len(self.actual)} steps ahead; * the best"
        return print_by_output(self.table, self.by_output, "", caption, starred=True)


def compare(
    candidates: Mapping[str, Posterior | Forecast],
    test: Any,
    *,
    horizon: int | None = None,
    levels: Sequence[float] = LEVELS,
    baselines: Sequence[str] = (),
    num_paths: int = 1000,
    seed: int = 0,
    progress: Mode = True,
) -> Comparison:
    """Judge posteriors, and forecasts made already, on the same test rows.

        print(gpssm.compare({"2 states": small, "4 states": large}, test, horizon=30, baselines=["arx", "last"]))

    :param candidates: by name. A posterior forecasts from the end of its data, under the controls of `test`.
    :param test: the rows that follow that data, in the user's units.
    :param horizon: number of steps; without it, that of the forecasts given, or else all rows of `test`.
    :param baselines: methods to fit to the training data of the first posterior, and to judge with the others.
    :param progress: True for a bar over what is to be compared, "plain" for a line each, False for silence.
    """
    if not isinstance(candidates, Mapping) or not candidates:
        raise ValueError(
            "nothing to compare: give a dict of at least one posterior or forecast by name"
        )
    check_progress(progress)
    check_whole("num_paths", num_paths, 1)
    if isinstance(baselines, str) or not isinstance(baselines, Sequence):
        raise TypeError(f"baselines is a list of names of methods; got {baselines!r}")
    for name in baselines:
        check_kind("a baseline", name, str)
    rows, seed, levels = Series.of(test), check_seed(seed), tuple(check_shares("levels", levels))
    check_whole("horizon", horizon, 1, none="for all rows of test")
    if not isinstance(rows, Series):
        raise TypeError(
            f"test must be one series; got a list of {len(rows)}. Compare on each by itself"
        )
    posterior = _trained(candidates, baselines)
    horizon, forecasts = _common_horizon(candidates, rows, horizon), {}
    for name in tracked([*candidates, *baselines], progress, "compare"):
        one = candidates.get(name)
        if one is None and posterior is not None:
            train, delay = list(posterior.dataset.experiments), posterior.dataset.delay or 0
            one = fit(train, method=name, delay=delay, seed=seed, progress=False)
        forecasts[name] = _forecast(name, one, rows, horizon, num_paths, seed)
    outputs = next(iter(forecasts.values())).outputs
    y = align_columns(rows, outputs, "y")
    actual = replace(rows, y=y, outputs=outputs, units={}, window=None)[:horizon]
    # All in the same units: those of the first that knows its training data.
    units = next(
        (
            dict(zip(one.outputs, one.scale, strict=True))
            for one in forecasts.values()
            if one.scale is not None
        ),
        None,
    )
    if units is not None:
        scales = {
            name: np.array([units[output] for output in one.outputs])
            for name, one in forecasts.items()
        }
        forecasts = {name: replace(one, scale=scales[name]) for name, one in forecasts.items()}
    scores = {name: forecast.score(actual, levels) for name, forecast in forecasts.items()}
    return Comparison(forecasts, actual, levels, scores)


def _trained(candidates: Mapping[str, Any], names: Sequence[str]) -> Posterior | None:
    """The posterior whose training data baselines of these names are fitted to."""
    posterior = next((one for one in candidates.values() if isinstance(one, Posterior)), None)
    if names and posterior is None:
        raise ValueError(
            "baselines are fitted to the training data of a posterior, and there is none to compare"
        )
    if taken := [name for name in names if name in candidates]:
        raise ValueError(
            f"{', '.join(taken)} is a candidate already: leave it out of baselines, or rename it"
        )
    return posterior


def _common_horizon(candidates: Mapping[str, Any], test: Series, horizon: int | None) -> int:
    """The number of steps that everything is judged on."""
    given = {name: one.horizon for name, one in candidates.items() if isinstance(one, Forecast)}
    wanted = {*given.values(), *([] if horizon is None else [horizon])}
    if len(wanted) > 1:
        found = ", ".join(f"{name} has {steps}" for name, steps in given.items())
        asked = "" if horizon is None else f", and horizon={horizon} was asked for"
        raise ValueError(
            f"forecasts must have the same horizon: {found}{asked}. Cut the longer ones, forecast[:n]"
        )
    common = wanted.pop() if wanted else len(test)
    if not 1 <= common <= len(test):
        raise ValueError(
            f"horizon must lie between 1 and the number of test rows, {len(test)}; got {common}"
        )
    return common


def _forecast(
    name: str, candidate: Any, test: Series, horizon: int, num_paths: int, seed: int
) -> Forecast:
    """The candidate's forecast of the test rows, whose outputs must be its own."""
    if not isinstance(candidate, Posterior | Forecast):
        raise TypeError(f"{name} must be a Posterior or a Forecast; got {type(candidate)}")
    known = candidate.dataset if isinstance(candidate, Posterior) else candidate
    try:
        align_columns(test, known.outputs, "y")
        if isinstance(candidate, Forecast):
            return candidate
        return candidate.forecast(
            horizon, test if known.inputs else None, num_paths=num_paths, seed=seed
        )
    except ValueError as error:
        raise ValueError(f"{name} does not fit the test rows: {error}") from error


def print_by_output(
    frame: "pd.DataFrame",
    by_output: "pd.DataFrame",
    first: str,
    caption: str,
    starred: bool = False,
) -> str:
    """A table of figures; of several outputs, their total in units of the training data, and a table for each."""
    outputs = list(dict.fromkeys(by_output.index.get_level_values(0)))
    if len(outputs) < 2:
        return print_figures(frame, first, caption, starred=starred)
    total = frame.drop(columns=list(MIXED.intersection(frame))) if "ncrps" in frame else frame
    pages = [print_figures(total, first, f"all outputs, {caption}", starred=starred)]
    pages += [
        print_figures(by_output.loc[name], first, f"{name}, {caption}", starred=starred)
        for name in outputs
    ]
    return "\n\n".join(pages)


def print_figures(frame: "pd.DataFrame", first: str, caption: str, starred: bool = False) -> str:
    """Figures as a text table, a row an index: all but those that say little more than another does.

    These are the paper's log score, the energy score where it is the CRPS, the widths but that of the last level, and
    errors in standard deviations where they stand in the user's units. A star marks the best of a column.
    """
    same = "energy" in frame and np.allclose(frame["energy"], frame["crps"], equal_nan=True)
    widths = [name for name in frame if str(name).startswith("width")]
    left = {
        "nmll_paper",
        *(["energy"] if same else []),
        *widths[:-1],
        *(["nrmse", "ncrps"] if "rmse" in frame else []),
    }
    shown = frame.drop(columns=list(left.intersection(frame))).rename_axis(index=first)
    return str(Table.of(shown, starred=starred, caption=caption))
