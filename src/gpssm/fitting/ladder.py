"""`method="auto"`: models of increasing cost, weighted by forecasts of held-out training rows.

    linear     a comparison of linear models, the best two as posteriors
    gp-narx    a Gaussian process regression on past outputs and inputs
    quick      a free-form posterior of the order of the best linear models, in seconds
    chains     exact chains from the best of several starts, if all of these forecast poorly
    mixture    p(y) = Σ_k w_k p_k(y), with weights from log scores of held-out rows

Each rung of the ladder gives a usable result. A quarter of each series is held out, once at its end
and once at its beginning; every model is fitted without it and forecasts it from many origins.
These forecasts determine the weights of the models, the calibration of their mixture, and whether
the nonlinear models are better than the linear ones.
"""

import dataclasses
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpssm.core.places import run_tasks
from gpssm.core.runtime import in_double_precision
from gpssm.core.text import count, percent
from gpssm.data.dataset import Dataset
from gpssm.data.series import Series
from gpssm.fitting.choose import choose_starts, competitors
from gpssm.fitting.single import fit_posterior, was_interrupted
from gpssm.inference.runner import Runtime
from gpssm.inference.settings import MethodSettings
from gpssm.linear.council import MEMORY, council
from gpssm.methods.auto import Auto
from gpssm.methods.ffvd import FFVD
from gpssm.methods.gp_narx import GPNARX
from gpssm.methods.linear import ARX, LGSSM, Average, Baseline, Last, RegularisedARX
from gpssm.methods.quick import Quick
from gpssm.methods.spec import Spec
from gpssm.posterior.checks import CHOOSE_METHOD
from gpssm.posterior.diagnostics import with_notes
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.stack import HeldOutScores, Stack, mix, mixture_calibration
from gpssm.posterior.validation import (
    LONGEST_SIMULATION,
    STACKING,
    Fold,
    RollingOrigin,
    make_folds,
)
from gpssm.starts.start import STARTS

# The CRPS of independent draws from the distribution of Gaussian outputs is 1/√π standard
# deviations. Forecasts with more than a third of that leave room for improvement.
POOR = 1 / (3 * np.sqrt(np.pi))
NONLINEAR = 0.9  # weight of a nonlinear model above which the result is its posterior alone
LINEAR_MEMBERS = 2  # number of linear models of different kinds in the mixture
FOLD_CHAINS = 2  # number of chains of a nonlinear model fitted to a fold
# Iterations are cheap for short paths: rows times states up to which a quick posterior has more
# than one iteration per draw, and the maximum.
SHORT, MOST_THIN = 2000, 4
CHAINS = FFVD(num_warmup=300, num_draws=200, precision=200)
# Where all models forecast poorly, a nonlinear model may need a longer memory than linear ones.
CHAIN_STATES = 4
FEWEST_STATES = 2  # of a nonlinear system with an oscillation
FAILURES = (ArithmeticError, RuntimeError, ValueError)


class Member(NamedTuple):
    """A model of the ladder: its resolved spec, its fit to all rows, and its fits to the folds.

    A model without a fit to all rows is only fitted to them if it gets weight.
    """

    spec: Spec
    posterior: Posterior | None
    without: tuple[Posterior, ...]


def is_open(spec: Spec) -> bool:
    """Return whether the spec leaves the choice of model to the ladder.

    If physics, a prior, a wiring, a start or another emission determines the model, `ffvd` is
    fitted to it instead.
    """
    if not isinstance(spec.settings, Auto):
        return False
    standard = Spec()
    unknown = all(getattr(spec, name) is None for name in ("physics", "prior", "wiring"))
    names = ("coupling", "basis", "hyper", "noise", "start")
    # Parts may be objects, which may not be comparable with a name.
    values = [getattr(spec, name) for name in names]
    named = all(isinstance(value, str) for value in values)
    plain = named and values == [getattr(standard, name) for name in names]
    gaussian = isinstance(spec.likelihood, str) and spec.likelihood in ("auto", "gaussian")
    return unknown and plain and gaussian and not len(spec.fixed) and not len(spec.learn)


@in_double_precision
def climb(spec: Spec, experiments: Sequence[Series], runtime: Runtime) -> Posterior | Stack:
    """Fit the models of the ladder as far as they improve the result; Ctrl-C returns the best so
    far.

    Parameters
    ----------
    spec
        The specification of the fit, with the method `auto`.
    experiments
        The training series in the user's units.
    runtime
        The runtime; its callback receives the best result after each rung.
    """
    ladder = Ladder(spec, experiments, runtime)
    try:
        ladder.add_linear()
        ladder.add_nonlinear()
        ladder.weigh()
        if ladder.is_poor():
            ladder.add_chains()
    except KeyboardInterrupt:
        if not ladder.members:
            raise
        ladder.notes.append(
            "Stopped before the comparison of models was finished; this is the best result so far."
        )
    return ladder.answer()


class Ladder:
    """The models so far, and their scores.

    Parameters
    ----------
    spec
        The specification of the fit.
    experiments
        The training series in the user's units.
    runtime
        Chains, seed and other settings of the run.
    """

    def __init__(self, spec: Spec, experiments: Sequence[Series], runtime: Runtime) -> None:
        self.experiments = experiments
        self.runtime = runtime
        dataset = Dataset.of(experiments, delay=spec.delay, windows=spec.windows)
        self.windows = dataset.windowed().experiments
        # Delays are estimated once. Non-Gaussian emissions are only tried by chains.
        self.spec = spec.replace(delay=dataset.delay or 0, likelihood="gaussian", calibrate=False)
        self.likelihood = spec.likelihood
        self.open_order = spec.state_dim == "auto"
        self.orders = [spec.state_dim]
        self.folds = make_folds(experiments)
        self.members: dict[str, Member] = {}
        self.scores: dict[str, HeldOutScores | Exception] = {}
        self.notes: list[str] = []
        horizon = LONGEST_SIMULATION if spec.horizon == "simulation" else spec.horizon
        self.scheme = dataclasses.replace(STACKING, horizon=horizon)

    def add_linear(self) -> None:
        """Compare linear models, and fit the best ones of different kinds as posteriors."""
        candidates = council(self.spec.scale(self.windows)[1], self.spec.horizon)
        if self.open_order:
            self.orders = quick_orders(candidates.orders, self.windows[0].output_dim)
            self.spec = self.spec.replace(state_dim=self.orders[0])
        kinds: dict[str, str] = {}
        for name in candidates.models:
            kinds.setdefault(name.split("-")[0] if name.startswith("ss") else name, name)
        names = list(kinds.values())[:LINEAR_MEMBERS]
        self._fit({name: self.spec.replace(method=linear_settings(name)) for name in names})
        crps = candidates.scores[candidates.best].crps
        score = f", CRPS {crps.mean():.3g} SD on held-out rows" if len(crps) else ""
        self._announce(f"linear: {candidates.best}{score}")

    def add_nonlinear(self) -> None:
        """Fit a Gaussian process regression on lags and a quick posterior, and add quick posteriors
        of other orders.

        If simulations decide, a posterior with little process noise is added for each order too,
        from a start that was fitted to simulations.
        """
        specs: dict[str, Spec] = {}
        standard = Spec()
        if (self.spec.kernel, self.spec.mean) == (standard.kernel, standard.mean):
            specs["gp-narx"] = self.spec.replace(method=GPNARX())
        rows = sum(map(len, self.experiments))
        starts = competitors(self.windows)[: 2 if self.spec.horizon == "simulation" else 1]
        for start, order in itertools.product(starts, self.orders):
            thin = min(max(SHORT // (rows * order), 1), MOST_THIN)
            spec = self.spec.replace(method=Quick(thin=thin), state_dim=order, start=start)
            shooting = STARTS[start].shooting
            states = f", {count(order, 'state')}" if order != self.orders[0] else ""
            name = f"quick{states}{', shooting' if shooting else ''}"
            specs[name] = spec.replace(noise="small" if shooting else "free")
        at_once = ("gp-narx", "quick")
        self._fit({name: spec for name, spec in specs.items() if name in at_once})
        for name, spec in specs.items():
            if name not in at_once:
                self._add(name, spec)

    def weigh(self) -> None:
        """Score all models by their forecasts of the held-out rows."""
        if not self.folds:
            return
        tasks = {
            name: (member.spec, member.without)
            for name, member in self.members.items()
            if name not in self.scores
        }
        runtime = Runtime(num_chains=FOLD_CHAINS, seed=self.runtime.seed, progress=False)
        # Padded to the length of the fit to all rows, to share its programs.
        least_rows = [len(item) for item in self.experiments]
        for name, scores in self._run(
            tasks, partial(_score, self.folds, runtime, least_rows, self.scheme)
        ):
            self.scores[name] = scores
            if isinstance(scores, HeldOutScores):
                self._announce(f"{name}: CRPS {scores.crps:.3g} SD on held-out rows")

    def is_poor(self) -> bool:
        """Return whether the best forecasts of held-out rows leave room for improvement."""
        return min((score.crps for score in self._sound_scores().values()), default=0.0) > POOR

    def add_chains(self) -> None:
        """Fit exact chains from the best starts, run to the end only if they get weight."""
        self._announce("chains: comparing starts")
        spec = self.spec.replace(method=CHAINS, likelihood=self.likelihood)
        if self.open_order:
            spec = spec.replace(state_dim=max(self._best_order(), CHAIN_STATES))
        try:
            choice = choose_starts(spec.resolve(self.windows), self.windows, self.runtime)
        except FAILURES as error:
            self.scores["chains"] = error
            return
        # Folds are those of whole series; windows would have other folds.
        if not choice.held_out or self.spec.windows > 1:
            return
        resolved = choice.spec.replace(delay=self.spec.delay)
        without = tuple(posterior for posterior, _ in choice.held_out)
        self.members["chains"] = Member(resolved, None, without)
        self.weigh()

    def _sound_scores(self) -> dict[str, HeldOutScores]:
        """Return the scores of the models that have not failed."""
        return {
            name: score for name, score in self.scores.items() if isinstance(score, HeldOutScores)
        }

    def _best_order(self) -> int:
        """Return the number of states of the quick posterior with the best forecasts."""
        losses = {
            self.members[name].spec.state_dim: score.crps
            for name, score in self._sound_scores().items()
            if isinstance(self.members[name].spec.settings, Quick)
        }
        return min(losses, key=lambda order: losses[order], default=self.spec.state_dim)

    def answer(self) -> Posterior | Stack:
        """Return the mixture of the models with positive weight, or the one with nearly all the
        weight.

        A note says so if no nonlinear model forecasts better than every linear one by two standard
        errors. Linear models always remain in the mixture: held-out rows are few, and a mixture
        of similar models is seldom worse than the better of them.
        """
        scores = self._sound_scores()
        if not scores or any(name not in self.scores for name in self.members):
            return self._evenly()
        ranked = sorted(scores, key=lambda name: scores[name].crps)
        linear = [name for name in ranked if isinstance(self.members[name].spec.settings, Baseline)]
        nonlinear = [name for name in ranked if name not in linear]
        mixture = mix(self.scores, self._finished)
        notes = list(self.notes)
        if nonlinear and not all(scores[nonlinear[0]].is_better(scores[name]) for name in linear):
            weights = dict(zip(mixture.members, mixture.weights, strict=True))
            share = sum(weights.get(name, 0.0) for name in nonlinear)
            notes.append(
                "On held-out training rows the nonlinear model is not clearly better than a linear "
                f"one ({linear[0]}): it has {percent(share)} of the weight of the mixture."
            )
        answer = dataclasses.replace(mixture, notes=(*notes, *mixture.notes))
        shares = dict(zip(mixture.members, mixture.weights, strict=True))
        name, leading = next(iter(mixture.members.items()))
        if name in nonlinear and shares[name] >= NONLINEAR:
            comparison = (*leading.comparison, *mixture.table)
            answer = with_notes(
                dataclasses.replace(leading, comparison=comparison), notes, CHOOSE_METHOD
            )
            shares = {name: 1.0}
        members = [scores[name] for name in shares]
        try:
            calibration = mixture_calibration(members, np.array(list(shares.values())))
        except ValueError as error:  # held-out outputs are missing, and forecasts remain
            note = f"Intervals are not calibrated: {error}."
            return dataclasses.replace(answer, notes=(*answer.notes, note))
        return dataclasses.replace(answer, calibration=calibration)

    def _fit(self, specs: Mapping[str, Spec]) -> None:
        """Fit models to all rows; a model that fails is dropped."""
        here = self.runtime.jobs == 1 and self.runtime.cluster is None
        progress = self.runtime.progress if here else False
        tasks = {
            name: (spec, self._runtime(name).replace(progress=progress))
            for name, spec in specs.items()
        }
        for name, posterior in self._run(tasks, partial(_fit_all_rows, self.experiments)):
            if isinstance(posterior, Exception):
                self.scores[name] = posterior
                continue
            self._add(name, specs[name], posterior)
            raise_if_interrupted(posterior)
            if self.runtime.callback is not None:
                self.runtime.callback(self._evenly())

    def _add(self, name: str, spec: Spec, posterior: Posterior | None = None) -> None:
        """Add a model, which is fitted to all rows or will be if it gets weight."""
        try:
            self.members[name] = Member(spec.resolve(self.windows), posterior, ())
        except FAILURES as error:
            self.scores[name] = error

    def _run(
        self, tasks: Mapping[str, Any], work: Callable[[Any], Any]
    ) -> Iterator[tuple[str, Any]]:
        """Yield the name and the result of each task, in their order; failures are results."""
        arrivals = run_tasks(list(tasks.values()), work, self.runtime.jobs, self.runtime.cluster)
        results: dict[int, Any] = {}
        for number, name in enumerate(tasks):
            while number not in results:
                arrived, result = next(arrivals)
                results[arrived] = result
            result = results[number]
            if isinstance(result, Exception) and not isinstance(result, FAILURES):
                raise result
            yield name, result

    def _runtime(self, name: str) -> Runtime:
        """Return the runtime of one model, with a separate folder for its checkpoint."""
        runtime = self.runtime.replace(jobs=1, cluster=None, callback=None)
        if runtime.checkpoint is None:
            return runtime
        return runtime.replace(checkpoint=Path(runtime.checkpoint) / name)

    def _finished(self, name: str) -> Posterior:
        """Return the fit of a model to all rows."""
        member = self.members[name]
        if member.posterior is None:
            return fit_posterior(member.spec, self.experiments, self._runtime(name))
        return member.posterior

    def _evenly(self) -> Posterior | Stack:
        """Return all fitted models with equal weights, if there are too few rows to score them."""
        fitted = {
            name: member.posterior
            for name, member in self.members.items()
            if member.posterior is not None
        }
        failures = [
            f"{name} failed and was dropped: {error}"
            for name, error in self.scores.items()
            if isinstance(error, Exception)
        ]
        if not fitted:
            raise RuntimeError(" ".join(failures))
        notes = (*self.notes, *failures)
        if len(fitted) == 1:
            return with_notes(next(iter(fitted.values())), notes, CHOOSE_METHOD)
        weights = [1 / len(fitted)] * len(fitted)
        return Stack.of(fitted, weights, notes=notes)

    def _announce(self, text: str) -> None:
        """Print a message to standard error, unless progress is off."""
        if self.runtime.progress is not False:
            print(f"gpssm: {text}", file=sys.stderr, flush=True)


def _fit_all_rows(experiments: Sequence[Series], task: tuple[Spec, Runtime]) -> Posterior:
    """Fit a model to all rows."""
    spec, runtime = task
    return fit_posterior(spec, experiments, runtime)


def _score(
    folds: Sequence[Fold],
    runtime: Runtime,
    least_rows: Sequence[int],
    scheme: RollingOrigin,
    task: tuple[Spec, tuple[Posterior, ...]],
) -> HeldOutScores:
    """Fit a model without the held-out rows, unless it has been, and return its scores."""
    spec, fitted = task
    without = list(fitted)
    with warnings.catch_warnings(action="ignore"):
        if not without:
            for fold in folds:
                without.append(fit_posterior(spec, fold.series, runtime, least_rows))
                raise_if_interrupted(without[-1])
        return HeldOutScores.of(without, folds, runtime.seed, scheme)


def quick_orders(linear: Sequence[int], output_dim: int) -> list[int]:
    """Return the numbers of states of quick posteriors, from the best orders of linear models.

    There is at least one state per output. Linear models need additional states to follow a
    nonlinear system, so few states are tried too.
    """
    orders = list(dict.fromkeys(max(order, output_dim) for order in linear))
    few = max(FEWEST_STATES, output_dim)
    return [*orders, few] if min(orders) > few else orders


def raise_if_interrupted(posterior: Posterior) -> None:
    """Raise if Ctrl-C has stopped a fit, which then has only some of its draws."""
    if was_interrupted(posterior):
        raise KeyboardInterrupt


def linear_settings(member: str) -> MethodSettings:
    """Return the method that fits a kind of linear model."""
    if member.startswith("ss-"):
        return LGSSM(order=int(member.removeprefix("ss-")))
    return {
        "arx": ARX(),
        "arx-reg": RegularisedARX(),
        "arx-memory": RegularisedARX(lags=MEMORY),
        "last": Last(),
        "mean": Average(),
    }[member]
