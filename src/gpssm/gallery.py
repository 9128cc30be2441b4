"""The figures of a run."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gpssm import plots
from gpssm.judging import Judged
from gpssm.posterior import Posterior
from gpssm.runs import FIGURES, Run
from gpssm.series import Series
from gpssm.style import to_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 150


def draw_figures(run: Run, posterior: Posterior, judged: Judged, test: Series | None) -> list[str]:
    """Draw what there is to draw, and give back what could not be drawn: a picture must not cost a run."""
    notes = []
    for name, picture in _pictures(posterior, judged, test).items():
        try:
            run.write(f"{FIGURES}/{name}.png", to_png(picture(), DPI))
        except OSError:
            raise
        except ImportError as error:
            return [f"No figures were drawn: {error}"]
        except Exception as error:
            notes.append(f"The figure {name} could not be drawn: {error}")
    return notes


def _pictures(posterior: Posterior, judged: Judged, test: Series | None) -> dict[str, Callable[[], "Figure"]]:
    """A function for each figure that the run has data for."""
    history, last = posterior.raw[-1], len(posterior.raw) - 1
    whole = history if test is None else _joined(history, test)
    several = [*posterior.raw[:-1], whole]
    found = {
        "series": lambda: plots.plot_series(several[-1] if test is not None else several, len(history)),
        "smoothed": lambda: plots.plot_smoothed(posterior, last),
        "states": lambda: plots.plot_states(posterior, last),
        "transition": lambda: plots.plot_transition(posterior),
        "traces": lambda: plots.plot_traces(posterior),
        "ess": lambda: plots.plot_ess(posterior),
        "residuals": lambda: plots.plot_residuals(posterior, last),
        "parameters": lambda: plots.plot_parameters(posterior),
    }
    own = next(iter(judged.forecasts.values()), None)
    if own is not None:
        found["forecast"] = lambda: plots.plot_forecast(own, test, history)
        found["comparison"] = lambda: plots.plot_comparison(judged.forecasts, test, history)
    if own is not None and judged.scores:
        found["calibration"] = lambda: plots.plot_calibration((own, test))
        found["scores"] = lambda: plots.plot_scores(next(iter(judged.scores.values())))
    return found


def _joined(first: Series, second: Series) -> Series:
    y, u = (np.concatenate(pair) for pair in ((first.y, second.y), (first.u, second.u)))
    return Series(y, u, name=first.name, dt=first.dt, outputs=first.outputs, inputs=first.inputs)
