"""The default fit: a ladder from linear models to a nonlinear posterior, weighed by held-out rows.

1. The *linear council* scores linear models on windows of the training rows and says which state
   orders forecast best (`linear/council.py`).
2. *Candidates*: quick posteriors of the orders around the best one; then, from the best of them,
   more inducing points, quieter process noise, and a start by output error and shooting. Each is
   fitted to the training rows without their last quarter, and without their first, and judged by
   rolling forecasts of these.
3. *Mixture*: the best candidates and the linear models are weighed by the log score of those
   forecasts (`stack.py`), and those with weight are fitted to all rows. Where one nonlinear
   posterior carries nearly all of the weight, it is the result.

Training rows alone decide everything.
"""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from gpssm.core import metrics
from gpssm.data.dataset import Dataset
from gpssm.data.series import as_given, as_list
from gpssm.evaluation.stack import Weighed, combine
from gpssm.fitting.choose import may_be_rectified
from gpssm.fitting.fit import RUNTIME_FIELDS, with_settings
from gpssm.fitting.fit import fit as fit_posterior
from gpssm.inference.progress import announcing
from gpssm.inference.runner import Runtime
from gpssm.linear.council import Council, council
from gpssm.methods.spec import Spec
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.validation import STACKING, Fold, held_out_forecasts, make_folds

LINEAR = ("arx", "arx-reg", "lgssm")  # members of every mixture
FEW_POINTS = 20  # inducing points of the candidates that are compared first
MANY_POINTS = 50
QUIET = 0.02  # √Q of a candidate with quiet process noise, for states of unit scale
MAX_ORDER = 10
MOST_NONLINEAR = 2  # nonlinear members of a mixture
ALMOST_ALL = 0.95  # weight from which on a nonlinear posterior is the result by itself


class Judged(NamedTuple):
    """A candidate, its forecasts of held-out rows, and their loss.

    Parameters
    ----------
    spec
        What was fitted to each fold.
    weighed
        Log densities of the held-out outputs.
    losses
        CRPS of each forecast, in standard deviations of the outputs.
    """

    spec: Spec
    weighed: Weighed
    losses: Float[np.ndarray, " O"]

    @property
    def loss(self) -> float:
        """The mean loss."""
        return float(np.mean(self.losses))


def fit_auto(
    series: Any,
    spec: Spec,
    runtime: Runtime,
    horizon: int | Literal["simulation"] = 30,
) -> Posterior:
    """The posterior, or the mixture of several, that forecasts held-out training rows best.

    Parameters
    ----------
    series
        Training experiments in the user's units.
    spec
        Sizes and delay are those asked for, or "auto".
    runtime
        Chains, seed and progress.
    horizon
        Steps ahead at which linear models are judged, or "simulation".

    Returns
    -------
    A `Stack`, or a `Posterior` where one carries nearly all of the weight.
    """
    experiments = as_list(series)
    dataset = Dataset.of(experiments, delay=spec.delay)
    spec = spec.replace(delay=dataset.delay or 0)
    judged_by = council(list(dataset.scaled), horizon)
    folds = make_folds(dataset.experiments)
    quiet = runtime.replace(progress=False)
    if not folds:
        order = judged_by.orders[0] if spec.state_dim == "auto" else spec.state_dim
        return fit_posterior(experiments, spec=spec.replace(method="quick", start="em", state_dim=order), runtime=quiet)
    with announcing(runtime.progress, "candidates") as announce:
        linear = judge_all({name: Spec(method=name, delay=spec.delay) for name in LINEAR}, folds, quiet, announce)
        nonlinear = judge_nonlinear(spec, judged_by, dataset, folds, quiet, announce)
    ranked = sorted(nonlinear, key=lambda name: nonlinear[name].loss)
    members = {name: nonlinear[name] for name in ranked[:MOST_NONLINEAR]} | linear
    best = ranked[0] if ranked else ""

    def finish(name: str) -> Posterior:
        chains = 1 if name in linear else runtime.num_chains
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return fit_posterior(experiments, spec=members[name].spec, runtime=quiet.replace(num_chains=chains))

    stack = combine({name: member.weighed for name, member in members.items()}, finish)
    rows = comparison({**nonlinear, **linear})
    weights = dict(zip(stack.members, stack.weights, strict=True))
    if weights.get(best, 0.0) >= ALMOST_ALL:
        return dataclasses.replace(stack.members[best], comparison=rows)
    notes = stack.notes
    if linear and ranked and not is_better(nonlinear[best], min(linear.values(), key=lambda member: member.loss)):
        notes = (
            "The nonlinear model does not forecast held-out training rows better than linear models by one "
            "standard error: forecasts are those of a mixture of both.",
            *notes,
        )
    return dataclasses.replace(stack, comparison=rows, notes=notes)


SAMPLER_SETTINGS = ("num_warmup", "num_draws", "thin", "checkpoint", "resume", "keep_states", "chunk")
LADDER_SETTINGS = ("state_dim", "num_inducing", "kernel", "likelihood", "delay")


def fit(
    series: Any,
    u: Any = None,
    *,
    outputs: Sequence[str] | str | None = None,
    inputs: Sequence[str] | str | None = None,
    spec: Spec | None = None,
    runtime: Runtime | None = None,
    horizon: int | Literal["simulation"] = 30,
    **settings: Any,
) -> Posterior:
    """Fit a model to one series or several: by default the one that forecasts held-out rows best.

        posterior = gpssm.fit(train)
        posterior = gpssm.fit(frame, outputs=["level"], inputs=["pump"])
        posterior = gpssm.fit(train, method="ffvd", state_dim=2)

    With `method="auto"` linear models of many orders and quick nonlinear posteriors are compared
    by their forecasts of held-out training rows, and the result is the best posterior, or a
    mixture of several. Any other method is fitted as it is: see `gpssm.Spec`. It is also chosen,
    as `ffvd`, where settings are given that only one method can follow: the numbers of its
    iterations, its start, its noise, a basis, a wiring, physics, a prior.

    Parameters
    ----------
    series
        A `Series`, anything `Series.of` takes, or a list of those, in the user's units; or outputs
        as an array, with inputs `u`; or a DataFrame, or several, whose columns `outputs` and
        `inputs` name.
    u
        Inputs, where outputs are an array.
    outputs, inputs
        Columns of a DataFrame, or names for those of arrays.
    spec
        What to fit, by one method. `posterior.spec` is that of a fit.
    runtime
        How to run: chains, seed, progress, checkpoint.
    horizon
        Steps ahead at which linear models are compared, or "simulation"; for `method="auto"`.
    settings
        Fields of `gpssm.Spec` and `gpssm.Runtime` by name, in place of those of `spec` and
        `runtime`: `state_dim=2`, `kernel="matern52"`, `num_chains=2`, `seed=1`; and num_warmup,
        num_draws and thin, which are the method's.
    """
    data = as_given(series, u, outputs, inputs)
    method = settings.get("method")
    plain = spec is None and not set(settings) - {*LADDER_SETTINGS, *RUNTIME_FIELDS} - {"method"}
    plain = plain and not set(settings) & set(SAMPLER_SETTINGS)
    if not (isinstance(method, str) and method == "auto") and not (method is None and plain):
        return fit_posterior(data, spec=spec, runtime=runtime, **settings)
    wanted = {"state_dim": "auto", "num_inducing": "auto", **settings}
    wanted.pop("method", None)
    if refused := [name for name in wanted if name not in (*LADDER_SETTINGS, *RUNTIME_FIELDS)]:
        raise TypeError(
            f"method='auto' chooses {', '.join(refused)} itself: leave it out, or name a method, method='ffvd'."
        )
    asked, how = with_settings(Spec(), runtime or Runtime(), wanted)
    return fit_auto(data, asked, how, horizon)


def judge_nonlinear(
    spec: Spec, linear: Council, dataset: Dataset, folds: Sequence[Fold], runtime: Runtime, announce: Any
) -> dict[str, Judged]:
    """Quick posteriors of several orders, then variations of the best of them."""
    base = spec.replace(method="quick", start="em", noise="free")
    points = FEW_POINTS if spec.num_inducing == "auto" else spec.num_inducing
    orders = candidate_orders(linear, dataset) if spec.state_dim == "auto" else [spec.state_dim]
    emissions = ["gaussian"] if spec.likelihood == "auto" else [spec.likelihood]
    first = {
        f"order {order}": base.replace(state_dim=order, num_inducing=points, likelihood=emissions[0])
        for order in orders
    }
    judged = judge_all(first, folds, runtime, announce)
    if not judged:
        raise RuntimeError("no candidate could be fitted to three quarters of the training rows: name a method")
    best = min(judged.values(), key=lambda candidate: candidate.loss).spec
    name = f"order {best.state_dim}"
    variations = {f"{name}, noise {QUIET}": best.replace(noise=QUIET)}
    if spec.num_inducing == "auto":
        variations[f"{name}, {MANY_POINTS} points"] = best.replace(num_inducing=MANY_POINTS)
    if dataset.inputs:
        variations[f"{name}, shooting"] = best.replace(start="output-error+shooting")
    if spec.likelihood == "auto" and may_be_rectified(dataset.experiments):
        variations[f"{name}, abs"] = best.replace(likelihood="abs", start="output-error+shooting")
    return judged | judge_all(variations, folds, runtime, announce)


def candidate_orders(linear: Council, dataset: Dataset) -> list[int]:
    """State orders around the best linear one, never fewer than the outputs."""
    best = max(linear.orders[0], len(dataset.outputs))
    return sorted(
        {order for order in (best - 1, best, best + 2) if len(dataset.outputs) <= order <= MAX_ORDER} or {best}
    )


def judge_all(specs: Mapping[str, Spec], folds: Sequence[Fold], runtime: Runtime, announce: Any) -> dict[str, Judged]:
    """The candidates that could be fitted to every fold, judged."""
    judged = {}
    for name, spec in specs.items():
        announce(name)
        try:
            judged[name] = judge(spec, folds, runtime)
        except (ArithmeticError, RuntimeError, ValueError):
            continue
    return judged


def judge(spec: Spec, folds: Sequence[Fold], runtime: Runtime) -> Judged:
    """Rolling forecasts of each fold's held-out rows by a candidate fitted to the others."""
    densities = []
    losses = []
    for fold in folds:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior = fit_posterior(fold.series, spec=spec, runtime=runtime.replace(num_chains=1))
        for _, forecast, rows, horizon, _ in held_out_forecasts(posterior, fold, STACKING, runtime.seed):
            paths, y = forecast.paths[:, :horizon], rows.y[:horizon]
            if not np.isnan(y).all():
                densities.append(metrics.log_density(paths, y)[~np.isnan(y)])
                losses.append(metrics.crps(paths, y, scale=forecast.scale))
    if not densities:
        raise ValueError("no output was observed in the held-out rows")
    held = sum(len(rows) for fold in folds for rows in fold.rest.values())
    log_densities = np.concatenate(densities)
    if not np.isfinite(log_densities).all():
        raise ArithmeticError("forecasts of held-out rows are not finite")
    return Judged(spec, Weighed(log_densities, float(np.mean(losses)), held), np.array(losses))


def is_better(first: Judged, second: Judged) -> bool:
    """Whether the first has a lower loss by more than one standard error over forecasts."""
    gain = second.losses - first.losses
    return bool(np.mean(gain) > np.std(gain) / np.sqrt(max(len(gain) / 3, 1)))  # three overlap


def comparison(judged: Mapping[str, Judged]) -> tuple[dict[str, Any], ...]:
    """A row for every candidate, best first."""
    rows = [
        {
            "candidate": name,
            "method": member.spec.method_name,
            "state_dim": member.spec.state_dim,
            "num_inducing": member.spec.num_inducing,
            "start": member.spec.start,
            "noise": member.spec.noise,
            "crps": member.loss,
        }
        for name, member in judged.items()
    ]
    return tuple(sorted(rows, key=lambda row: row["crps"]))
