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
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from gpssm.core.metrics import fair_crps
from gpssm.core.runtime import in_double_precision, in_threads
from gpssm.data.scaler import Scaler
from gpssm.data.series import Series
from gpssm.inference.chains import Chains, Recipe
from gpssm.inference.progress import Mode, announcing
from gpssm.inference.settings import MethodSettings
from gpssm.model.likelihoods import Likelihood, make_likelihood
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw
from gpssm.posterior.draws import Seconds, absorb_common
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.validation import Errors, Fold, held_out_errors, make_folds
from gpssm.starts.build import LinearStart, Parts
from gpssm.starts.start import SMALL, STARTS, Noise, Start, Task, make_starts, with_noise

WARMUP = 200  # iterations of a chain's warm-up, of which it runs no more than the part in which leaves are learned
SKIP = 80  # iterations before a chain is judged
KEPT, THIN = 24, 2  # draws to judge by, iterations between them
NOISES = (0.02, SMALL)  # √Q of the regimes to try beside the free one, each if the one before was an improvement
NEAR_ZERO = 0.05  # of the outputs' range: outputs that come as near to zero, and never below, may have lost a sign
GAIN = 0.95  # times the score without, at most: what another start must be worth for chains not to be one posterior
WORSE = 1.1  # times the CRPS of the start's own free runs, from which on a fit is called worse than its start


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A start, a regime of the process noise and an emission, by name; an emission may be the user's own."""

    start: str
    noise: Noise | float
    likelihood: str | Likelihood

    def row(self) -> dict[str, Any]:
        """Its names, for a table."""
        likelihood = self.likelihood if isinstance(self.likelihood, str) else type(self.likelihood).__name__
        return {"start": self.start, "noise": self.noise, "likelihood": likelihood}


class Choice(NamedTuple):
    """The candidate of each chain, the figures of all, best first, and what there is to say about the best of them."""

    taken: list[Candidate]
    table: list[dict[str, Any]]
    notes: tuple[str, ...]


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
        self, config: MethodSettings, model: GPSSM, states: Any, scaler: Scaler, fold: Fold, seed: int
    ) -> None:
        self.model, self.scaler, self.fold, self.seed = model, scaler, fold, seed
        self.scaled = [scaler.scale(one) for one in fold.series]
        recipe = Recipe(config, model, tuple(jnp.asarray(path) for path in states))
        self.chains = Chains([recipe], self.scaled, seed, 1, "map", KEPT)
        self.carry = self.chains.start(pilot=False)
        # No iterations yet, but the program for them: chains that run at the same time would each compile it.
        self.chains.advance(self.carry, 1, 0, 1, keep=False)

    def at_start(self) -> Draw:
        """Draws at the start itself: its states and parameters, and weights given these."""
        drawn: Any = [self.chains.advance(self.carry, 1 + number, 1, 0, keep=True)[1].draws for number in range(KEPT)]
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
        learned: Any = {name: np.broadcast_to(leaf[:, -1:], leaf.shape) for name, leaf in ends.items()}
        model, draws = absorb_common([self.model], draws._replace(leaves=draws.leaves | learned))
        nothing: Any = None
        scaled, raw, seconds = tuple(self.scaled), tuple(self.fold.series), Seconds(0, 0, 0)
        return Posterior(model, draws, nothing, nothing, scaled, raw, self.scaler, {}, seconds, self.seed)


def judge(several: Sequence[Sequence[Errors]]) -> Verdict:
    """The figures of a mixture of forecasts, from the errors of each: of one, if there is one."""
    rolling, runs = [], []
    for same in zip(*several, strict=True):
        crps = fair_crps(np.concatenate([one.values for one in same]))
        rolling.append(np.nanmean(crps[: same[0].horizon]) if np.isfinite(crps[: same[0].horizon]).any() else np.nan)
        if same[0].early:
            runs.append(np.nanmean(crps) if np.isfinite(crps).any() else np.nan)
    return Verdict(float(np.nanmean(rolling)), float(np.nanmean(runs)))


def competitors(series: Sequence[Series]) -> list[str]:
    """The starts that compete by default.

    Without controls the free run of a linear model dies away, or goes round for ever. With them it is no match for what
    shooting makes of it.
    """
    return ["em", "output-error+shooting" if series[0].input_dim > 0 else "em+shooting"]


def may_be_rectified(series: Sequence[Series]) -> bool:
    """Whether outputs touch zero and never go below: they may be the absolute value of what changes sign."""
    y = np.concatenate([one.y for one in series])
    lowest, highest = np.nanmin(y, 0), np.nanmax(y, 0)
    return series[0].input_dim > 0 and bool(np.all((lowest >= 0) & (lowest <= NEAR_ZERO * highest)))


def with_any_values(likelihood: str | Likelihood, width: int) -> Likelihood:
    """A likelihood to ask what its class says, for which any values will do."""
    return make_likelihood(likelihood, jnp.ones((width, 1)), jnp.ones(width), jnp.ones(width))


class Prepared(NamedTuple):
    """What a fit begins with, and how it was found: a table of candidates, empty if there was nothing to compare."""

    scaler: Scaler
    series: list[Series]
    parts: Parts
    start: Start
    name: str  # of the start, or of several
    noise: Noise | str | float
    table: list[dict[str, Any]]
    without: tuple[tuple[Posterior, Fold], ...] = ()  # the short chains of the candidate taken, on the folds
    others: list[Start] | None = None  # of all chains but the first, where each has a start of its own


class Plan(NamedTuple):
    """What was asked for in the way of a start, as `fit` says."""

    config: MethodSettings
    raw: Sequence[Series]
    likelihood: str | Likelihood
    start: str | Sequence[Any]
    noise: Noise | str | float
    fixed: Sequence[str]
    key: PRNGKeyArray
    seed: int
    num_chains: int = 1
    progress: Mode = False

    def scale(self, likelihood: str | Likelihood) -> tuple[Scaler, list[Series]]:
        """The series as this likelihood may see them."""
        scaler = Scaler.fit(list(self.raw), outputs=with_any_values(likelihood, self.raw[0].output_dim).scaling)
        return scaler, [scaler.scale(one) for one in self.raw]

    def prepare(self, parts: Parts, roles: Callable[[GPSSM], GPSSM]) -> Prepared:
        """The start that was asked for, or the best of those to compare."""
        own = type(self.config).prepare is not MethodSettings.prepare
        names = self._names(own)
        likelihoods = self._likelihoods(compared=names is not None and len(names) > 1)
        noises = self._noises(compared=names is not None and len(names) > 1)
        taken, table, notes = [Candidate("" if names is None else names[0], noises[0], likelihoods[0])], [], ()
        taken *= self.num_chains
        without: tuple[tuple[Posterior, Fold], ...] = ()
        if names is not None and len(names) * len(noises) * len(likelihoods) > 1:
            trials = Trials(self, parts, roles)
            if trials.folds:
                with announcing(self.progress, "starts") as trials.tell:
                    taken, table, notes = choose(trials, names, noises, likelihoods, self.num_chains)
                without = tuple(zip(trials.posteriors[taken[0]], trials.folds, strict=True))
        parts = parts._replace(likelihood=taken[0].likelihood)
        scaler, series = self.scale(parts.likelihood)
        apart = names is not None and not own and (len(set(taken)) > 1 or STARTS[taken[0].start].shooting)
        taken = taken if apart else taken[:1]
        starts = self._starts(taken, series, parts, own)
        if names is None:
            starts = [starts[0]._replace(states=self._states(starts[0].states))]
        rows = sum(len(one) for one in series)
        noisy = zip(starts, taken, strict=True)
        start, *others = (one._replace(model=with_noise(one.model, each.noise, rows)) for one, each in noisy)
        start = start._replace(notes=(*dict.fromkeys(note for one in starts for note in one.notes), *notes))
        name = ", ".join(dict.fromkeys(one.start for one in taken)) or "states"
        several = list(dict.fromkeys(one.noise for one in taken))
        noise = several[0] if len(several) == 1 else ", ".join(map(str, several))
        return Prepared(scaler, series, parts, start, name, noise, table, without, others if apart else None)

    def _starts(self, taken: list[Candidate], series: list[Series], parts: Parts, own: bool) -> list[Start]:
        """The start of each chain; after shooting each has a shot of its own."""
        if own or not taken[0].start:
            return [Start(*self.config.prepare(series, parts, self.key))]
        starts: dict[int, Start] = {}
        for name in dict.fromkeys(one.start for one in taken):
            recipe, chains = STARTS[name], [chain for chain, one in enumerate(taken) if one.start == name]
            linear = recipe.linear(series, parts.state_dim, parts.likelihood, parts.wiring)
            shots = chains if recipe.shooting else chains[:1]
            keys = [jax.random.fold_in(self.key, chain) if chain else self.key for chain in shots]
            tasks = [Task(series, key, linear) for key in keys]
            made = make_starts(name, tasks, parts, self.fixed, self.config.slack)
            starts |= zip(chains, made if recipe.shooting else made * len(chains), strict=True)
        return [starts[chain] for chain in range(len(taken))]

    def _names(self, own: bool) -> list[str] | None:
        """The starts to compare, or the only one; None where states were given."""
        if isinstance(self.start, str):
            if self.start != "auto":
                names = [self.start]
            elif self.config.compares and not own:
                names = competitors(self.raw)
            else:
                names = ["em"]
        elif len(self.start) and all(isinstance(one, str) for one in self.start):
            names = list(self.start)
        else:
            return None
        if unknown := [name for name in names if name not in STARTS]:
            known = ", ".join(["auto", *STARTS])
            raise KeyError(f"Unknown start {unknown[0]!r}. Known: {known}; or give a path of states for each series.")
        if own and names != ["em"]:
            raise ValueError(f"{type(self.config).__name__} has a start of its own: leave out start={self.start!r}.")
        return names

    def _noises(self, compared: bool) -> list[Noise | float]:
        if self.noise == "auto":
            return ["free", *NOISES] if compared else ["free"]
        return [self.noise]  # type: ignore[list-item]

    def _likelihoods(self, compared: bool) -> list[str | Likelihood]:
        if self.likelihood != "auto":
            return [self.likelihood]
        return ["gaussian", "abs"] if compared and may_be_rectified(self.raw) else ["gaussian"]

    def _states(self, like: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The states that were given, one path a series."""
        given = [self.start] if len(self.raw) == 1 and np.ndim(self.start[0]) == 1 else self.start
        paths = [np.asarray(path, float) for path in given]
        if [path.shape for path in paths] != [path.shape for path in like]:
            raise ValueError(
                f"start takes states of shapes {[path.shape for path in like]}, (T+1, Dx) a series; got "
                f"{[path.shape for path in paths]}."
            )
        return paths


class Trials:
    """The chains of all candidates so far, on all folds, and how they forecast."""

    def __init__(self, plan: Plan, parts: Parts, roles: Callable[[GPSSM], GPSSM]) -> None:
        self.config = dataclasses.replace(plan.config, num_warmup=WARMUP)
        self.plan, self.parts, self.roles, self.folds = plan, parts, roles, make_folds(plan.raw)
        self.linear: dict[Any, list[LinearStart]] = {}
        self.starts: dict[Any, list[Start]] = {}
        self.chains: dict[Candidate, list[Chain]] = {}
        self.posteriors: dict[Candidate, list[Posterior]] = {}  # on each of the folds
        self.errors: dict[Candidate, list[list[Errors]]] = {}  # the same
        self.rows: dict[Candidate, dict[str, Any]] = {}
        self.tell: Callable[[str], None] = lambda words: None  # what is tried next

    def run(self, candidate: Candidate) -> None:
        """Run a candidate's chains, and judge them."""
        began = time.process_time()
        emission = candidate.row()["likelihood"]
        behind = "" if emission == "gaussian" else f", {emission}"
        self.tell(f"{candidate.start}, noise {candidate.noise}{behind}")
        row = candidate.row() | {"score": math.inf, "rolling": math.inf, "run": math.inf, "left": 1.0}
        try:
            chains = self.chains[candidate] = self._begin(candidate)
            draws = in_threads(Chain.run, chains)
            found = self.posteriors[candidate] = [
                chain.posterior(drawn) for chain, drawn in zip(chains, draws, strict=True)
            ]
            errors, left = self._errors(found)
        except (ArithmeticError, RuntimeError, ValueError) as error:
            row["failed"] = str(error)
        else:
            self.errors[candidate] = errors
            verdicts = [judge([one]) for one in errors]
            row["score"], row["left"] = _mean([one.score for one in verdicts]), float(np.mean(left))
            row["rolling"], row["run"] = (_mean([one[at] for one in verdicts]) for at in (0, 1))
        row["cpu_seconds"] = time.process_time() - began
        self.rows[candidate] = row

    def ranked(self) -> list[Candidate]:
        """Best first; in a tie the one that came first."""
        return sorted(self.rows, key=lambda one: self.rows[one]["score"])

    def score(self, mixed: Sequence[Candidate]) -> float:
        """That of the mixture of these candidates' forecasts, each with the same weight."""
        folds = zip(*(self.errors[one] for one in mixed), strict=True)
        return _mean([judge(fold).score for fold in folds])

    def share_out(self, num_chains: int) -> list[Candidate]:
        """The candidate of each chain, the best first: greedily what makes the mixture better, or the same again."""
        best = self.ranked()[0]
        taken, least = [best], 1.0 if STARTS[best.start].shooting else GAIN
        # Chains differ in their arrays, not in what they are made of.
        among = [one for one in self.errors if one.likelihood is best.likelihood]
        while len(taken) < num_chains:
            scores = {one: self.score([*taken, one]) for one in among}
            new = min(among, key=scores.__getitem__)
            taken.append(new if scores[new] < least * scores[best] else best)
        return sorted(taken, key=taken.index)

    def at_start(self, candidate: Candidate) -> float:
        """The CRPS of the free runs of the start itself."""
        errors, _ = self._errors([chain.posterior(chain.at_start()) for chain in self.chains[candidate]])
        return _mean([judge([one]).run for one in errors])

    def _errors(self, posteriors: Sequence[Posterior]) -> tuple[list[list[Errors]], list[float]]:
        """What each fold's posterior forecasts of its held-out rows, and the shares of paths that left."""
        pairs = zip(posteriors, self.folds, strict=True)
        found = [held_out_errors(posterior, fold, self.plan.seed) for posterior, fold in pairs]
        return [errors for errors, _ in found], [left for _, left in found]

    def _begin(self, candidate: Candidate) -> list[Chain]:
        """A chain at the candidate's start, on each of the folds."""
        parts, emission = self.parts._replace(likelihood=candidate.likelihood), candidate.row()["likelihood"]
        scaled = [self.plan._replace(raw=fold.series).scale(candidate.likelihood) for fold in self.folds]
        recipe = STARTS[candidate.start]
        if (recipe.linear, emission) not in self.linear:
            shape = (parts.state_dim, parts.likelihood, parts.wiring)
            self.linear[recipe.linear, emission] = [recipe.linear(series, *shape) for _, series in scaled]
        if (candidate.start, emission) not in self.starts:
            pairs = zip(scaled, self.linear[recipe.linear, emission], strict=True)
            tasks = [Task(series, self.plan.key, linear) for (_, series), linear in pairs]
            made = make_starts(candidate.start, tasks, parts, self.plan.fixed, self.config.slack)
            self.starts[candidate.start, emission] = made
        chains = []
        for fold, (scaler, _), start in zip(self.folds, scaled, self.starts[candidate.start, emission], strict=True):
            model = self.roles(with_noise(start.model, candidate.noise, fold.rows))
            chains.append(Chain(self.config, model, start.states, scaler, fold, self.plan.seed))
        return chains


@in_double_precision
def choose(
    trials: Trials,
    starts: Sequence[str],
    noises: Sequence[Noise | float],
    likelihoods: Sequence[Any],
    num_chains: int,
) -> Choice:
    """The best of the candidates, or several of them, for so many chains.

    :param noises: regimes of the process noise: the first for all starts, the others for the best of them only.
    """
    first = [
        Candidate(start, noises[0], likelihood)
        for likelihood in likelihoods
        for start in starts
        if not (start == "em+shooting" and _same_fit(likelihood, likelihoods))
    ]
    for candidate in first:
        trials.run(candidate)
    best = trials.ranked()[0]
    if all("failed" in trials.rows[one] for one in first):
        reasons = {one.start: trials.rows[one]["failed"] for one in first}
        raise RuntimeError(
            "no start led anywhere on the training rows but for a quarter of them, by which starts are compared. "
            + " ".join(f"{name}: {reason}." for name, reason in reasons.items())
            + " Name one, start='em', to have it tried on all rows"
        )
    others = [dataclasses.replace(best, noise=noise) for noise in noises[1:] if STARTS[best.start].shooting]
    for before, candidate in pairwise([best, *others]):
        trials.run(candidate)
        if trials.rows[candidate]["score"] > trials.rows[before]["score"]:
            break
    taken = trials.share_out(num_chains)
    for one in taken:
        trials.rows[one]["chains"] = taken.count(one)
    best, notes = taken[0], ()
    at_start = trials.at_start(best)
    trials.rows[best]["run_of_start"] = at_start
    if trials.rows[best]["run"] > WORSE * at_start:
        notes = (
            f"On held-out training rows the fit's free runs are worse than those of its start, {best.start}: CRPS "
            f"{trials.rows[best]['run']:.3g} against {at_start:.3g} standard deviations. Longer chains, or "
            "noise='small', may help.",
        )
    return Choice(taken, [_plain(trials.rows[one]) for one in trials.ranked()], notes)


def _same_fit(likelihood: Any, likelihoods: Sequence[Any]) -> bool:
    """Whether the linear fit `em` would be that of output-error: behind a link that loses the sign."""
    return len(likelihoods) > 1 and likelihood in ("abs", "square")


def _mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """The row with None for figures that are no numbers, so that it can be written down."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }
