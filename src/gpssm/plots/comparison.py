"""Several forecasts of the same thing."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpssm.core.text import as_share, check_kind, check_output
from gpssm.data.columns import align_columns
from gpssm.plots.quantities import LEVEL
from gpssm.plots.style import (
    BLACK,
    DOTTED,
    GREY,
    LINES,
    MARKERS,
    draw,
    in_house_style,
    legend,
    panels,
    shade,
    time_axis,
    with_unit,
)
from gpssm.posterior.forecast import Forecast

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BANDS = 3  # forecasts up to which bands are drawn; of more they hide each other


@in_house_style()
def plot_comparison(
    forecasts: Mapping[str, Forecast],
    actual: Any = None,
    history: Any = None,
    output: str | None = None,
    level: float = LEVEL,
) -> "Figure":
    """Medians of several forecasts over what happened, with bands of `level` where they are three or fewer.

    :param forecasts: by the name of the method, all from the same row on.
    :param actual, history: as in `Forecast.plot`.
    :param output: the one to show; all without it.
    """
    if not isinstance(forecasts, Mapping) or not forecasts:
        raise ValueError("plot_comparison needs at least one forecast by name; got none")
    for name, one in forecasts.items():
        check_kind(f"the forecast {name!r}", one, Forecast)
    first, level = next(iter(forecasts.values())), as_share(level)
    check_output(output, first.outputs)
    shown = first.outputs if output is None else (output,)
    figure, axes = panels(len(shown), height=2.1, sharex=True)
    before = (
        None
        if history is None
        else align_columns(history, first.outputs, "y")[-2 * first.horizon :]
    )
    after = None if actual is None else align_columns(actual, first.outputs, "y")[: first.horizon]
    for panel, name in zip(axes[:, 0], shown, strict=True):
        column = first.outputs.index(name)
        if before is not None:
            times, _ = time_axis(len(before), first.axis, first.start - len(before))
            draw(panel, times, before[:, column], color=GREY, linewidth=1, label="history")
        if after is not None:
            times, _ = time_axis(len(after), first.axis, first.start)
            draw(panel, times, after[:, column], color=BLACK, label="actual", **DOTTED)
        panel.set_ylabel(with_unit(name, first.units))
        panel.margins(x=0.01)
    for number, (name, forecast) in enumerate(forecasts.items()):
        style, steps = (
            LINES[number % len(LINES)],
            time_axis(forecast.horizon, forecast.axis, forecast.start)[0],
        )
        marks = {
            "marker": MARKERS[number % len(MARKERS)],
            "markevery": max(forecast.horizon // 8, 1),
        }
        low, high = forecast.interval(level)
        for panel, output in zip(axes[:, 0], shown, strict=True):
            column = forecast.outputs.index(output)
            if len(forecasts) <= BANDS:
                shade(
                    panel, steps, low[:, column], high[:, column], color=style["color"], alpha=0.15
                )
            draw(panel, steps, forecast.median[:, column], **style, **marks, label=name)
    axes[-1, 0].set_xlabel(time_axis(1, first.axis)[1])
    legend(figure)
    return figure
