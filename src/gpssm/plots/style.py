"""The common style of all figures: colours, sizes and basic elements.

Colours are those of Okabe and Ito, which colour-blind readers can distinguish. Lines also differ in
line style or marker, so that figures can be printed in grey. Figures are plain
`matplotlib.figure.Figure` objects without the global state of pyplot. matplotlib is imported when
the first figure is drawn.
"""

import functools
import inspect
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np
from jaxtyping import Float, Int

from gpssm.core.arguments import check_arguments
from gpssm.core.text import check_installed, check_kind, printable
from gpssm.data.clock import Clock
from gpssm.posterior.forecast import Forecast

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE = "#0072b2"
VERMILION = "#d55e00"
GREEN = "#009e73"
ORANGE = "#e69f00"
BLACK = "#000000"
GREY = "#777777"
LIGHT = "#e4e4e4"
LINES = tuple(
    {"color": color, "linestyle": line}
    for color, line in zip(
        (BLUE, VERMILION, GREEN, "#cc79a7", ORANGE, "#56b4e9"),
        (
            "-",
            (0, (5, 1.5)),
            (0, (5, 1.5, 1, 1.5)),
            (0, (1, 1.2)),
            (0, (8, 2)),
            (0, (3, 1, 1, 1, 1, 1)),
        ),
        strict=True,
    )
)
LEVEL = 0.9  # of bands
P = ParamSpec("P")
MARKERS = ("o", "s", "D", "^", "v", "X")
DOTTED = {"linewidth": 0.8, "marker": ".", "markersize": 3}  # data drawn over a forecast
HALF = 3.5  # inches, the width of one column of a page
FULL = 7.0  # the width of two columns
RC: dict[Any, Any] = {
    "font.size": 8.5,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "figure.dpi": 100,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.edgecolor": "#555555",
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "hatch.linewidth": 0.5,
    "image.cmap": "cividis",
}


@contextmanager
def in_house_style() -> Iterator[None]:
    """Apply the style within a context; also a decorator, `@in_house_style()`."""
    check_installed("a figure", "matplotlib")
    import matplotlib as mpl

    with mpl.rc_context(RC):
        yield


def figure_of(*kinds: type) -> "Callable[[Callable[P, Figure]], Callable[P, Figure]]":
    """Decorate a function that plots an instance of one of these classes, its first argument.

    The figure is in the house style, and gets a legend.
    """

    def decorate(function: "Callable[P, Figure]") -> "Callable[P, Figure]":
        name = next(iter(inspect.signature(function).parameters))
        function = check_arguments(function)

        @functools.wraps(function)
        def draw_figure(*args: P.args, **options: P.kwargs) -> "Figure":
            if kinds:
                check_kind(name, args[0] if args else options.get(name), *kinds)
            with in_house_style():
                figure = function(*args, **options)
                legend(figure)
                return figure

        return draw_figure

    return decorate


def panels(
    rows: int,
    columns: int = 1,
    *,
    width: float = FULL,
    height: float = 1.5,
    xlabel: str = "",
    ylabels: Iterable[str] = (),
    **layout: Any,
) -> tuple["Figure", np.ndarray]:
    """Return a figure with a grid of axes.

    Parameters
    ----------
    rows, columns
        The shape of the grid.
    width, height
        Width of the figure and height of a row, in inches.
    xlabel, ylabels
        Label of the axes of the last row, and labels of the axes of the first column.
    **layout
        Arguments of `subplots`.
    """
    from matplotlib.figure import Figure

    with in_house_style():
        figure = Figure(figsize=(width, height * rows + 0.5), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **layout)
    for panel in axes.flat:
        # Ticks are created when a figure is drawn, after the context has ended.
        panel.tick_params(labelsize=RC["xtick.labelsize"], width=RC["axes.linewidth"], length=3)
        panel.grid(True, color=RC["grid.color"], linewidth=RC["grid.linewidth"])
    for panel in axes[-1]:
        panel.set_xlabel(xlabel)
    for panel, label in zip(axes[:, 0], ylabels, strict=False):
        panel.set_ylabel(label)
    figure.align_ylabels()
    # Notebooks use this method; pyplot shows its own figures.
    setattr(figure, "_repr_png_", functools.partial(to_png, figure))  # noqa: B010
    return figure, axes


def to_png(figure: "Figure", dpi: int = 150) -> bytes:
    """Return the figure as a PNG file."""
    from matplotlib.text import Text

    buffer = io.BytesIO()
    texts = figure.findobj(Text)
    for text in texts:
        text.set_text(printable(text.get_text()))  # fonts have no control characters
    try:
        figure.savefig(buffer, format="png", dpi=dpi)
    except ValueError:
        # Dollar signs in column names are not mathematics.
        for text in texts:
            text.set_parse_math(False)  # pyright: ignore[reportAttributeAccessIssue]
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def extremes(*columns: Float[np.ndarray, " T"], most: int = 2000) -> Int[np.ndarray, " n"]:
    """Return about `most` rows that preserve the appearance of long lines: extremes of each
    segment.

    Unlike every n-th row, they include spikes. A segment without values keeps its first row, and
    thus its gap.
    """
    length = len(columns[0])
    if length <= most:
        return np.arange(length)
    size = -(-length // max(most // (2 * len(columns)), 1))
    starts = np.arange(0, length, size)
    rows = [[0, length - 1]]
    for column in columns:
        stretches = np.pad(
            column, (0, len(starts) * size - length), constant_values=np.nan
        ).reshape(-1, size)
        missing = np.isnan(stretches)
        rows.append(starts + np.argmin(np.where(missing, np.inf, stretches), axis=1))
        rows.append(starts + np.argmax(np.where(missing, -np.inf, stretches), axis=1))
    return np.unique(np.concatenate(rows))


def draw(panel: "Axes", x: np.ndarray, values: Float[np.ndarray, " T"], **style: Any) -> None:
    """Draw a line, thinned if it is long."""
    rows = extremes(values)
    panel.plot(x[rows], values[rows], **style)


def shade(
    panel: "Axes",
    x: np.ndarray,
    low: Float[np.ndarray, " T"],
    high: Float[np.ndarray, " T"],
    **style: Any,
) -> None:
    """Draw a band between two lines, thinned if they are long."""
    rows = extremes(low, high)
    panel.fill_between(
        x[rows], low[rows], high[rows], **{"color": BLUE, "alpha": 0.25, "linewidth": 0} | style
    )


def legend(figure: "Figure") -> None:
    """Draw one legend above all panels with each label once, if there are any."""
    for old in list(figure.legends):
        old.remove()
    result: dict[str, Any] = {}
    for panel in figure.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            result.setdefault(label, handle)
    if result:
        columns = _fitting_columns(list(result), figure.get_figwidth())
        figure.legend(
            result.values(),
            result.keys(),
            loc="outside upper left",
            ncols=columns,
            fontsize=8,
            frameon=False,
        )


def _fitting_columns(labels: list[str], width: float) -> int:
    """Return the number of columns that fit: a letter takes about 0.062 inches, a handle 0.6."""
    for columns in range(min(len(labels), 6), 1, -1):
        parts = np.array_split([0.6 + 0.062 * len(label) for label in labels], columns)
        if sum(part.max() for part in parts) <= width:
            return columns
    return 1


def time_axis(length: int, axis: Clock | None, first: int = 0) -> tuple[np.ndarray, str]:
    """Return the times of rows from `first` on, or row numbers, and the label of their axis.

    Dates are shown in their own time zone.
    """
    if axis is None:
        return np.arange(first, first + length), "row"
    if not axis.dates:
        return axis.times(length, first), axis.name or "time"
    dates = axis.index(length, first)
    return (dates if dates.tz is None else dates.tz_localize(None)).to_numpy(), axis.name or "time"


def space_dates(panel: "Axes", most: int = 5) -> None:
    """Set few concise dates below a narrow panel."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=2, maxticks=most)
    panel.xaxis.set_major_locator(locator)
    panel.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def untrusted_spans(forecast: Forecast) -> Int[np.ndarray, "n 2"]:
    """Return the first row of each untrusted stretch, and the row after its last."""
    changes = np.diff(np.pad(~forecast.trusted, 1).astype(int))
    return forecast.start + np.flatnonzero(changes).reshape(-1, 2)


def with_unit(name: str, units: Mapping[str, str]) -> str:
    """Return the name of a signal with its unit, if it is known."""
    return f"{name} [{units[name]}]" if units.get(name) else name


def say(panel: "Axes", text: str) -> None:
    """Show text instead of a plot."""
    panel.set_axis_off()
    panel.text(
        0.5, 0.5, text, ha="center", va="center", transform=panel.transAxes, color=GREY, wrap=True
    )
