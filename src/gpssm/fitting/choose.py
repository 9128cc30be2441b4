"""Which start, which noise, which emission: candidates compared by their forecasts inside the training rows.

A quarter of every series is held out, once at its end and once at its beginning. In each of the two *folds* a candidate
is started on the other rows, runs a short chain, and forecasts the held-out rows from many origins, the state found by
a filter and the functions as they were learned:

    rolling   the mean CRPS of the first 30 steps, over all origins
    run       the mean CRPS of free runs to the end, over the origins in the first half

Both are over the standard deviation of the outputs. The score is the geometric mean of the two and of the folds: what
is twice as good in one of them outweighs what is twice as bad in another, whatever their scale.

All starts are judged first, with the process noise free. If the best of them comes from shooting, smaller and smaller
noises are tried from it while that helps. No row that was not given to `fit` is seen. Chains of all candidates and
folds share their compiled programs, since the folds are equally long.

The chains of the fit are then shared out: the first begins where the best candidate does, and each one more where the
candidate does whose forecasts, mixed with those of the chains before it, have the best score (Caruana et al. 2004). So
candidates that are about as good, each in its own way, are mixed, and one that is far better has all chains.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from gpssm.core.metrics import fair_crps
from gpssm.core.runtime import in_double_precision, in_threads
from gpssm.data.dataset import Dataset
from gpssm.data.scaler import Scaler
from gpssm.data.series import Series
from gpssm.fitting.transfer import inherit
from gpssm.inference.chains import Chains
from gpssm.inference.progress import announcing
from gpssm.inference.runner import Runtime
from gpssm.inference.settings import MethodSettings
from gpssm.linear.state_space import LinearFit
from gpssm.methods.spec import ChainStart, Spec
from gpssm.model.likelihoods import Likelihood
from gpssm.model.types import Draw
from gpssm.posterior.draws import Seconds, absorb_common
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.validation import Errors, Fold, held_out_errors, make_folds
from gpssm.starts.build import Start, assign_roles
from gpssm.starts.physics import Physics
from gpssm.starts.shooting import shoot
from gpssm.starts.start import SMALL, STARTS, NoiseRegime, make_starts, with_noise

WARMUP = 200  # iterations of a chain's warm-up, of which it runs no more than the part in which leaves are learned
SKIP = 80  # iterations before a chain is judged
KEPT, THIN = 24, 2  # draws to judge by, iterations between them
NOISES = (
    0.02,
    SMALL,
)  # √Q of the regimes to try beside the free one, each if the one before was an improvement
NEAR_ZERO = 0.05  # of the outputs' range: outputs that come as near to zero, and never below, may have lost a sign
GAIN = 0.95  # times the score without, at most: what another start must be worth for chains not to be one posterior
MODEL_STREAM = 2**32 - 1  # random stream of the parts of a model, in place of a chain's number
WORSE = 1.1  # times the CRPS of the start's own free runs, from which on a fit is called worse than its start


class Verdict(NamedTuple):
    """How forecasts were, in standard deviations of the outputs."""

    rolling: float
    run: float

    @property
    def score(self) -> float:
        """√(rolling · run)."""
        score = math.sqrt(self.rolling * self.run)
        return score if math.isfinite(score) else math.inf


class Chain:
    """A short chain of one candidate on one fold."""

    def __init__(
        self, method: MethodSettings, start: Start, scaler: Scaler, fold: Fold, seed: int
    ) -> None:
        self.model = start.model
        self.seed = seed
        self.dataset = Dataset(tuple(fold.series), scaler)
        self.chains = Chains(method, [start], list(self.dataset.scaled), seed, 1, "map", KEPT)
        self.carry = self.chains.start(pilot=False)
        # No iterations yet, but the program for them: chains that run at the same time would each compile it.
        self.chains.advance(self.carry, 1, 0, 1, keep=False)

    def at_start(self) -> Draw:
        """Draws at the start itself: its states and parameters, and weights given these."""
        drawn: Any = [
            self.chains.advance(self.carry, 1 + number, 1, 0, keep=True)[1].draws
            for number in range(KEPT)
        ]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *drawn)

    def run(self) -> Draw:
        """The draws after some iterations."""
        carry, _ = self.chains.advance(self.carry, 1, 1, SKIP, keep=False)
        _, (_, draws) = self.chains.advance(carry, 1 + SKIP, KEPT, THIN, keep=True)
        return cast(Draw, draws)

    def posterior(self, draws: Draw) -> Posterior:
        """That of these draws."""
        # Leaves that are still being optimised count as they are by now.
        ends = {name: np.asarray(draws.leaves[name]) for name in self.model.leaves("optimise")}
        learned: Any = {
            name: np.broadcast_to(leaf[:, -1:], leaf.shape) for name, leaf in ends.items()
        }
        model, draws = absorb_common([self.model], draws._replace(leaves=draws.leaves | learned))
        nothing: Any = None
        return Posterior(
            model, draws, nothing, nothing, self.dataset, Spec(), Seconds(0, 0, 0), self.seed
        )


def judge(several: Sequence[Sequence[Errors]]) -> Verdict:
    """The figures of a mixture of forecasts, from the errors of each: of one, if there is one."""
    rolling, runs = [], []
    for same in zip(*several, strict=True):
        crps = fair_crps(np.concatenate([one.values for one in same]))
        rolling.append(
            np.nanmean(crps[: same[0].horizon])
            if np.isfinite(crps[: same[0].horizon]).any()
            else np.nan
        )
        if same[0].early:
            runs.append(np.nanmean(crps) if np.isfinite(crps).any() else np.nan)
    return Verdict(float(np.nanmean(rolling)), float(np.nanmean(runs)))


def competitors(series: Sequence[Series]) -> list[str]:
    """The starts that compete by default.

    Without inputs the simulation of a linear model dies away, or oscillates for ever. With them it is no match for what
    shooting makes of it.
    """
    return ["em", "output-error+shooting" if series[0].input_dim > 0 else "em+shooting"]


def may_be_rectified(series: Sequence[Series]) -> bool:
    """Whether outputs touch zero and never go below: they may be the absolute value of what changes sign."""
    y = np.concatenate([item.y for item in series])
    lowest, highest = np.nanmin(y, 0), np.nanmax(y, 0)
    return series[0].input_dim > 0 and bool(np.all((lowest >= 0) & (lowest <= NEAR_ZERO * highest)))


class StartChoice(NamedTuple):
    """What a fit begins with, and how it was chosen.

    Parameters
    ----------
    spec
        What is asked for, with nothing left to choose.
    starts
        The start of each chain, or one for all.
    scaler, series
        The scaler that suits the likelihood, and the series scaled by it.
    comparison
        A row for every candidate, best first; empty if there was nothing to compare.
    held_out
        The short chains of the best candidate, each with the fold that it was judged on.
    separate
        Whether each chain has a start of its own, so that chains share no part of the warm-up.
    """

    spec: Spec
    starts: list[Start]
    scaler: Scaler
    series: list[Series]
    comparison: tuple[dict[str, Any], ...] = ()
    held_out: tuple[tuple[Posterior, Fold], ...] = ()
    separate: bool = False


def choose_starts(spec: Spec, series: Sequence[Series], runtime: Runtime) -> StartChoice:
    """Where each chain starts: as the spec says, or the best of the candidates it leaves open.

    Parameters
    ----------
    spec
        What is asked for, with sizes that are numbers.
    series
        The training experiments in the user's units, with inputs as they arrive.
    runtime
        Its number of chains, seed and progress are used.
    """
    if spec.prior is not None:
        return _inherited(spec, series, runtime)
    if spec.physics is not None:
        return _from_physics(spec, series)
    key = jax.random.fold_in(jax.random.key(runtime.seed, impl="threefry2x32"), MODEL_STREAM)
    if start_names(spec, series) is None:
        return _from_states(spec, series, key)
    candidates = first_candidates(spec, series)
    noises = candidate_noises(spec, len(start_names(spec, series) or ()) > 1)
    taken = candidates[:1] * runtime.num_chains
    comparison, notes, held_out = (), (), ()
    if isinstance(spec.start, tuple) and isinstance(spec.start[0], ChainStart):
        taken = [candidates[chain % len(candidates)] for chain in range(runtime.num_chains)]
    elif len(candidates) * len(noises) > 1:
        trials = Trials(series, runtime.seed, key)
        if trials.folds:
            with announcing(runtime.progress, "starts") as trials.announce:
                taken, comparison, notes = compare_candidates(
                    trials, candidates, noises, runtime.num_chains
                )
            held_out = tuple(zip(trials.posteriors[taken[0]], trials.folds, strict=True))
    best = taken[0]
    separate = False
    scaler, scaled = best.scale(series)
    if has_own_start(best):
        starts = [best.settings.prepare(scaled, best, key)]
    else:
        separate = len(set(taken)) > 1 or STARTS[best.start].shooting
        taken = taken if separate else taken[:1]
        starts = starts_of(taken, scaled, key)
    starts = [
        with_noise(start, candidate.noise) for start, candidate in zip(starts, taken, strict=False)
    ]
    notes = (*dict.fromkeys(note for start in starts for note in start.notes), *notes)
    starts[0] = starts[0]._replace(notes=notes)
    starts = [start._replace(model=assign_roles(start.model, best)) for start in starts]
    if len(set(taken)) > 1:
        best = best.replace(
            start=tuple(ChainStart(item.start, item.noise) for item in taken), noise="auto"
        )
    return StartChoice(best, starts, scaler, scaled, comparison, held_out, separate)


def has_own_start(spec: Spec) -> bool:
    """Whether the method makes its model from the data alone, as the baselines do."""
    return type(spec.settings).prepare is not MethodSettings.prepare


def start_names(spec: Spec, series: Sequence[Series]) -> list[str] | None:
    """The starts to compare, or the only one; None where states are given."""
    own = has_own_start(spec)
    if isinstance(spec.start, str):
        if spec.start != "auto":
            names = [spec.start]
        else:
            names = competitors(series) if spec.settings.compares and not own else ["em"]
    elif spec.gives_states:
        return None
    else:
        names = [start if isinstance(start, str) else start.name for start in spec.start]
    if unknown := [name for name in names if name not in STARTS]:
        known = ", ".join(["auto", *STARTS])
        raise KeyError(
            f"Unknown start {unknown[0]!r}. Known: {known}; or give a path of states for each series."
        )
    if own and names != ["em"]:
        raise ValueError(
            f"{type(spec.settings).__name__} has a start of its own: leave out start={spec.start!r}."
        )
    return names


def candidate_noises(spec: Spec, compared: bool) -> list[NoiseRegime | float]:
    """Regimes of the process noise: the first for all starts, the others for the best of them only."""
    if spec.noise == "auto":
        return ["free", *NOISES] if compared else ["free"]
    return [spec.noise]


def first_candidates(spec: Spec, series: Sequence[Series]) -> list[Spec]:
    """The candidates that are compared first: every start under every emission, with one noise regime."""
    names = start_names(spec, series) or []
    if isinstance(spec.start, tuple) and isinstance(spec.start[0], ChainStart):
        return [
            spec.replace(
                start=start.name, noise=start.noise, likelihood=_emissions(spec, series, False)[0]
            )
            for start in spec.start
        ]
    compared = len(names) > 1
    emissions = _emissions(spec, series, compared)
    noise = candidate_noises(spec, compared)[0]
    return [
        spec.replace(start=name, noise=noise, likelihood=emission)
        for emission in emissions
        for name in names
        # Behind a link that loses the sign, the linear fit `em` is that of output-error.
        if not (name == "em+shooting" and len(emissions) > 1 and emission in ("abs", "square"))
    ]


def _emissions(spec: Spec, series: Sequence[Series], compared: bool) -> list[str | Likelihood]:
    if not (isinstance(spec.likelihood, str) and spec.likelihood == "auto"):
        return [spec.likelihood]
    return ["gaussian", "abs"] if compared and may_be_rectified(series) else ["gaussian"]


def starts_of(candidates: Sequence[Spec], series: list[Series], key: PRNGKeyArray) -> list[Start]:
    """The start of each chain on scaled series; after shooting each chain has a shot of its own."""
    starts: dict[int, Start] = {}
    for name in dict.fromkeys(candidate.start for candidate in candidates):
        chains = [chain for chain, candidate in enumerate(candidates) if candidate.start == name]
        spec = candidates[chains[0]]
        shots = chains if STARTS[name].shooting else chains[:1]
        fits = [STARTS[name].linear(series, spec)] * len(shots)
        keys = [jax.random.fold_in(key, chain) if chain else key for chain in shots]
        made = make_starts(name, spec, [series] * len(shots), fits, keys, spec.settings.slack)
        starts |= zip(chains, made if STARTS[name].shooting else made * len(chains), strict=True)
    return [starts[chain] for chain in range(len(candidates))]


def _from_states(spec: Spec, series: Sequence[Series], key: PRNGKeyArray) -> StartChoice:
    """A start at the states that the user gave, one path for each series."""
    spec = spec.replace(
        likelihood=_emissions(spec, series, False)[0], noise=candidate_noises(spec, False)[0]
    )
    scaler, scaled = spec.scale(series)
    start = spec.settings.prepare(scaled, spec, key)
    single = len(series) == 1 and np.ndim(spec.start[0]) == 1
    paths = [np.asarray(path, float) for path in ([spec.start] if single else spec.start)]
    expected = [path.shape for path in start.states]
    if [path.shape for path in paths] != expected:
        raise ValueError(
            f"start takes states of shapes {expected}, (T+1, Dx) for each series; got {[path.shape for path in paths]}."
        )
    start = with_noise(start._replace(states=paths), spec.noise)
    return StartChoice(
        spec, [start._replace(model=assign_roles(start.model, spec))], scaler, scaled
    )


def _from_physics(spec: Spec, series: Sequence[Series]) -> StartChoice:
    """The start that the user's physics describes."""
    if not isinstance(spec.physics, Physics):
        raise TypeError(
            "physics is not stored in files: give it again, gpssm.fit(data, spec=spec.replace(physics=...))."
        )
    standard = {
        "kernel": "se",
        "mean": "linear",
        "basis": "inducing",
        "wiring": None,
        "coupling": "none",
    }
    if any(getattr(spec, name) != value for name, value in standard.items()):
        raise ValueError(
            "physics says what the model is: leave out kernel, mean, basis, wiring and coupling."
        )
    names_start = isinstance(spec.start, str) and spec.start in ("auto", "shooting")
    if not names_start or spec.likelihood not in ("auto", "gaussian"):
        raise ValueError(
            "physics says where its states start and how they are seen: leave out likelihood, and start too, or take "
            "start='shooting' to begin at what simulations of windows make of it."
        )
    noise = candidate_noises(spec, False)[0]
    spec = spec.replace(likelihood="gaussian", noise=noise)
    scaler, scaled = spec.scale(series)
    start = spec.physics.start(series, scaler)
    if spec.start == "shooting":
        held = start._replace(model=start.model.with_roles("fix", *spec.fixed))
        shot = shoot(held, scaled).start
        learned = {
            name: leaf
            for name, leaf in shot.model.leaves().items()
            if name in held.model.free_leaves()
        }
        start = start._replace(model=start.model.with_leaves(learned), states=shot.states)
    start = with_noise(start, noise)
    spec = spec.replace(state_dim=start.model.state_dim, num_inducing=start.model.basis.size)
    return StartChoice(
        spec, [start._replace(model=assign_roles(start.model, spec))], scaler, scaled
    )


def _inherited(spec: Spec, series: Sequence[Series], runtime: Runtime) -> StartChoice:
    """The start of a fit with the posterior of a similar system as its prior: all but the states are the prior's."""
    prior: Posterior = spec.prior
    scaler = prior.dataset.scaler
    scaled = [scaler.scale(item) for item in series]
    start = inherit(prior, scaled, spec.prior_strength, runtime.seed)
    model = assign_roles(start.model, spec, inherited=True)
    return StartChoice(spec, [start._replace(model=model)], scaler, scaled)


class Trials:
    """The chains of all candidates so far, on all folds, and how they forecast."""

    def __init__(self, series: Sequence[Series], seed: int, key: PRNGKeyArray) -> None:
        self.series = series
        self.seed = seed
        self.key = key
        self.folds = make_folds(series)
        self.linear: dict[Any, list[LinearFit]] = {}
        self.starts: dict[Any, list[Start]] = {}
        self.chains: dict[Spec, list[Chain]] = {}
        self.posteriors: dict[Spec, list[Posterior]] = {}  # on each of the folds
        self.errors: dict[Spec, list[list[Errors]]] = {}  # the same
        self.rows: dict[Spec, dict[str, Any]] = {}
        self.announce: Callable[[str], None] = lambda message: None  # what is tried next

    def run(self, candidate: Spec) -> None:
        """Run a candidate's chains, and judge them."""
        began = time.process_time()
        row = candidate_row(candidate)
        behind = "" if row["likelihood"] == "gaussian" else f", {row['likelihood']}"
        self.announce(f"{candidate.start}, noise {candidate.noise}{behind}")
        row |= {"score": math.inf, "rolling": math.inf, "run": math.inf, "left": 1.0}
        try:
            chains = self.chains[candidate] = self._begin(candidate)
            draws = in_threads(Chain.run, chains)
            posteriors = self.posteriors[candidate] = [
                chain.posterior(drawn) for chain, drawn in zip(chains, draws, strict=True)
            ]
            errors, left = self._errors(posteriors)
        except (ArithmeticError, RuntimeError, ValueError) as error:
            row["failed"] = str(error)
        else:
            self.errors[candidate] = errors
            verdicts = [judge([fold]) for fold in errors]
            row["score"] = _mean([verdict.score for verdict in verdicts])
            row["left"] = float(np.mean(left))
            row["rolling"] = _mean([verdict.rolling for verdict in verdicts])
            row["run"] = _mean([verdict.run for verdict in verdicts])
        row["cpu_seconds"] = time.process_time() - began
        self.rows[candidate] = row

    def ranked(self) -> list[Spec]:
        """Best first; in a tie the one that came first."""
        return sorted(self.rows, key=lambda candidate: self.rows[candidate]["score"])

    def score(self, mixed: Sequence[Spec]) -> float:
        """That of the mixture of these candidates' forecasts, each with the same weight."""
        folds = zip(*(self.errors[candidate] for candidate in mixed), strict=True)
        return _mean([judge(fold).score for fold in folds])

    def share_out(self, num_chains: int) -> list[Spec]:
        """The candidate of each chain, the best first: greedily what makes the mixture better, or the same again."""
        best = self.ranked()[0]
        taken = [best]
        least = 1.0 if STARTS[best.start].shooting else GAIN
        # Chains differ in their arrays, not in what they are made of.
        among = [candidate for candidate in self.errors if candidate.likelihood is best.likelihood]
        while len(taken) < num_chains:
            scores = {candidate: self.score([*taken, candidate]) for candidate in among}
            new = min(among, key=scores.__getitem__)
            taken.append(new if scores[new] < least * scores[best] else best)
        return sorted(taken, key=taken.index)

    def at_start(self, candidate: Spec) -> float:
        """The CRPS of the simulations of the start itself."""
        errors, _ = self._errors(
            [chain.posterior(chain.at_start()) for chain in self.chains[candidate]]
        )
        return _mean([judge([fold]).run for fold in errors])

    def _errors(self, posteriors: Sequence[Posterior]) -> tuple[list[list[Errors]], list[float]]:
        """What each fold's posterior forecasts of its held-out rows, and the shares of paths that left."""
        pairs = zip(posteriors, self.folds, strict=True)
        judged = [held_out_errors(posterior, fold, self.seed) for posterior, fold in pairs]
        return [errors for errors, _ in judged], [left for _, left in judged]

    def _begin(self, candidate: Spec) -> list[Chain]:
        """A chain at the candidate's start, on each of the folds."""
        emission = candidate_row(candidate)["likelihood"]
        scaled = [candidate.scale(fold.series) for fold in self.folds]
        method = STARTS[candidate.start]
        if (method.linear, emission) not in self.linear:
            self.linear[method.linear, emission] = [
                method.linear(series, candidate) for _, series in scaled
            ]
        if (candidate.start, emission) not in self.starts:
            self.starts[candidate.start, emission] = make_starts(
                candidate.start,
                candidate,
                [series for _, series in scaled],
                self.linear[method.linear, emission],
                [self.key] * len(scaled),
                candidate.settings.slack,
            )
        chains = []
        for fold, (scaler, _), start in zip(
            self.folds, scaled, self.starts[candidate.start, emission], strict=True
        ):
            held = with_noise(start, candidate.noise)
            held = held._replace(model=assign_roles(held.model, candidate))
            method_settings = dataclasses.replace(candidate.settings, num_warmup=WARMUP)
            chains.append(Chain(method_settings, held, scaler, fold, self.seed))
        return chains


def candidate_row(candidate: Spec) -> dict[str, Any]:
    """What a candidate is, for a table."""
    likelihood = candidate.likelihood
    name = likelihood if isinstance(likelihood, str) else type(likelihood).__name__
    return {"start": candidate.start, "noise": candidate.noise, "likelihood": name}


@in_double_precision
def compare_candidates(
    trials: Trials, first: Sequence[Spec], noises: Sequence[NoiseRegime | float], num_chains: int
) -> tuple[list[Spec], tuple[dict[str, Any], ...], tuple[str, ...]]:
    """The candidate of each chain, the figures of all, best first, and what there is to say about the best.

    Parameters
    ----------
    trials
        What runs and judges candidates.
    first
        The candidates that are compared first.
    noises
        Regimes of the process noise: the first is that of these candidates, the others are tried for the best only.
    num_chains
        Number of chains to share out.
    """
    for candidate in first:
        trials.run(candidate)
    best = trials.ranked()[0]
    if all("failed" in trials.rows[candidate] for candidate in first):
        reasons = {candidate.start: trials.rows[candidate]["failed"] for candidate in first}
        raise RuntimeError(
            "every candidate start failed on the reduced training sets by which starts are compared. "
            + " ".join(f"{name}: {reason}." for name, reason in reasons.items())
            + " Name one, start='em', to have it tried on all rows"
        )
    quieter = [best.replace(noise=noise) for noise in noises[1:] if STARTS[best.start].shooting]
    for before, candidate in pairwise([best, *quieter]):
        trials.run(candidate)
        if trials.rows[candidate]["score"] > trials.rows[before]["score"]:
            break
    taken = trials.share_out(num_chains)
    for candidate in taken:
        trials.rows[candidate]["chains"] = taken.count(candidate)
    best, notes = taken[0], ()
    at_start = trials.at_start(best)
    row = trials.rows[best]
    row["run_of_start"] = at_start
    if row["run"] > WORSE * at_start:
        notes = (
            f"On held-out training rows the fit's simulations are worse than those of its start, {best.start}: CRPS "
            f"{row['run']:.3g} against {at_start:.3g} standard deviations. Longer chains, or noise='small', may help.",
        )
    return taken, tuple(_plain(trials.rows[candidate]) for candidate in trials.ranked()), notes


def _mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """The row with None for figures that are no numbers, so that it can be written down."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }
