"""Extend a posterior by new rows: filter them, learn from them, or sample again."""

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float

from gpssm.core.runtime import in_double_precision
from gpssm.core.text import check_flag, check_seed
from gpssm.data.series import Series
from gpssm.inference.progress import Mode, check_progress
from gpssm.inference.runner import Runtime, run_chains
from gpssm.inference.settings import MethodSettings
from gpssm.methods import METHODS
from gpssm.posterior.conditioning import begin, condition, filter_rows
from gpssm.posterior.diagnostics import with_notes
from gpssm.posterior.draws import (
    Seconds,
    absorb_common,
    check_states,
    differ_in_model,
    model_of,
)
from gpssm.posterior.learning import learn
from gpssm.starts.build import Start

if TYPE_CHECKING:
    from gpssm.posterior.posterior import Posterior

Relearn = Literal["weights", "all"] | None

NUM_PARTICLES = 256  # for the path from which all chains start


def extend(
    posterior: "Posterior",
    series: Any,
    relearn: Relearn = None,
    *,
    new_experiment: bool = False,
    seed: int | None = None,
    index: int = -1,
) -> "Posterior":
    """Return the posterior after new rows.

        later = posterior.extend(new_rows, "weights")

    Parameters
    ----------
    series : Series, DataFrame or array
        New rows, as in `condition`.
    relearn : {"weights", "all"}, optional
        What to update besides the state. None: nothing, as in `condition`; "weights": the function,
        as in `learn`; "all": states, weights and noise levels are sampled again, as in `update`.
        These methods have further options.
    new_experiment, seed, index
        As in these methods.

    Returns
    -------
    Posterior
    """
    verbs = {None: condition, "weights": learn, "all": update}
    if not isinstance(relearn, str | None) or relearn not in verbs:
        raise ValueError(f"relearn must be None, 'weights' or 'all'; got {relearn!r}")
    options: dict[str, Any] = {} if seed is None else {"seed": seed}
    return verbs[relearn](posterior, series, new_experiment=new_experiment, index=index, **options)


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
    """Sample again, given the old data and new rows, starting from the old draws.

        posterior = posterior.update(new_rows)

    The method, its settings and the scaling are those of the fit.

    Parameters
    ----------
    series : Series, DataFrame or array
        New rows, as in `condition`.
    new_experiment : bool
        Whether the rows are a new training series; otherwise they are appended to one.
    num_warmup : int, optional
        By default half of the number of the fit.
    num_draws : int, optional
        By default the number of the fit.
    seed : int, optional
        By default the last seed plus 1.
    progress
        As in `fit`.
    index : int
        The training series that the rows are appended to.

    Returns
    -------
    Posterior
    """
    check_states(posterior, "update")
    if posterior.current is not None and not new_experiment:
        raise ValueError(
            "this posterior has been conditioned on rows that it has not learned from: update "
            "the posterior before `condition`, with all rows since its training data"
        )
    seed = posterior.seed + 1 if seed is None else check_seed(seed)
    check_flag("new_experiment", new_experiment)
    check_progress(progress)
    method = _method(posterior, num_warmup, num_draws)
    old = posterior.dataset
    dataset = old.extend(old.align(series), None if new_experiment else index)
    first = 0 if new_experiment else len(old.experiments[index])
    rows = dataset.scaled[-1 if new_experiment else index][first:]
    # All chains start from the last draw of the chain with the highest density or, if chains have
    # separate models, each from its last draw.
    best = int(np.argmax(np.mean(posterior.info.log_target, 1)))
    starts = []
    for chain in range(posterior.num_chains) if differ_in_model(posterior) else [best]:
        states = extend_states(posterior, chain, rows, new_experiment, seed, index)
        starts.append(Start(model_of(posterior, chain, -1), states))
    runtime = Runtime(num_chains=posterior.num_chains, seed=seed, progress=progress)
    sample = run_chains(method, starts, list(dataset.scaled), runtime)
    model, draws = absorb_common([start.model for start in starts], sample.draws)
    updated = dataclasses.replace(
        posterior,
        model=model,
        draws=draws,
        info=sample.info,
        warmup=sample.warmup,
        dataset=dataset,
        seconds=Seconds(0.0, sample.compile_seconds, sample.run_seconds),
        seed=seed,
        current=None,
        learned=None,
    )
    updated = with_notes(updated, sample.notes)
    for note in updated.notes:
        warnings.warn(note, stacklevel=4)
    return updated


def _method(
    posterior: "Posterior", num_warmup: int | None, num_draws: int | None
) -> MethodSettings:
    """Return the settings of the run, derived from the fit, so that updates halve them only
    once."""
    spec = posterior.spec
    if not isinstance(spec.method, MethodSettings):
        raise ValueError(
            f"update needs the method of the fit, one of {', '.join(METHODS)}; this was "
            f"{spec.method_name!r}"
        )
    if not spec.settings.learns:
        raise ValueError(
            f"{spec.method_name!r} cannot be updated: fit it again to the old and new data"
        )
    num_warmup = spec.settings.num_warmup // 2 if num_warmup is None else num_warmup
    return spec.replace(num_warmup=num_warmup, num_draws=num_draws).settings


def extend_states(
    posterior: "Posterior", chain: int, rows: Series, new_experiment: bool, seed: int, index: int
) -> list[Float[np.ndarray, "_ Dx"]]:
    """Return the states of the chain's last draw, followed by filtered means for new rows."""
    paths = [np.asarray(path[chain, -1]) for path in posterior.draws.states]
    draw = np.array([(chain + 1) * posterior.num_draws - 1])
    alone = dataclasses.replace(posterior, current=None)
    state, before = begin(alone, draw, new_experiment, NUM_PARTICLES, seed, index, lookback=0)
    means = np.asarray(filter_rows(alone, draw, state, before, rows, seed).means[0])
    if new_experiment:
        return [*paths, np.concatenate([np.zeros_like(means[:1]), means])]
    paths[index] = np.concatenate([paths[index], means])
    return paths
