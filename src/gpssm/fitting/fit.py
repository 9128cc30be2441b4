"""From data to a posterior: scale, start from a linear fit, build, run the loop."""

import dataclasses
import fnmatch
import inspect
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import numpy as np
from jaxtyping import Array

from gpssm.core.elapsed import ticks
from gpssm.core.runtime import check_memory, in_double_precision
from gpssm.core.text import check_path, check_seed, check_whole, count, is_real
from gpssm.data.delays import Rows, as_trained, find_lags
from gpssm.data.scaler import Scaler
from gpssm.data.series import Series, as_given, as_list, check_trainable
from gpssm.fitting.choose import Plan, Prepared, with_any_values
from gpssm.fitting.keeping import Keep, check_keep, cut, first_kept
from gpssm.fitting.transfer import check_prior, inherit, with_inherited_roles
from gpssm.inference.chains import Batching
from gpssm.inference.progress import Mode, check_progress
from gpssm.inference.runner import Sample, sample
from gpssm.inference.settings import MethodSettings
from gpssm.linear.identification import select_order
from gpssm.methods import METHODS
from gpssm.methods.ffvd import FFVD
from gpssm.model.bases import BASES, Basis
from gpssm.model.kernels import Kernel
from gpssm.model.likelihoods import Gaussian, Likelihood
from gpssm.model.means import MEANS, Mean
from gpssm.model.model import GPSSM
from gpssm.model.priors import InverseGamma
from gpssm.model.wiring import wired_size
from gpssm.posterior.draws import Seconds, absorb_common
from gpssm.posterior.posterior import Posterior
from gpssm.starts.build import Coupling, Parts, pseudo_series, wiring_of
from gpssm.starts.physics import Physics
from gpssm.starts.shooting import shoot
from gpssm.starts.start import Noise, with_noise

Hyper = Literal["optimise", "sample", "fix"]
Auto = Literal["auto"]
MAX_ORDER = 6  # that state_dim="auto" tries
ROWS_A_POINT, INDUCING = 5, (10, 50)  # of num_inducing="auto": rows for each, and from how many to how many
OUTPUT_MAP = ("likelihood.C", "likelihood.d")
NOISES = ("log_process_std", "likelihood.log_std")
NO_CHAIN = 2**32 - 1  # in place of a chain's number, for the random parts of the model


@in_double_precision
def fit(
    series: Any,
    u: Any = None,
    *,
    outputs: Sequence[str] | str | None = None,
    inputs: Sequence[str] | str | None = None,
    method: str | MethodSettings = "ffvd",
    state_dim: int | Auto = 4,
    num_inducing: int | Auto = 50,
    kernel: str | Kernel = "se",
    mean: str | Mean | Callable[[Array, Array], Array] = "linear",
    likelihood: str | Likelihood = "auto",
    basis: str | Basis = "inducing",
    wiring: Any = None,
    coupling: Coupling = "none",
    rank: int | None = None,
    physics: Physics | None = None,
    start: str | Sequence[Any] = "auto",
    noise: Noise | Auto | float = "auto",
    num_chains: int = 4,
    num_warmup: int | None = None,
    num_draws: int | None = None,
    thin: int | None = None,
    hyper: Hyper = "optimise",
    fixed: Sequence[str] = (),
    learn: Sequence[str] = (),
    delay: Rows | Auto = 0,
    calibrate: bool = False,
    prior: Posterior | None = None,
    prior_strength: float = 1.0,
    seed: int = 0,
    progress: Mode = True,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    batching: Batching = "auto",
    chunk: int | None = None,
    windows: int = 1,
    keep_states: Keep = "auto",
) -> Posterior:
    """Draw from the posterior of a Gaussian process state-space model of one series or several.

        posterior = gpssm.fit(train, state_dim=2)
        posterior = gpssm.fit(frame, outputs=["level"], inputs=["pump"])
        print(posterior.diagnostics())

    The result depends on the data, the settings and the seed alone, bit for bit: not on `progress` or `chunk`, on the
    chains run beside, or on having been resumed. Only `batching` and the device change the rounding.

    :param series: a `Series`, anything `Series.of` takes, or a list of those, in the user's units; or outputs as an
        array, with controls `u`; or a DataFrame, or several, whose columns `outputs` and `inputs` name.
    :param method: a name from `gpssm.methods.METHODS`, or a configuration with settings of its own.
    :param state_dim: number of states; "auto" takes the order of the linear model with the least BIC.
    :param num_inducing: number of inducing points, or functions of another basis; "auto": 10 to 50, one for five rows.
    :param kernel, mean, basis: parts by name or given: see `build_model`.
    :param wiring: what is known of which state and control enters which transition: a boolean matrix (Dx, Dx+Du), a
        `gpssm.Wiring`, or "cascade", "chain", "second-order", "delay-3": see `build_model`. state_dim="auto" fits it.
    :param likelihood: "auto" is "gaussian"; "abs" is compared with it where outputs touch zero but never go below.
    :param coupling, rank: "shared", one kernel for all transition functions, or "lmc", which mixes `rank` latent ones:
        see `build_model`. "hammerstein" is linear but for functions of the controls, which `ffvd` samples, as it does
        "lmc"; those of "hammerstein-monotone" are curves that rise.
    :param physics: what is known of the plant in the user's units, with one unknown function inside (`gpssm.Physics`),
        in place of sizes, kernel, mean, likelihood, basis and wiring. `start` is then "auto", its own states, or
        "shooting", free runs of windows from these.
    :param start: where the sampler begins, which decides where it ends: a name from `gpssm.starts.start.STARTS`; names
        to compare by forecasts inside the training rows (`candidates.py`); states (T+1, Dx) of each series; or "auto",
        which compares those of `candidates.competitors` for `ffvd` and is "em" for other methods. After shooting each
        chain has a start of its own.
    :param noise: of the process. "free" assumes nearly nothing: what the transition cannot explain becomes noise.
        "small", or a number, holds its standard deviation near .003, or that number, of the states' scale, so that what
        the transition cannot explain is observation noise. "auto" compares them where starts are, else it is "free".
    :param num_warmup, num_draws, thin: in place of the method's own numbers.
    :param hyper: "optimise" draws the noises that have an exact conditional and optimises the other parameters during
        warm-up; "sample" draws all of them; "fix" keeps them where the start put them.
    :param fixed: parameters to keep as they are, by name or pattern (`kernel.*`).
    :param learn: parameters to learn that are fixed otherwise, as the output map is (`likelihood.C`, `likelihood.d`):
        the states' coordinates are free.
    :param delay: rows after which controls act, one number or one for each by name; "auto" takes what `gpssm.delays`
        finds. All verbs of the posterior are given controls as they are set. The first rows, on which unknown ones
        acted, count as missing outputs.
    :param calibrate: whether to measure on held-out training rows how much wider intervals must be, as
        `posterior.calibrate()` does: by the fits that starts were compared by, or else by two short ones more.
    :param prior: the posterior of a sister plant, or of an earlier record, as the prior of the weights
        (`transfer.py`): kernel, basis, mean, likelihood, delay, sizes and scaling are its own, and only states, weights
        and noises are learned. Columns and units must be the same.
    :param prior_strength: how often each of its rows counts: 1 where the plants are the same, less where they are
        alike, 0 for none of what it learned.
    :param progress: True for a bar, "plain" for a line a chunk, False for silence.
    :param checkpoint: a folder to save the run in after each chunk; with `resume`, to go on from what is there.
    :param batching: how chains are run: one after the other ("map"), at once ("vmap"), spread over all devices
        ("shard"); "auto" takes the best for the devices there are.
    :param chunk: draws between two looks at progress, checkpoint and Ctrl-C.
    :param windows: into how many experiments each series is cut that share everything but their states; forecasts
        follow the last one (`keeping.py`).
    :param keep_states: of how many of a series' last rows draws and checkpoints hold the states; "auto" is all of them
        while they take up to 2 GB. The posterior says so where it needs the others.
    """
    began, seed = ticks(), check_seed(seed)
    given = as_list(as_given(series, u, outputs, inputs))
    if prior is not None:
        given = check_prior(prior, prior_strength, given)
    lags = find_lags(given, delay) if prior is None else prior.delay
    raw, whole = as_trained(given, lags)
    check_trainable(whole)
    cuts = cut(whole, windows)
    seen = cuts.series
    config = _configure(method, num_warmup=num_warmup, num_draws=num_draws, thin=thin)
    if prior is not None:
        own = {"state_dim": state_dim, "num_inducing": num_inducing, "kernel": kernel, "mean": mean, "basis": basis}
        own |= {"likelihood": likelihood, "start": start, "noise": noise, "wiring": wiring, "coupling": coupling}
        _check_inherited(config, own | {"physics": physics, "delay": delay}, calibrate)
    check_keep(keep_states)
    _check_sizes(state_dim, num_inducing, num_chains, chunk, raw, config, keep_states)
    _check_parts(kernel, mean, likelihood, basis, start, noise)
    _check_names(hyper, fixed, learn, progress, batching, checkpoint)
    key = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), NO_CHAIN)
    plan = Plan(config, seen, likelihood, cuts.cut_states(start), noise, fixed, key, seed, num_chains, progress)

    def with_roles(model: GPSSM) -> GPSSM:
        model = assign_roles(model, hyper if config.learns else "fix", fixed, learn)
        return config.adopt(model if prior is None else with_inherited_roles(model))

    if coupling in ("lmc", "hammerstein") and not isinstance(config, FFVD):
        raise ValueError("functions that share their weights are sampled by `ffvd`: take coupling='shared', or 'none'.")
    if prior is not None:
        prepared = _inherited(prior, seen, prior_strength, seed)
    elif physics is not None:
        if (kernel, mean, basis, wiring, coupling) != ("se", "linear", "inducing", None, "none"):
            raise ValueError("physics says what the model is: leave out kernel, mean, basis, wiring and coupling.")
        prepared = _prepare_physics(plan, physics)
    else:
        wanted = Parts(0, 0, kernel, mean, "gaussian", basis, wiring, coupling, rank)
        prepared = plan.prepare(_choose_parts(plan, wanted, state_dim, num_inducing, learn), with_roles)
    known = prepared.parts.wiring
    scaler, scaled, parts, states = prepared.scaler, prepared.series, prepared.parts, prepared.start.states
    model, others = with_roles(prepared.start.model), None
    if prepared.others is not None:
        others = [(with_roles(one.model), one.states) for one in prepared.others]
    first, notes = first_kept(whole, keep_states, num_chains * config.num_draws * model.state_dim)
    setup = ticks() - began
    found = sample(
        config,
        model,
        states,
        scaled,
        num_chains=num_chains,
        seed=seed,
        progress=progress,
        checkpoint=checkpoint,
        resume=resume,
        batching=batching,
        chunk=chunk,
        others=others,
        kept_from=cuts.kept_from(first),
    )
    asked = {"hyper": hyper, "fixed": list(fixed), "learn": list(learn), "num_chains": num_chains}
    asked |= {} if prior is None else {"prior_strength": prior_strength}
    asked |= {"start": prepared.name, "noise": prepared.noise, "starts": prepared.table}
    asked |= {"delay": list(lags)} if lags else {}
    asked |= {"windows": windows} if windows > 1 else {}
    asked |= {} if known is None else {"wiring": known.words(raw[0].inputs), "wired": known.plain()}
    settings = _write_down(config, config.num_shared(model) if others is None else 0, parts, asked)
    draws = found.draws._replace(states=cuts.join(found.draws.states))
    found = found._replace(draws=draws, notes=(*prepared.start.notes, *notes, *found.notes))
    scaled = scaled if windows == 1 else [scaler.scale(one) for one in whole]
    kept_from = first if any(first) else ()
    models = [model, *(own for own, _ in others or ())]
    posterior = _to_posterior(models, found, scaled, raw, lags, kept_from, scaler, settings, setup, seed)
    # Not after Ctrl-C, when there are fewer draws than were asked for.
    if calibrate and posterior.num_draws == config.num_draws:
        posterior = posterior.calibrate(without=prepared.without)
    return posterior


def _inherited(prior: Posterior, raw: list[Series], strength: float, seed: int) -> Prepared:
    """What a fit begins with that has a prior of another plant: all but the states are the prior's."""
    scaled = [prior.scaler.scale(one) for one in raw]
    start = inherit(prior, scaled, strength, seed)
    model = start.model
    parts = Parts(model.state_dim, model.basis.size, model.kernel, model.mean, model.likelihood, model.basis)
    noise = prior.config.get("fit", {}).get("noise", "free")
    return Prepared(prior.scaler, scaled, parts, start, "prior", noise, [])


def _check_inherited(config: MethodSettings, given: dict[str, Any], calibrate: bool) -> None:
    """Refuse what a prior decides, and what it cannot be the prior of."""
    if changed := [name for name, value in given.items() if not _is_default(name, value)]:
        raise ValueError(f"{', '.join(changed)} come with prior, in whose coordinates it was learned: leave out")
    if calibrate:
        raise ValueError("calibrate=True fits again without the prior: call posterior.calibrate(rows) with unseen rows")
    if type(config).prepare is not MethodSettings.prepare:
        raise ValueError(f"{type(config).__name__} makes its model from the data alone, and takes no prior")


def _prepare_physics(plan: Plan, physics: Physics) -> Prepared:
    """The start that the user's physics is."""
    if not isinstance(physics, Physics):
        raise TypeError(f"physics is a gpssm.Physics, got {physics!r}.")
    if plan.start not in ("auto", "shooting") or plan.likelihood not in ("auto", "gaussian"):
        raise ValueError(
            "physics says where its states start and how they are seen: leave out likelihood, and start too, or take "
            "start='shooting' to begin at what free runs of windows make of it."
        )
    scaler, series = plan.scale("gaussian")
    start = physics.start(plan.raw, scaler)
    if plan.start == "shooting":
        held = start.model.with_roles("fix", *plan.fixed)
        found = shoot(held, start.states, series)
        learned = {name: leaf for name, leaf in found.model.leaves().items() if name in held.free_leaves()}
        start = start._replace(model=start.model.with_leaves(learned), states=found.states)
    noise: Any = "free" if plan.noise == "auto" else plan.noise
    if noise != "free":
        start = start._replace(model=with_noise(start.model, noise, sum(len(one) for one in series)))
    parts = Parts(start.model.state_dim, start.model.basis.size, "physics", "physics", "gaussian", "physics")
    return Prepared(scaler, series, parts, start, "physics", noise, [])


def _write_down(config: MethodSettings, num_shared: int, parts: Parts, asked: dict[str, Any]) -> dict[str, Any]:
    """All settings of a fit as plain values: parts that were given as objects by their type's name."""
    registered = (name for name, known in METHODS.items() if type(known) is type(config))
    method = {"method": next(registered, type(config).__name__)} | dataclasses.asdict(config)
    plain = (str, int, float, list, type(None))
    settings = (
        {name: value for name, value in parts._asdict().items() if value is not None}
        | asked
        | {"num_shared": num_shared}
    )
    return method | {
        "fit": {name: value if isinstance(value, plain) else type(value).__name__ for name, value in settings.items()}
    }


def _to_posterior(
    models: Sequence[GPSSM],
    found: Sample,
    scaled: list[Series],
    raw: list[Series],
    lags: tuple[int, ...],
    kept_from: tuple[int, ...],
    scaler: Scaler,
    settings: dict[str, Any],
    setup: float,
    seed: int,
) -> Posterior:
    """The posterior of what was drawn, and a warning for each of its notes; one is that its chains disagree."""
    model, draws = absorb_common(models, found.draws)
    posterior = Posterior(
        model,
        draws,
        found.info,
        found.warmup,
        tuple(scaled),
        tuple(raw),
        scaler,
        settings,
        Seconds(setup, found.compile_seconds, found.run_seconds),
        seed,
        delay=lags,
        kept_from=kept_from,
    )
    posterior = posterior.with_notes(found.notes)
    for note in posterior.notes:
        warnings.warn(note, stacklevel=4)
    return posterior


def _check_sizes(
    state_dim: Any,
    num_inducing: Any,
    num_chains: Any,
    chunk: Any,
    series: list[Series],
    config: MethodSettings,
    keep_states: Keep,
) -> None:
    """Refuse at once what is no number, and what no machine could hold."""
    sizes = {"state_dim": state_dim, "num_inducing": num_inducing, "num_chains": num_chains}
    for name, value in sizes.items():
        if name == "num_chains" or not (isinstance(value, str) and value == "auto"):
            check_whole(name, value, 1)
    check_whole("chunk", chunk, 1, none="to choose it")
    states, points, chains = (1 if isinstance(value, str) else int(value) for value in sizes.values())
    first, _ = first_kept(series, keep_states, states * chains * config.num_draws)
    rows = sum(len(one) + 1 for one in series) - sum(first)
    size = 8 * states * (points**2 + chains * config.num_draws * (rows + points))
    check_memory(", ".join(f"{name}={value}" for name, value in sizes.items()), size)


def _check_parts(kernel: Any, mean: Any, likelihood: Any, basis: Any, start: Any, noise: Any) -> None:
    """Refuse at once parts of another kind, and names that nothing has; what else is wrong shows when they are made."""
    kinds = {"kernel": (str, Kernel), "likelihood": (str, Likelihood), "basis": (str, Basis), "start": (str, Sequence)}
    given = {"kernel": kernel, "likelihood": likelihood, "basis": basis, "start": start}
    for name, value in given.items():
        if not isinstance(value, kinds[name]) and not (name == "start" and isinstance(value, np.ndarray)):
            raise TypeError(f"{name} must be a name, or one that was made; got {value!r}")
    if not isinstance(mean, str | Mean) and not callable(mean):
        raise TypeError(f"mean must be a name, a function of x and u, or a Mean; got {mean!r}")
    for name, value, known in (("mean", mean, (*MEANS, "linear-fixed")), ("basis", basis, BASES)):
        if isinstance(value, str) and value not in known:
            raise KeyError(f"Unknown {name} {value!r}. Known: {', '.join(known)}; or pass one of your own.")
    named = isinstance(noise, str) and noise in ("auto", *get_args(Noise))
    if not named and not (is_real(noise) and 0 < noise < 1e300):
        raise ValueError(f"noise must be auto, {', '.join(get_args(Noise))}, or a positive number; got {noise!r}.")


def _check_names(hyper: Any, fixed: Any, learn: Any, progress: Any, batching: Any, checkpoint: Any) -> None:
    """Refuse at once words that mean nothing."""
    if not isinstance(hyper, str) or hyper not in get_args(Hyper):
        raise ValueError(f"hyper must be one of {', '.join(get_args(Hyper))}, got {hyper!r}.")
    for name, value in (("fixed", fixed), ("learn", learn)):
        if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
            raise TypeError(f"{name} must be a list of names of parameters, or of patterns; got {value!r}")
    check_progress(progress)
    if not isinstance(batching, str) or batching not in get_args(Batching):
        raise ValueError(f"batching must be one of {', '.join(get_args(Batching))}, got {batching!r}.")
    if checkpoint is not None:
        check_path(checkpoint)


def _choose_parts(
    plan: Plan, wanted: Parts, state_dim: int | Auto, num_inducing: int | Auto, learn: Sequence[str]
) -> Parts:
    """The parts with both sizes, numbers in the place of "auto", and with the wiring that was named."""
    likelihood = "gaussian" if plan.likelihood == "auto" else plan.likelihood
    if state_dim == "auto":
        state_dim = wired_size(wanted.wiring, plan.raw[0].output_dim) or "auto"
    if state_dim == "auto":
        series = plan.scale(likelihood)[1]
        pseudo = pseudo_series(series, with_any_values(likelihood, series[0].output_dim))
        state_dim = select_order(pseudo, MAX_ORDER).best
    if num_inducing == "auto":
        num_inducing = int(np.clip(sum(len(one) for one in plan.raw) // ROWS_A_POINT, *INDUCING))
    observed = sum(int(np.isfinite(one.y).any(1).sum()) for one in plan.raw)
    if state_dim >= observed:
        raise ValueError(
            f"state_dim={state_dim} is too much to learn from {count(observed, 'row')} with outputs: take fewer, "
            "or more rows, or the posterior of a similar plant as a prior."
        )
    known = wiring_of(wanted.wiring, state_dim, list(plan.raw))
    if known is not None and known.measured and any(fnmatch.filter(OUTPUT_MAP, pattern) for pattern in learn):
        raise ValueError(
            "the wiring says which states are outputs, so that the output map is known: drop it from learn."
        )
    return wanted._replace(state_dim=state_dim, num_inducing=num_inducing, wiring=known)


def assign_roles(model: GPSSM, hyper: Hyper, fixed: Sequence[str] = (), learn: Sequence[str] = ()) -> GPSSM:
    """The model with each leaf to be fixed, optimised or sampled, as `fit` says."""
    if hyper not in get_args(Hyper):
        raise ValueError(f"hyper must be one of {', '.join(get_args(Hyper))}, got {hyper!r}.")
    if hyper == "fix":
        if learn:
            raise ValueError(f"hyper='fix' learns no parameter, but learn={tuple(learn)!r} names some: drop one.")
        return model.with_roles("fix", "*")
    free = {name for name, role in model.roles if role != "fix"}.difference(OUTPUT_MAP)
    model = model.with_roles("fix", "*").with_roles(hyper, *free, *learn)
    if hyper == "optimise":
        model = model.with_roles("sample", *(name for name in NOISES if _is_conjugate(model, name)))
    return model.with_roles("fix", *fixed)


def _is_conjugate(model: GPSSM, name: str) -> bool:
    exact = name == "log_process_std" or isinstance(model.likelihood, Gaussian)
    return exact and isinstance(model.priors[name], InverseGamma)


def _configure(method: str | MethodSettings, **given: int | None) -> MethodSettings:
    if isinstance(method, str) and method in METHODS:
        return _configure(METHODS[method], **given)
    if not isinstance(method, MethodSettings):
        raise KeyError(f"Unknown method {method!r}. Known: {', '.join(METHODS)}; or pass a configuration.")
    whole = {name: int(value) if isinstance(value, np.integer) else value for name, value in given.items()}
    return dataclasses.replace(method, **{name: value for name, value in whole.items() if value is not None})


_DEFAULTS = {name: one.default for name, one in inspect.signature(fit).parameters.items()}


def _is_default(name: str, value: Any) -> bool:
    """Whether an argument of `fit` is what it is when it is not given."""
    return value is _DEFAULTS[name] or (isinstance(value, str | int) and value == _DEFAULTS[name])
