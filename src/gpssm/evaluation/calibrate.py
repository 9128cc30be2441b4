"""Calibrate the intervals of a posterior on held-out rows.

The factors themselves are estimated in `posterior/calibration.py`.
"""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from gpssm.core.text import check_flag, check_seed, count
from gpssm.fitting.fit import fit
from gpssm.inference.runner import Runtime
from gpssm.model.likelihoods import Bernoulli, Poisson
from gpssm.posterior.calibration import estimate, needed_factors
from gpssm.posterior.draws import check_states
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.stack import Stack, single_posteriors
from gpssm.posterior.validation import (
    CALIBRATION,
    FEWEST_ROWS,
    Fold,
    held_out_forecasts,
    make_folds,
)

Single = TypeVar("Single", Posterior, Stack)


def calibrate(
    posterior: Single,
    series: Any = None,
    *,
    new_experiment: bool = False,
    index: int = -1,
    seed: int | None = None,
    without: Sequence[tuple[Posterior | Stack, Fold]] = (),
) -> Single:
    """Return the posterior with forecasts widened to cover held-out rows.

        posterior = posterior.calibrate()
        posterior.forecast(u=future)  # widened; calibrated=False for the original

    Without `series`, the model is fitted twice more, with one short chain and the settings and
    start of the fit: once without the last quarter of every series, and once without the first.

    Parameters
    ----------
    posterior
        The posterior or stack to calibrate.
    series
        Rows that the fit has not seen, at least 15. They follow training series `index`, or the
        rows of `condition`, unless they are a new experiment.
    new_experiment
        Whether the rows are a new experiment.
    index
        The training series that the rows follow.
    seed
        Seed of fits and forecasts; by default the seed of the fit.
    without
        Posteriors of folds to use instead of new fits, if there are any.

    Returns
    -------
    Posterior or Stack
    """
    for item in single_posteriors(posterior):
        if isinstance(item.model.likelihood, Poisson | Bernoulli):
            name = type(item.model.likelihood).__name__
            raise TypeError(
                f"the outputs of a {name} likelihood are discrete, so that paths cannot be "
                "stretched"
            )
    seed = posterior.seed if seed is None else check_seed(seed)
    check_flag("new_experiment", new_experiment)
    posterior.dataset.experiment(index)
    if series is not None:
        rows = posterior.dataset.align(series)
        pairs = [(posterior, Fold([], {index: rows}, new_experiment))]
        words = f"{count(len(rows), 'new row')}"
    else:
        pairs = list(without) or fit_folds(posterior, seed)
        held = sum(len(rows) for _, fold in pairs for rows in fold.rest.values())
        words = f"{held} held-out training rows"
    measured = [factors for item, fold in pairs for factors in measure(item, fold, seed)]
    return dataclasses.replace(posterior, calibration=estimate(measured, words))


def measure(
    posterior: Posterior | Stack, fold: Fold, seed: int
) -> list[tuple[Float[np.ndarray, "1 H Dy"], int]]:
    """Return the factors needed to cover held-out rows, for each origin along them, and the number
    of rows between two origins."""
    for rows in fold.rest.values():
        if len(rows) < FEWEST_ROWS:
            raise ValueError(f"calibrate needs at least {FEWEST_ROWS} rows; got {len(rows)}")
    plain = dataclasses.replace(posterior, calibration=None)
    return [
        (needed_factors(rolling.forecast, rolling.rows.y)[None], rolling.spacing)
        for rolling in held_out_forecasts(plain, fold, CALIBRATION, seed)
    ]


def fit_folds(posterior: Posterior | Stack, seed: int) -> list[tuple[Posterior | Stack, Fold]]:
    """Fit a posterior to each fold with the settings of the fit; for a stack, a stack of such
    fits."""
    if isinstance(posterior, Stack):
        fits = {name: fit_folds(member, seed) for name, member in posterior.members.items()}
        folds = [fold for _, fold in next(iter(fits.values()))]
        return [
            (
                dataclasses.replace(posterior, members={name: fits[name][k][0] for name in fits}),
                fold,
            )
            for k, fold in enumerate(folds)
        ]
    folds = make_folds(posterior.dataset.experiments)
    if not folds:
        raise ValueError(
            f"calibrate() holds out a quarter of each series, at least {FEWEST_ROWS} rows, but "
            "the training series are too short. Pass rows that the fit has not seen, "
            "posterior.calibrate(rows)"
        )
    num_draws = min(posterior.spec.settings.num_draws, CALIBRATION.num_draws)
    spec = posterior.spec.replace(calibrate=False, num_draws=num_draws)
    fits = []
    for fold in folds:
        changes: dict[str, Any] = {}
        if spec.gives_states:
            check_states(posterior, "calibrate() of a fit that began at given states")
            paths = [np.asarray(path[0, -1]) for path in posterior.draws.states]
            lengths = [len(item) + 1 for item in fold.series]
            changes["start"] = [
                path[-length:] if fold.before else path[:length]
                for path, length in zip(paths, lengths, strict=True)
            ]
        # One short chain is no posterior to be judged.
        with warnings.catch_warnings(action="ignore"):
            runtime = Runtime(num_chains=1, seed=seed, progress=False)
            fits.append((fit(fold.series, spec=spec.replace(**changes), runtime=runtime), fold))
    return fits
