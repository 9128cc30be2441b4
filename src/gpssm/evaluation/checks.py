"""From figures to words: whether a run sampled well, and what of it not to trust."""

from collections.abc import Iterator, Sequence

import numpy as np

from gpssm.evaluation.assessment import Assessment
from gpssm.posterior.diagnostics import MANY_DIVERGENT, Row

# R-hat below, and effective draws from, which a run is what the name says; else it is "poor".
VERDICTS = {"good": (1.05, 100.0), "fair": (1.2, 20.0)}
NOISY, USELESS = 0.5, 0.9  # shares of the outputs' variance, and of their spread, above which something is said
NARROW = 0.7  # share inside the 90 % intervals of free runs below which they are too narrow
SOME_LEFT = 0.05  # share of free runs
NEW = 0.3  # novelty of f's inputs
FEW_ROWS = 2.0  # an inducing point


def percent(share: float) -> str:
    """A share as "12 %"; two digits below ten per cent."""
    if not share >= 1e-4:
        return "< 0.01 %" if share > 0 else f"{100 * share:g} %"
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def judge(rows: Sequence[Row], divergent: float, noted: bool) -> str:
    """ "good", "fair" or "poor", by the worst row; "fair" at best with many divergent moves or with notes.

    A row without quantities has nothing that varies, and nothing to sample badly.
    """
    sampled = [one for one in rows if one.number]
    flawed = noted or divergent > MANY_DIVERGENT
    for verdict, (rhat, ess) in VERDICTS.items():
        if all(one.rhat < rhat and one.ess_bulk >= ess for one in sampled) and not (flawed and verdict == "good"):
            return verdict
    return "poor"


def find_doubts(
    rows: Sequence[Row], figures: Assessment, outputs: Sequence[str], notes: Sequence[str], rows_a_point: float
) -> Iterator[str]:
    """Plain sentences about what to distrust, the gravest first."""
    yield from notes
    yield from _about_sampling(rows)
    for j, name in enumerate(outputs):
        yield from _about_output(name, j, figures)
    if figures.covered < NARROW:
        yield (
            f"Only {percent(figures.covered)} of the training outputs lie inside the 90 % intervals of free runs: "
            "forecasts are surer than they should be."
        )
    if figures.left > SOME_LEFT:
        yield (
            f"{percent(figures.left)} of the free runs along the data left the region the model knows: long forecasts "
            "rest on the others."
        )
    if figures.novelty_tail > NEW:
        yield (
            f"The last rows lie where little is known about f: {percent(figures.novelty_tail)} of its prior variance "
            "is left there. Forecasts start from unknown ground: take more inducing points."
        )
    if rows_a_point < FEW_ROWS:
        yield f"There are {rows_a_point:.1f} rows for an inducing point: fewer points would do."


def _about_sampling(rows: Sequence[Row]) -> Iterator[str]:
    rhat, ess = VERDICTS["good"]
    for one in rows:
        name = {"forecast": "the forecast", "outputs": "the smoothed outputs"}.get(one.name, one.name)
        if one.number and np.isnan(one.rhat):
            yield f"There are too few draws to tell whether chains agree about {name}."
        elif one.number and one.rhat >= rhat:
            yield f"Chains disagree about {name} (R-hat {one.rhat:.2f}): raise num_warmup and num_draws."
        elif one.number and not one.ess_bulk >= ess:
            yield f"There are only {one.ess_bulk:.0f} effective draws of {name}: raise num_draws."


def _about_output(name: str, j: int, figures: Assessment) -> Iterator[str]:
    spread = figures.spread[j]
    noise, process = (np.square(part[j] / spread) for part in (figures.noise_std, figures.process_std))
    if noise > NOISY:
        yield f"{percent(noise)} of the variance of {name} is observation noise: most of what it does is not modelled."
    if process > NOISY:
        yield f"The process noise of a single step makes {percent(process)} of the variance of {name}."
    if figures.one_step[j] > USELESS * spread:
        yield f"One step ahead, {name} is predicted hardly better than by its average."
    elif figures.free_run[j] > USELESS * spread:
        yield f"Over {figures.horizon} steps {name} is forecast hardly better than by its average."
