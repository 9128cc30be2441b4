"""What a backtest found: forecasts from many rows of a series, and their scores by origin and by step ahead."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float, Int

from gpssm import metrics
from gpssm.comparison import print_figures
from gpssm.forecast import Forecast
from gpssm.series import Series
from gpssm.style import BLACK, BLUE, LINES, draw, legend, panels, shade

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Refit = Literal["never", "update", "fit"]
SHOWN = (1, 2, 5, 10, 20, 30, 50, 100)  # steps ahead in the printed table


@dataclass(frozen=True, eq=False, repr=False)
class Backtest:
    """Forecasts from every origin, and their scores. `print` it for two tables.

    An origin is the number of the first row of `series` that its forecast does not know; `forecasts[i]` belongs to
    `origins[i]`, and `figures[i]` is its score, empty where nothing was observed.
    """

    series: Series
    origins: Int[np.ndarray, " O"]
    forecasts: tuple[Forecast, ...]
    figures: tuple[dict[str, float], ...]
    levels: tuple[float, ...]
    refit: Refit

    @property
    def horizon(self) -> int:
        """H, the steps of each forecast."""
        return self.forecasts[0].horizon

    @property
    def table(self) -> "pd.DataFrame":
        """A row an origin, a column a figure; NaN where nothing was observed."""
        import pandas

        return pandas.DataFrame(list(self.figures), index=pandas.Index(self.origins, name="origin"))

    @property
    def scores(self) -> dict[str, float]:
        """The mean of each figure over the origins."""
        return {str(name): float(mean) for name, mean in self.table.mean().items()}

    def by_step(self) -> "pd.DataFrame":
        """rmse, mae, crps, and coverage and width at each level, by step ahead, over all origins and outputs."""
        import pandas

        actual = np.concatenate([self._actual(origin) for origin in self.origins], axis=1)
        paths = np.concatenate([forecast.paths for forecast in self.forecasts], axis=2)
        mean = paths.mean(0)
        columns: dict[str, Any] = {
            "rmse": metrics.rmse(mean, actual, by_step=True),
            "mae": metrics.mae(mean, actual, by_step=True),
            "crps": metrics.crps(paths, actual, by_step=True),
        }
        for level in self.levels:
            columns[f"coverage_{100 * level:g}"] = metrics.coverage(paths, actual, level, by_step=True)
            columns[f"width_{100 * level:g}"] = metrics.interval_width(paths, level, by_step=True)
        return pandas.DataFrame(columns, index=pandas.RangeIndex(1, self.horizon + 1, name="step"))

    def plot(self, output: str | None = None, level: float = 0.9) -> "Figure":
        """Forecasts along the series, as many as do not overlap; errors, and coverage, by step ahead.

        :param output: the output to show, the first if not given; errors and coverage are over all outputs.
        """
        names = self.series.outputs
        if output is not None and output not in names:
            raise ValueError(f"there is no output {output!r}; there are {', '.join(names)}")
        figure, axes = panels(3, height=1.9)
        self._plot_forecasts(axes[0, 0], output or names[0], level)
        steps = self.by_step()
        for style, name in zip(LINES, ("rmse", "mae", "crps"), strict=False):
            draw(axes[1, 0], steps.index.to_numpy(), steps[name].to_numpy(), label=name, **style)
        for style, level in zip(LINES[3:], self.levels, strict=False):
            label = f"coverage of {100 * level:g} %"
            values = steps[f"coverage_{100 * level:g}"].to_numpy()
            draw(axes[2, 0], steps.index.to_numpy(), values, label=label, **style)
            axes[2, 0].axhline(level, color=style["color"], linewidth=0.6, alpha=0.6)
        axes[1, 0].set(ylabel="error", xlabel="steps ahead", ylim=(0, None))
        axes[2, 0].set(ylabel="coverage", xlabel="steps ahead", ylim=(0, 1.03))
        legend(figure)
        return figure

    def _plot_forecasts(self, panel: Any, output: str, level: float) -> None:
        column = self.series.outputs.index(output)
        unit = self.series.dt or 1
        last = self.origins[0] - self.horizon
        for origin, forecast in zip(self.origins, self.forecasts, strict=True):
            if origin >= last + self.horizon:
                label = {"label": f"median and {100 * level:g} %"} if origin == self.origins[0] else {}
                times, last = unit * np.arange(origin, origin + self.horizon), origin
                low, high = (end[:, column] for end in forecast.interval(level))
                shade(panel, times, low, high)
                draw(panel, times, forecast.median[:, column], color=BLUE, **label)
                panel.axvline(times[0], color=BLUE, linewidth=0.5, linestyle=":")
        rows = np.arange(max(self.origins[0] - self.horizon, 0), self.origins[-1] + self.horizon)
        draw(panel, unit * rows, self.series.y[rows, column], color=BLACK, linewidth=0.8, label="actual")
        panel.set(ylabel=output, xlabel="row" if self.series.dt is None else "time")

    def _actual(self, origin: int) -> Float[np.ndarray, "H Dy"]:
        return self.series.y[origin : origin + self.horizon]

    def __repr__(self) -> str:
        first, last = self.origins[0], self.origins[-1]
        return (
            f"Backtest({len(self.origins)} origins, rows {first} to {last}, {self.horizon} steps, refit={self.refit})"
        )

    def __str__(self) -> str:
        origins = self.table.describe().loc[["mean", "std", "min", "50%", "max"]]
        chosen = sorted({step for step in SHOWN if step < self.horizon} | {self.horizon})
        steps = self.by_step().loc[chosen]
        tables = print_figures(origins, "", "over origins"), print_figures(steps, "step", "over origins, by step ahead")
        return "\n".join([repr(self), *tables])
