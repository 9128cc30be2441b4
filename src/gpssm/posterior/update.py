"""Learning from new data without starting again: more rows of a training series, or one more series."""

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from gpssm.core.runtime import in_double_precision
from gpssm.core.text import check_flag, check_seed
from gpssm.data.series import Series
from gpssm.inference.progress import Mode, check_progress
from gpssm.inference.runner import Runtime, run_chains
from gpssm.inference.settings import MethodSettings
from gpssm.methods import METHODS
from gpssm.posterior.conditioning import begin, filter_rows
from gpssm.posterior.draws import Seconds, absorb_common
from gpssm.starts.build import Start

if TYPE_CHECKING:
    from gpssm.posterior.posterior import Posterior

NUM_PARTICLES = 256  # for the one path from which all chains start


@in_double_precision
def update(
    posterior: "Posterior",
    series: Any,
    *,
    new_experiment: bool = False,
    num_warmup: int | None = None,
    num_draws: int | None = None,
    seed: int | None = None,
    progress: Mode = False,
    index: int = -1,
) -> "Posterior":
    """Learn from new rows too: sample again, given the old data and the new, from where the old draws were.

        posterior = posterior.update(new_rows)

    Method, settings, roles and scaling are the fit's.

    :param series: new rows, as in `condition`.
    :param new_experiment: whether they are a training series of their own; otherwise they are appended to series
        `index`.
    :param num_warmup: half of the fit's by default; `num_draws`: as many as the fit's; `seed`: the last one plus 1.
    """
    if posterior.current is not None and not new_experiment:
        raise ValueError(
            "this posterior has been conditioned on rows that it has not learned from: update the one from before "
            "`condition`, with all rows since its training data"
        )
    seed = posterior.seed + 1 if seed is None else check_seed(seed)
    check_flag("new_experiment", new_experiment)
    check_progress(progress)
    method = _method(posterior, num_warmup, num_draws)
    old = posterior.dataset
    dataset = old.extend(old.align(series), None if new_experiment else index)
    added = (
        dataset.scaled[-1]
        if new_experiment
        else dataset.scaled[index][len(old.experiments[index]) :]
    )
    # All chains start from the last draw of the chain that found the likeliest states, or each from its own last draw
    # where each has a model of its own.
    best = int(np.argmax(np.mean(posterior.info.log_target, 1)))
    begin = range(posterior.num_chains) if posterior.apart else [best]
    models = [posterior.model_at(chain, -1) for chain in begin]
    paths = [extend_states(posterior, chain, added, new_experiment, seed, index) for chain in begin]
    starts = [Start(model, states) for model, states in zip(models, paths, strict=True)]
    runtime = Runtime(num_chains=posterior.num_chains, seed=seed, progress=progress)
    found = run_chains(method, starts, list(dataset.scaled), runtime)
    model, draws = absorb_common(models, found.draws)
    updated = dataclasses.replace(
        posterior,
        model=model,
        draws=draws,
        info=found.info,
        warmup=found.warmup,
        dataset=dataset,
        seconds=Seconds(0.0, found.compile_seconds, found.run_seconds),
        seed=seed,
        current=None,
        learned=None,
    ).with_notes(found.notes)
    for note in updated.notes:
        warnings.warn(note, stacklevel=4)
    return updated


def _method(
    posterior: "Posterior", num_warmup: int | None, num_draws: int | None
) -> MethodSettings:
    """The settings of the fit with half its warm-up. They stay those of the fit: updates do not halve it over again."""
    spec = posterior.spec
    if not isinstance(spec.method, MethodSettings):
        raise ValueError(
            f"update runs the fit's own method, one of {', '.join(METHODS)}; this was {spec.method_name!r}"
        )
    if not spec.settings.learns:
        raise ValueError(
            f"{spec.method_name!r} finds its parameters before it samples: fit it again, to the old and new data"
        )
    num_warmup = spec.settings.num_warmup // 2 if num_warmup is None else num_warmup
    return spec.replace(num_warmup=num_warmup, num_draws=num_draws).settings


def extend_states(
    posterior: "Posterior", chain: int, new: Series, new_experiment: bool, seed: int, index: int
) -> list[Float[np.ndarray, "_ Dx"]]:
    """The states of that chain's last draw, and the filter's means under it for the new rows."""
    paths = [np.asarray(path[chain, -1]) for path in posterior.draws.states]
    draw = np.array([(chain + 1) * posterior.num_draws - 1])
    alone = dataclasses.replace(posterior, current=None)
    cloud = begin(alone, draw, new_experiment, NUM_PARTICLES, seed, index, lookback=0)
    means = np.asarray(filter_rows(alone, draw, cloud, new, seed, gaussian=False).means[0])
    if new_experiment:
        return [*paths, np.concatenate([np.zeros_like(means[:1]), means])]
    paths[index] = np.concatenate([paths[index], means])
    return paths
