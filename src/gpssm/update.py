"""Learning from new data without starting again: more rows of a training series, or one more series."""

import dataclasses
import warnings
from typing import Any

import numpy as np
from jaxtyping import Float

from gpssm.conditioning import AnyFitted, begin, filter_rows, like_training
from gpssm.fitted import Fitted, Seconds, settle
from gpssm.loop import sample
from gpssm.methods import METHODS
from gpssm.methods.base import Config
from gpssm.progress import Mode
from gpssm.rollout import pick_series
from gpssm.runtime import numerical
from gpssm.series import Series, check_trainable

NUM_PARTICLES = 256  # for the one path from which all chains start


@numerical
def update(
    fitted: AnyFitted,
    series: Any,
    *,
    new_experiment: bool = False,
    num_warmup: int | None = None,
    num_draws: int | None = None,
    seed: int | None = None,
    progress: Mode = False,
    index: int = -1,
) -> AnyFitted:
    """Learn from new rows too: sample again, given the old data and the new, from where the old draws were.

        posterior = posterior.update(new_rows)

    Method, settings, roles and scaling are the fit's.

    :param series: new rows, as in `condition`.
    :param new_experiment: whether they are a training series of their own; otherwise they are appended to series
        `index`.
    :param num_warmup: half of the fit's by default; `num_draws`: as many as the fit's; `seed`: the last one plus 1.
    """
    if fitted.cloud is not None and not new_experiment:
        raise ValueError(
            "this posterior has been conditioned on rows that it has not learned from: update the one from before "
            "`condition`, with all rows since its training data"
        )
    seed = fitted.seed + 1 if seed is None else seed
    config, new = _configure(fitted, num_warmup, num_draws), like_training(fitted, series)
    raw = list(fitted.raw)
    if new_experiment:
        raw.append(new)
    else:
        raw[index] = _join(pick_series(fitted, index), new)
    check_trainable(raw)
    scaled = [fitted.scaler.scale(one) for one in raw]
    # All chains start from the last draw of the chain that found the likeliest states.
    chain = int(np.argmax(np.mean(fitted.info.log_target, 1)))
    model = fitted.model_at(chain, -1)
    states = _start(fitted, chain, fitted.scaler.scale(new), new_experiment, seed, index)
    found = sample(config, model, states, scaled, num_chains=fitted.num_chains, seed=seed, progress=progress)
    for note in found.notes:
        warnings.warn(note, stacklevel=4)
    model, draws = settle(model, found.draws)
    return dataclasses.replace(
        fitted,
        model=model,
        draws=draws,
        info=found.info,
        warmup=found.warmup,
        series=tuple(scaled),
        raw=tuple(raw),
        seconds=Seconds(0.0, found.compile_seconds, found.run_seconds),
        seed=seed,
        notes=found.notes,
        cloud=None,
    )


def _configure(fitted: Fitted, num_warmup: int | None, num_draws: int | None) -> Config:
    """The settings of the fit with half its warm-up. They stay those of the fit: updates do not halve it over again."""
    settings = dict(fitted.config)
    name = settings.pop("method")
    settings.pop("fit", None)
    if name not in METHODS:
        raise ValueError(f"update runs the fit's own method, one of {', '.join(METHODS)}; this fit's was {name!r}")
    if not METHODS[name].learns:
        raise ValueError(f"{name!r} finds its parameters before it samples: fit it again, to the old and new data")
    settings["num_warmup"] = settings["num_warmup"] // 2 if num_warmup is None else num_warmup
    settings["num_draws"] = settings["num_draws"] if num_draws is None else num_draws
    return dataclasses.replace(METHODS[name], **settings)


def _join(old: Series, new: Series) -> Series:
    return dataclasses.replace(old, y=np.concatenate([old.y, new.y]), u=np.concatenate([old.u, new.u]))


def _start(
    fitted: Fitted, chain: int, new: Series, new_experiment: bool, seed: int, index: int
) -> list[Float[np.ndarray, "_ Dx"]]:
    """The states of that chain's last draw, and the filter's means under it for the new rows."""
    paths = [np.asarray(path[chain, -1]) for path in fitted.draws.states]
    draw = np.array([(chain + 1) * fitted.num_draws - 1])
    alone = dataclasses.replace(fitted, cloud=None)
    cloud = begin(alone, draw, new_experiment, NUM_PARTICLES, seed, index, lookback=0)
    means = np.asarray(filter_rows(alone, draw, cloud, new, seed, gaussian=False).means[0])
    if new_experiment:
        return [*paths, np.concatenate([np.zeros_like(means[:1]), means])]
    paths[index] = np.concatenate([paths[index], means])
    return paths
