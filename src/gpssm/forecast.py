"""A forecast: paths of future outputs in the user's units, and what can be read off them.

The paths are draws from p(y_{T+1:T+H} | data), one function draw a path, so that every figure of a forecast is a
statistic over paths: nothing is assumed Gaussian.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from gpssm.alignment import aligned
from gpssm.metrics import central_interval, score
from gpssm.style import BLACK, BLUE, GREY, draw, house, legend, panels, shade

LEVELS = (0.5, 0.9)
SOME, MANY = 0.05, 0.5  # shares of paths that left, above which a note says so, and says it louder


@dataclass(frozen=True, eq=False)
class ForecastDiagnostics:
    """How far a forecast can be trusted, step by step.

    `left_by_step` is the share of the paths that had left the region the model knows by each step (or were not finite,
    where paths are not replaced), and `novelty` the mean over living paths of B(z)/k(z, z): the share of the prior
    variance of f that the data leave open, 0 where f is known and 1 far from all data. NaN where no path lives.
    """

    left_by_step: Float[np.ndarray, " H"]
    novelty: Float[np.ndarray, " H"]
    replaced: bool = True  # whether paths that left were continued by others

    @property
    def share_left(self) -> float:
        """The share of the paths that left before the end."""
        return float(self.left_by_step[-1])

    @property
    def notes(self) -> tuple[str, ...]:
        """In plain words, what to distrust; empty when there is nothing."""
        share, steps = self.share_left, len(self.left_by_step)
        if share > 0 and not self.replaced:
            return (f"{share:.1%} of the paths overflowed within {steps} steps. Leave bounds at a number.",)
        if share <= SOME:
            return ()
        notes = [
            f"{share:.0%} of the paths left the region the model knows within {steps} steps. The forecast is that of "
            "the paths that stayed."
        ]
        if share > MANY:
            notes.append(
                "Most paths left: do not trust this forecast at long horizons. Shorten the horizon, check that u stays "
                "in the range it had in training, or fit with mean='linear' or a smaller state_dim."
            )
        if share == 1:
            notes.append(
                f"No path was left from step {np.argmax(self.left_by_step == 1) + 1} on: there is no forecast from "
                "there, and the last values are held."
            )
        return tuple(notes)


@dataclass(frozen=True, eq=False, repr=False)
class Forecast:
    """S paths of H steps of the outputs, (S, H, Dy), in the user's units.

        forecast = posterior.forecast(u=future)
        forecast.mean, forecast.interval(0.9)
        forecast.plot(actual=test)

    `start` is the row number of the first step, counted from the first row of the series it follows, and `u` (H, Du)
    are the controls it was made with. `moments` has mean and variance (S, H, Dy) of p(y_t | the path's state), and
    `moments_ahead` those of p(y_t | its state before), whose mixture over paths is the smoother.
    """

    paths: Float[np.ndarray, "S H Dy"]
    outputs: tuple[str, ...]
    start: int
    u: Float[np.ndarray, "H Du"]
    inputs: tuple[str, ...] = ()
    dt: float | None = None
    moments: tuple[Float[np.ndarray, "S H Dy"], Float[np.ndarray, "S H Dy"]] | None = None
    moments_ahead: tuple[Float[np.ndarray, "S H Dy"], Float[np.ndarray, "S H Dy"]] | None = None
    diagnostics: ForecastDiagnostics | None = None

    @property
    def horizon(self) -> int:
        """H, the number of steps."""
        return self.paths.shape[1]

    @property
    def steps(self) -> np.ndarray:
        """The row numbers (H,) of the steps in the series that the forecast follows."""
        return self.start + np.arange(self.horizon)

    @property
    def mean(self) -> Float[np.ndarray, "H Dy"]:
        """The mean over paths."""
        return np.mean(self.paths, axis=0)

    @property
    def std(self) -> Float[np.ndarray, "H Dy"]:
        """The standard deviation over paths."""
        return np.std(self.paths, axis=0)

    @property
    def median(self) -> Float[np.ndarray, "H Dy"]:
        """The median over paths."""
        return self.quantile(0.5)

    def quantile(self, q: float | Sequence[float]) -> Float[np.ndarray, "*q H Dy"]:
        """Quantiles over paths: (H, Dy) of one probability, (len(q), H, Dy) of several.

        Probability q is at the q (S + 1)-th smallest path, interpolated, as in `gpssm.metrics.central_interval`.
        """
        return np.quantile(self.paths, q, axis=0, method="weibull")

    def interval(self, level: float = 0.9) -> tuple[Float[np.ndarray, "H Dy"], Float[np.ndarray, "H Dy"]]:
        """The central interval that holds the share `level` of the paths at each step: (low, high)."""
        return central_interval(self.paths, level)

    def to_dataframe(self, levels: Sequence[float] = LEVELS) -> Any:
        """A pandas DataFrame with a row a step: mean, std and the limits of the central intervals, e.g. `level 5%`."""
        import pandas

        limits = sorted({0.5, *(limit for level in levels for limit in ((1 - level) / 2, (1 + level) / 2))})
        names = ["mean", "std", *(f"{100 * limit:g}%" for limit in limits)]
        values = np.concatenate([self.mean[None], self.std[None], self.quantile(limits)])
        time = {} if self.dt is None else {"time": self.steps * self.dt}
        columns = {
            f"{output} {name}": values[row, :, j]
            for j, output in enumerate(self.outputs)
            for row, name in enumerate(names)
        }
        return pandas.DataFrame(time | columns, index=pandas.Index(self.steps, name="step"))

    def score(self, actual: Any, levels: Sequence[float] = (0.5, 0.8, 0.9)) -> dict[str, Any]:
        """How good it was: `gpssm.metrics.score` of the paths against the first H rows of what happened."""
        actual, mixture = self._rows(actual), self.moments_ahead or self.moments
        return score(self.paths, actual, levels=tuple(levels), moments=self.moments, mixture=mixture)

    @house()
    def plot(self, actual: Any = None, history: Any = None, levels: Sequence[float] = LEVELS, ax: Any = None) -> Any:
        """A fan of intervals around the median, one panel an output; needs matplotlib. Gives back the figure.

        :param actual: what happened, in black: a Series or an array of at least H rows.
        :param history: what came before, in grey: a Series or an array that ends where the forecast starts; as many
            of its last rows as are twice the horizon are shown.
        :param ax: axes to draw into, one an output, of pyplot for instance: without it nothing of pyplot is used.
        """
        width = len(self.outputs)
        axes = np.ravel(panels(width, height=2.1, sharex=True)[1] if ax is None else ax)
        if len(axes) != width:
            raise ValueError(f"ax must hold one pair of axes an output, {width} in all; got {len(axes)}")
        for panel, output in zip(axes, self.outputs, strict=True):
            panel.set_ylabel(output)
        axes[-1].set_xlabel("row" if self.dt is None else "time")
        if history is not None:
            before = aligned(history, self.outputs, "y")[-2 * self.horizon :]
            self._draw(axes, np.arange(-len(before), 0), before, color=GREY, label="history")
        for rank, level in enumerate(sorted(levels, reverse=True)):
            self._shade(axes, level, alpha=min(0.2 + 0.15 * rank, 0.6))
        steps = np.arange(self.horizon)
        self._draw(axes, steps, self.median, color=BLUE, label="median")
        if actual is not None:
            marks = {"linewidth": 0.8, "marker": ".", "markersize": 3}
            self._draw(axes, steps, self._rows(actual), color=BLACK, label="actual", **marks)
        if ax is None:
            legend(axes[0].figure)
        else:
            axes[0].legend()
        return axes[0].figure

    def _draw(self, axes: Any, steps: np.ndarray, values: Float[np.ndarray, "N Dy"], **style: Any) -> None:
        """A line a panel; step 0 is the forecast's first."""
        for panel, column in zip(axes, values.T, strict=True):
            draw(panel, (self.start + steps) * (self.dt or 1), column, **style)

    def _shade(self, axes: Any, level: float, alpha: float) -> None:
        for panel, low, high in zip(axes, *(limit.T for limit in self.interval(level)), strict=True):
            shade(panel, self.steps * (self.dt or 1), low, high, alpha=alpha, label=f"{100 * level:g} %")

    def _rows(self, actual: Any) -> Float[np.ndarray, "H Dy"]:
        """The first H rows of what happened."""
        values = aligned(actual, self.outputs, "y")
        if len(values) < self.horizon:
            raise ValueError(
                f"the forecast has {self.horizon} steps and needs as many rows of what happened; got {len(values)}. "
                f"Cut the forecast, forecast[:{len(values)}], or give more rows"
            )
        return values[: self.horizon]

    def __getitem__(self, rows: slice) -> "Forecast":
        if not isinstance(rows, slice):
            raise TypeError(f"a Forecast takes slices, forecast[a:b]; got {rows!r}. For one step use .paths[:, t]")
        first, stop, step = rows.indices(self.horizon)
        if step != 1 or first >= stop:
            raise ValueError(f"a slice of the {self.horizon} steps must hold some and skip none; got {rows}")
        kept = slice(first, stop)
        shown = self.diagnostics
        return replace(
            self,
            paths=self.paths[:, kept],
            start=self.start + first,
            u=self.u[kept],
            moments=self.moments and (self.moments[0][:, kept], self.moments[1][:, kept]),
            moments_ahead=self.moments_ahead and (self.moments_ahead[0][:, kept], self.moments_ahead[1][:, kept]),
            diagnostics=shown and replace(shown, left_by_step=shown.left_by_step[kept], novelty=shown.novelty[kept]),
        )

    def __repr__(self) -> str:
        return f"Forecast({self.horizon} steps from row {self.start}, {len(self.paths)} paths, outputs={self.outputs})"

    def __str__(self) -> str:
        notes = self.diagnostics.notes if self.diagnostics else ()
        table = self.to_dataframe((0.9,)).to_string(max_rows=12, float_format="{:.4g}".format)
        return "\n".join([repr(self), table, *(f"note: {note}" for note in notes)])
