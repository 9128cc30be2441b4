"""How good a run's forecasts are: of the rows held out, with the baselines' beside."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpssm.alignment import HORIZON
from gpssm.forecast import Forecast
from gpssm.posterior import Posterior
from gpssm.readers import read
from gpssm.runs import Run
from gpssm.series import Series
from gpssm.settings import Settings

SCORED = (0.5, 0.8, 0.9)
MOST_VALUES = 2e7  # of all paths of a forecast together: more do not fit where they are sorted and scored


@dataclass(frozen=True)
class Judged:
    """Forecasts of the run's method (first) and of the baselines, and their scores by horizon and method."""

    forecasts: Mapping[str, Forecast]
    horizons: Mapping[str, int]
    scores: Mapping[str, Mapping[str, Mapping[str, float | None]]]
    notes: tuple[str, ...]


def judge(posterior: Posterior, baselines: Mapping[str, Posterior], test: Series | None, settings: Settings) -> Judged:
    """Forecast the test rows, or as many steps as are usual where no controls are needed, with the baselines beside."""
    if test is None and posterior.raw[-1].inputs:
        return Judged({}, {}, {}, ())
    candidates = {settings.method: posterior, **baselines}
    forecasts = {name: predict(one, test, settings) for name, one in candidates.items()}
    horizons = {} if test is None else _horizons(test)
    scores = {
        label: {name: _plain(one[:steps].score(test, SCORED)) for name, one in forecasts.items()}
        for label, steps in horizons.items()
    }
    trust = forecasts[settings.method].diagnostics
    return Judged(forecasts, horizons, scores, trust.notes if trust else ())


def predict(
    posterior: Posterior, u: Any, settings: Settings, horizon: int | None = None, num_paths: int | None = None
) -> Forecast:
    """The forecast under controls `u` (a Series or an array of rows); of a long one fewer paths are kept."""
    steps = horizon or (HORIZON if u is None else len(u))
    most = int(MOST_VALUES / (steps * posterior.raw[-1].output_dim))
    controls = u if posterior.raw[-1].inputs else None
    paths = max(min(num_paths or settings.num_paths, most), 2)
    return posterior.forecast(steps, controls, num_paths=paths, seed=settings.seed)


def forecast_run(
    run: Run, inputs: str | Path | None = None, horizon: int | None = None, num_paths: int | None = None
) -> Forecast:
    """What follows the training data of a run, under the controls of a file, or else of the rows held out."""
    settings, posterior = run.settings(), run.posterior()
    if inputs is None:
        u = run.test()
        if u is None and posterior.raw[-1].inputs:
            names = ", ".join(posterior.raw[-1].inputs)
            raise ValueError(
                f"the model has controls ({names}): give a file that has them at the steps to come, --inputs"
            )
    elif not posterior.raw[-1].inputs:
        raise ValueError("the model has no controls: leave out --inputs, and say how far with --horizon")
    else:
        u = read(inputs, settings.inputs).y
    return predict(posterior, u, settings, horizon, num_paths)


def _horizons(test: Series) -> dict[str, int]:
    """The steps to judge by: the first 30, and all, as far as something was observed in them."""
    steps = {str(HORIZON): HORIZON} if len(test) > HORIZON else {}
    return {
        name: number for name, number in (steps | {"full": len(test)}).items() if np.isfinite(test.y[:number]).any()
    }


def _plain(scores: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no NaN."""
    return {name: value if np.isfinite(value) else None for name, value in scores.items()}
