"""The choice of start, process noise and emission by forecasts within the training rows.

A quarter of every series is held out, once at its end and once at its beginning. In each of the two
folds, a short chain of the candidate is run on the other rows and forecasts the held-out rows from
many origins. A filter estimates the state; the functions remain fixed:

    rolling   the mean CRPS of the first 30 steps, over all origins
    run       the mean CRPS of simulations to the end, over the origins in the first half

Both are in standard deviations of the outputs. The score is √(rolling · run), averaged over the
folds by the geometric mean, so that relative improvements count equally in all folds.

First, all starts are compared with free process noise. Then decreasing noise levels are tried for
the best start as long as the score improves. Only rows passed to `fit` are used. The chains of all
candidates and folds share compiled programs, since the folds have equal lengths.

The chains of the fit are then distributed. The first starts from the best candidate. Each further
chain starts from the candidate whose forecasts, mixed with those of the previous chains, have the
best score (Caruana et al. 2004). Candidates of similar quality whose errors occur in different
places are thus mixed, and a candidate that is far better gets all chains.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray

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

# Random stream of the parts of a model, which replaces the number of a chain.
MODEL_STREAM = 2**32 - 1


class Verdict(NamedTuple):
    """Mean CRPS of forecasts, in standard deviations of the outputs.

    Parameters
    ----------
    rolling
        Mean CRPS of the first steps from every origin.
    run
        Mean CRPS of simulations to the end of the rows.
    """

    rolling: float
    run: float

    @property
    def score(self) -> float:
        """√(rolling · run), or infinity if it is not a number."""
        score = math.sqrt(self.rolling * self.run)
        return score if math.isfinite(score) else math.inf


# A short chain learns the optimised leaves during this warm-up, of which it runs at most SKIP
# iterations, and is then scored by NUM_DRAWS draws, THIN iterations apart.
WARMUP = 200
SKIP = 80
NUM_DRAWS = 24
THIN = 2


class ShortChain:
    """A chain of one candidate on one fold, of a few iterations.

    Parameters
    ----------
    settings
        The settings of the method.
    start
        The start of the chain.
    scaler
        The scaler of the fold's series.
    fold
        The rows to learn from.
    seed
        Seed of the chain.
    """

    def __init__(
        self, settings: MethodSettings, start: Start, scaler: Scaler, fold: Fold, seed: int
    ) -> None:
        self.model = start.model
        self.seed = seed
        self.dataset = Dataset(tuple(fold.series), scaler)
        series = list(self.dataset.scaled)
        self.chains = Chains(settings, [start], series, seed, 1, "map", NUM_DRAWS)
        self.carry = self.chains.start(pilot=False)
        # Compile the program before chains run in parallel, or each of them would compile it.
        self.chains.advance(self.carry, 1, 0, 1, keep=False)

    def draws_at_start(self) -> Draw:
        """Return draws with the states and parameters of the start, and weights given these."""
        draws: Any = [
            self.chains.advance(self.carry, 1 + number, 1, 0, keep=True)[1].draws
            for number in range(NUM_DRAWS)
        ]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *draws)

    def run(self) -> Draw:
        """Run the chain, and return its draws after the first iterations."""
        carry, _ = self.chains.advance(self.carry, 1, 1, SKIP, keep=False)
        _, (_, draws) = self.chains.advance(carry, 1 + SKIP, NUM_DRAWS, THIN, keep=True)
        return cast(Draw, draws)

    def posterior(self, draws: Draw) -> Posterior:
        """Return the posterior of these draws, for forecasts only."""
        # Leaves that are still being optimised take their last values in all draws.
        leaves = {name: np.asarray(draws.leaves[name]) for name in self.model.leaves("optimise")}
        last: Any = {
            name: np.broadcast_to(leaf[:, -1:], leaf.shape) for name, leaf in leaves.items()
        }
        model, draws = absorb_common([self.model], draws._replace(leaves=draws.leaves | last))
        info: Any = None  # forecasts need no diagnostics
        seconds = Seconds(0, 0, 0)
        return Posterior(model, draws, info, info, self.dataset, Spec(), seconds, self.seed)


def judge(members: Sequence[Sequence[Errors]]) -> Verdict:
    """Score the mixture of the forecasts of one or more candidates.

    Parameters
    ----------
    members
        The errors of each candidate's forecasts, in the same order.

    Returns
    -------
    Verdict
    """
    rolling = []
    runs = []
    for forecasts in zip(*members, strict=True):
        crps = fair_crps(np.concatenate([forecast.values for forecast in forecasts]))
        horizon = forecasts[0].horizon
        rolling.append(_mean_observed(crps[:horizon]))
        if forecasts[0].early:
            runs.append(_mean_observed(crps))
    return Verdict(float(np.nanmean(rolling)), float(np.nanmean(runs)))


def _mean_observed(crps: Float[np.ndarray, "H Dy"]) -> float:
    """Return the mean of the entries that are not NaN, or NaN if no entry is finite."""
    return float(np.nanmean(crps)) if np.isfinite(crps).any() else math.nan


def competitors(series: Sequence[Series]) -> list[str]:
    """Return the names of the starts that are compared by default.

    Without inputs, simulations of a linear model decay or oscillate forever. With inputs, shooting
    from the output-error fit gives a better start than the fit itself.
    """
    return ["em", "output-error+shooting" if series[0].input_dim > 0 else "em+shooting"]


# Non-negative outputs whose minimum is below this share of their maximum may be absolute values.
NEAR_ZERO = 0.05


def may_be_rectified(series: Sequence[Series]) -> bool:
    """Return whether outputs reach zero but are never negative, like an absolute value."""
    y = np.concatenate([item.y for item in series])
    lowest, highest = np.nanmin(y, 0), np.nanmax(y, 0)
    return series[0].input_dim > 0 and bool(np.all((lowest >= 0) & (lowest <= NEAR_ZERO * highest)))


class StartChoice(NamedTuple):
    """The starts of a fit, and how they were chosen.

    Parameters
    ----------
    spec
        The resolved settings of the fit.
    starts
        The start of each chain, or one for all.
    scaler, series
        The scaler that suits the likelihood, and the series scaled by it.
    comparison
        One row per candidate, best first; empty without a comparison.
    held_out
        The posteriors of the best candidate's short chains, each with its fold.
    separate
        Whether each chain has a separate start; chains then share no part of the warm-up.
    """

    spec: Spec
    starts: list[Start]
    scaler: Scaler
    series: list[Series]
    comparison: tuple[dict[str, Any], ...] = ()
    held_out: tuple[tuple[Posterior, Fold], ...] = ()
    separate: bool = False


class StartComparison(NamedTuple):
    """The result of a comparison of candidates.

    Parameters
    ----------
    candidates
        The candidate of each chain of the fit, the best first.
    rows
        One row per candidate, best first.
    notes
        Messages about the best candidate.
    held_out
        The posteriors of the best candidate's short chains, with their folds.
    """

    candidates: list[Spec]
    rows: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    held_out: tuple[tuple[Posterior, Fold], ...] = ()


def choose_starts(spec: Spec, series: Sequence[Series], runtime: Runtime) -> StartChoice:
    """Choose the start of each chain, as specified or by a comparison.

    Parameters
    ----------
    spec
        The settings of the fit, with resolved sizes.
    series
        The training experiments in the user's units, with delayed inputs.
    runtime
        The runtime, of which num_chains, seed and progress are used.

    Returns
    -------
    StartChoice
    """
    if spec.prior is not None:
        return _inherited(spec, series, runtime)
    if spec.physics is not None:
        return _from_physics(spec, series)
    key = jax.random.fold_in(jax.random.key(runtime.seed, impl="threefry2x32"), MODEL_STREAM)
    if start_names(spec, series) is None:
        return _from_states(spec, series, key)
    comparison = _candidates_of_chains(spec, series, runtime, key)
    candidates = comparison.candidates
    best = candidates[0]
    mixed = len(set(candidates)) > 1
    separate = mixed or (not has_own_start(best) and STARTS[best.start].shooting)
    if not separate:
        candidates = [best]
    scaler, scaled = best.scale(series)
    starts = (
        [best.settings.prepare(scaled, best, key)]
        if has_own_start(best)
        else starts_of(candidates, scaled, key)
    )
    starts = [
        with_noise(start, candidate.noise)
        for start, candidate in zip(starts, candidates, strict=True)
    ]
    notes = dict.fromkeys(note for start in starts for note in start.notes)
    starts[0] = starts[0]._replace(notes=(*notes, *comparison.notes))
    starts = [start._replace(model=assign_roles(start.model, best)) for start in starts]
    if mixed:
        chain_starts = tuple(ChainStart(item.start, item.noise) for item in candidates)
        best = best.replace(start=chain_starts, noise="auto")
    rows, held_out = comparison.rows, comparison.held_out
    return StartChoice(best, starts, scaler, scaled, rows, held_out, separate)


def _candidates_of_chains(
    spec: Spec, series: Sequence[Series], runtime: Runtime, key: PRNGKeyArray
) -> StartComparison:
    """Return the candidate of each chain: as named, the only one, or by comparison."""
    num_chains = runtime.num_chains
    candidates = first_candidates(spec, series)
    if _names_chains(spec):
        return StartComparison([candidates[chain % len(candidates)] for chain in range(num_chains)])
    noises = candidate_noises(spec, len(start_names(spec, series) or ()) > 1)
    trials = Trials(series, runtime.seed, key)
    if len(candidates) * len(noises) == 1 or not trials.folds:
        return StartComparison(candidates[:1] * num_chains)
    with announcing(runtime.progress, "starts") as trials.announce:
        comparison = compare_candidates(trials, candidates, noises, num_chains)
    posteriors = trials.results[comparison.candidates[0]].posteriors
    return comparison._replace(held_out=tuple(zip(posteriors, trials.folds, strict=True)))


def _names_chains(spec: Spec) -> bool:
    """Return whether the spec has the start and the noise of each chain."""
    return isinstance(spec.start, tuple) and isinstance(spec.start[0], ChainStart)


def has_own_start(spec: Spec) -> bool:
    """Return whether the method builds its model from the data alone, like the baselines."""
    return type(spec.settings).prepare is not MethodSettings.prepare


def start_names(spec: Spec, series: Sequence[Series]) -> list[str] | None:
    """Return the names of the starts to compare, or the only one; None if the spec has states."""
    prepared = has_own_start(spec)
    if isinstance(spec.start, str):
        if spec.start != "auto":
            names = [spec.start]
        else:
            names = competitors(series) if spec.settings.compares and not prepared else ["em"]
    elif spec.gives_states:
        return None
    else:
        names = [start if isinstance(start, str) else start.name for start in spec.start]
    if unknown := [name for name in names if name not in STARTS]:
        choices = ", ".join(["auto", *STARTS])
        raise KeyError(
            f"Unknown start {unknown[0]!r}. Known: {choices}; or give a path of states for each "
            "series."
        )
    if prepared and names != ["em"]:
        raise ValueError(
            f"{type(spec.settings).__name__} determines its start: omit start={spec.start!r}."
        )
    return names


# √Q of the regimes after the free one, each tried if the previous one was an improvement.
NOISES = (0.02, SMALL)


def candidate_noises(spec: Spec, compared: bool) -> list[NoiseRegime | float]:
    """Return regimes of the process noise: the first for all starts, the others for the best one.

    Parameters
    ----------
    spec
        The settings of the fit.
    compared
        Whether there is more than one start.

    Returns
    -------
    list of {"free", "small"} or float
        The regimes; a float is √Q for states of unit scale.
    """
    if spec.noise == "auto":
        return ["free", *NOISES] if compared else ["free"]
    return [spec.noise]


def first_candidates(spec: Spec, series: Sequence[Series]) -> list[Spec]:
    """Return the first candidates: every start with every emission and one noise regime."""
    names = start_names(spec, series) or []
    if _names_chains(spec):
        emission = _emissions(spec, series, False)[0]
        return [
            spec.replace(start=start.name, noise=start.noise, likelihood=emission)
            for start in spec.start
        ]
    compared = len(names) > 1
    emissions = _emissions(spec, series, compared)
    noise = candidate_noises(spec, compared)[0]
    return [
        spec.replace(start=name, noise=noise, likelihood=emission)
        for emission in emissions
        for name in names
        # For a link that loses the sign, the linear fit `em` is that of output-error.
        if not (name == "em+shooting" and len(emissions) > 1 and emission in ("abs", "square"))
    ]


def _emissions(spec: Spec, series: Sequence[Series], compared: bool) -> list[str | Likelihood]:
    """Return the emissions to compare, or the only one."""
    if not (isinstance(spec.likelihood, str) and spec.likelihood == "auto"):
        return [spec.likelihood]
    return ["gaussian", "abs"] if compared and may_be_rectified(series) else ["gaussian"]


def starts_of(candidates: Sequence[Spec], series: list[Series], key: PRNGKeyArray) -> list[Start]:
    """Return the start of each chain on scaled series.

    Chains with the same start share it, but shooting uses separate random numbers for each chain.

    Parameters
    ----------
    candidates
        The candidate of each chain.
    series
        The scaled series.
    key
        Random key of the first chain, from which those of the others are derived.

    Returns
    -------
    list of Start
    """
    starts: dict[int, Start] = {}
    for name in dict.fromkeys(candidate.start for candidate in candidates):
        chains = [chain for chain, candidate in enumerate(candidates) if candidate.start == name]
        spec = candidates[chains[0]]
        shots = chains if STARTS[name].shooting else chains[:1]
        fits = [STARTS[name].linear(series, spec)] * len(shots)
        keys = [jax.random.fold_in(key, chain) if chain else key for chain in shots]
        batch = make_starts(name, spec, [series] * len(shots), fits, keys, spec.settings.slack)
        starts |= zip(chains, batch if STARTS[name].shooting else batch * len(chains), strict=True)
    return [starts[chain] for chain in range(len(candidates))]


def _from_states(spec: Spec, series: Sequence[Series], key: PRNGKeyArray) -> StartChoice:
    """Return the start from the user's states, one path for each series."""
    emission = _emissions(spec, series, False)[0]
    spec = spec.replace(likelihood=emission, noise=candidate_noises(spec, False)[0])
    scaler, scaled = spec.scale(series)
    start = spec.settings.prepare(scaled, spec, key)
    single = len(series) == 1 and np.ndim(spec.start[0]) == 1
    paths = [np.asarray(path, float) for path in ([spec.start] if single else spec.start)]
    shapes = [path.shape for path in paths]
    expected = [path.shape for path in start.states]
    if shapes != expected:
        raise ValueError(
            f"start must have states of shapes {expected}, (T+1, Dx) for each series; got {shapes}."
        )
    start = with_noise(start._replace(states=paths), spec.noise)
    start = start._replace(model=assign_roles(start.model, spec))
    return StartChoice(spec, [start], scaler, scaled)


def _from_physics(spec: Spec, series: Sequence[Series]) -> StartChoice:
    """Return the start from the user's physics."""
    if not isinstance(spec.physics, Physics):
        raise TypeError(
            "physics is not stored in files: pass it again, gpssm.fit(data, "
            "spec=spec.replace(physics=...))."
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
            "physics determines the model: omit kernel, mean, basis, wiring and coupling."
        )
    names_start = isinstance(spec.start, str) and spec.start in ("auto", "shooting")
    if not names_start or spec.likelihood not in ("auto", "gaussian"):
        raise ValueError(
            "physics determines the starting states and the emission: omit likelihood and "
            "start, or use start='shooting' to fit parameters and states to windows of the data "
            "first."
        )
    noise = candidate_noises(spec, False)[0]
    spec = spec.replace(likelihood="gaussian", noise=noise)
    scaler, scaled = spec.scale(series)
    start = spec.physics.start(series, scaler)
    if spec.start == "shooting":
        fixed = start._replace(model=start.model.with_roles("fix", *spec.fixed))
        shot = shoot(fixed, scaled).start
        free = fixed.model.free_leaves()
        leaves = {name: leaf for name, leaf in shot.model.leaves().items() if name in free}
        start = start._replace(model=start.model.with_leaves(leaves), states=shot.states)
    start = with_noise(start, noise)
    spec = spec.replace(state_dim=start.model.state_dim, num_inducing=start.model.basis.size)
    start = start._replace(model=assign_roles(start.model, spec))
    return StartChoice(spec, [start], scaler, scaled)


def _inherited(spec: Spec, series: Sequence[Series], runtime: Runtime) -> StartChoice:
    """Return the start of a fit with a posterior as its prior, which determines all but the
    states.
    """
    prior: Posterior = spec.prior
    scaler = prior.dataset.scaler
    scaled = [scaler.scale(item) for item in series]
    start = inherit(prior, scaled, spec.prior_strength, runtime.seed)
    model = assign_roles(start.model, spec, inherited=True)
    return StartChoice(spec, [start._replace(model=model)], scaler, scaled)


class Trial(NamedTuple):
    """The chains of one candidate, their posteriors and forecast errors, by fold."""

    chains: list[ShortChain]
    posteriors: list[Posterior]
    errors: list[list[Errors]]


# A chain from another start makes the chains separate models. It must lower the score to this
# share, unless models are separate in any case, as after shooting.
GAIN = 0.95


class Trials:
    """The trials of candidates on all folds, and their scores.

    Parameters
    ----------
    series
        The training series in the user's units.
    seed
        Seed of chains and forecasts.
    key
        Random key of the starts.
    """

    def __init__(self, series: Sequence[Series], seed: int, key: PRNGKeyArray) -> None:
        self.seed = seed
        self.key = key
        self.folds = make_folds(series)
        # By linear method or start, and emission, as candidates share them.
        self.linear: dict[tuple[Any, str], list[LinearFit]] = {}
        self.starts: dict[tuple[str, str], list[Start]] = {}
        self.results: dict[Spec, Trial] = {}  # of candidates that have not failed
        self.rows: dict[Spec, dict[str, Any]] = {}
        self.announce: Callable[[str], None] = lambda message: None  # announces the next candidate

    def run(self, candidate: Spec) -> None:
        """Run the chains of a candidate, and score their forecasts."""
        began = time.process_time()
        row = candidate_row(candidate)
        behind = "" if row["likelihood"] == "gaussian" else f", {row['likelihood']}"
        self.announce(f"{candidate.start}, noise {candidate.noise}{behind}")
        row |= {"score": math.inf, "rolling": math.inf, "run": math.inf, "left": 1.0}
        try:
            chains = self._begin(candidate)
            draws = in_threads(ShortChain.run, chains)
            posteriors = [
                chain.posterior(chain_draws)
                for chain, chain_draws in zip(chains, draws, strict=True)
            ]
            errors, shares_left = self._errors(posteriors)
        except (ArithmeticError, RuntimeError, ValueError) as error:
            row["failed"] = str(error)
        else:
            self.results[candidate] = Trial(chains, posteriors, errors)
            verdicts = [judge([fold]) for fold in errors]
            row["score"] = _geometric_mean([verdict.score for verdict in verdicts])
            row["left"] = float(np.mean(shares_left))
            row["rolling"] = _geometric_mean([verdict.rolling for verdict in verdicts])
            row["run"] = _geometric_mean([verdict.run for verdict in verdicts])
        row["cpu_seconds"] = time.process_time() - began
        self.rows[candidate] = row

    def ranked(self) -> list[Spec]:
        """Return the candidates by score, the best first; for equal scores, the earlier first."""
        return sorted(self.rows, key=lambda candidate: self.rows[candidate]["score"])

    def score(self, mixture: Sequence[Spec]) -> float:
        """Return the score of the equally weighted mixture of these candidates' forecasts."""
        folds = zip(*(self.results[candidate].errors for candidate in mixture), strict=True)
        return _geometric_mean([judge(fold).score for fold in folds])

    def share_out(self, num_chains: int) -> list[Spec]:
        """Return the candidate of each chain, the best first.

        Each chain after the first gets the candidate that improves the mixture most, or the best
        one again if none improves it enough.
        """
        best = self.ranked()[0]
        mixture = [best]
        gain = 1.0 if STARTS[best.start].shooting else GAIN
        # Models of chains may differ only in the values of their arrays: the emission is the same.
        rivals = [
            candidate for candidate in self.results if candidate.likelihood is best.likelihood
        ]
        while len(mixture) < num_chains:
            scores = {candidate: self.score([*mixture, candidate]) for candidate in rivals}
            rival = min(rivals, key=scores.__getitem__)
            mixture.append(rival if scores[rival] < gain * scores[best] else best)
        return sorted(mixture, key=mixture.index)

    def at_start(self, candidate: Spec) -> float:
        """Return the mean CRPS of simulations of the start itself."""
        chains = self.results[candidate].chains
        errors, _ = self._errors([chain.posterior(chain.draws_at_start()) for chain in chains])
        return _geometric_mean([judge([fold]).run for fold in errors])

    def _errors(self, posteriors: Sequence[Posterior]) -> tuple[list[list[Errors]], list[float]]:
        """Return the forecast errors of each fold, and the share of paths that left."""
        pairs = zip(posteriors, self.folds, strict=True)
        results = [held_out_errors(posterior, fold, self.seed) for posterior, fold in pairs]
        return [errors for errors, _ in results], [share_left for _, share_left in results]

    def _begin(self, candidate: Spec) -> list[ShortChain]:
        """Return a chain from the candidate's start for each fold."""
        scaled = [candidate.scale(fold.series) for fold in self.folds]
        starts = self._starts(candidate, [series for _, series in scaled])
        settings = dataclasses.replace(candidate.settings, num_warmup=WARMUP)
        chains = []
        for fold, (scaler, _), start in zip(self.folds, scaled, starts, strict=True):
            noisy = with_noise(start, candidate.noise)
            noisy = noisy._replace(model=assign_roles(noisy.model, candidate))
            chains.append(ShortChain(settings, noisy, scaler, fold, self.seed))
        return chains

    def _starts(self, candidate: Spec, folds: list[list[Series]]) -> list[Start]:
        """Return the candidate's start on the scaled series of each fold."""
        name = candidate.start
        linear = STARTS[name].linear
        emission = candidate_row(candidate)["likelihood"]
        if (linear, emission) not in self.linear:
            self.linear[linear, emission] = [linear(series, candidate) for series in folds]
        if (name, emission) not in self.starts:
            fits = self.linear[linear, emission]
            keys = [self.key] * len(folds)
            slack = candidate.settings.slack
            self.starts[name, emission] = make_starts(name, candidate, folds, fits, keys, slack)
        return self.starts[name, emission]


def candidate_row(candidate: Spec) -> dict[str, Any]:
    """Return start, noise and emission of a candidate, for a table."""
    likelihood = candidate.likelihood
    name = likelihood if isinstance(likelihood, str) else type(likelihood).__name__
    return {"start": candidate.start, "noise": candidate.noise, "likelihood": name}


# A fit is reported as worse than its start if its simulations have more than this times the CRPS.
WORSE = 1.1


@in_double_precision
def compare_candidates(
    trials: Trials, first: Sequence[Spec], noises: Sequence[NoiseRegime | float], num_chains: int
) -> StartComparison:
    """Run and score the candidates, and distribute the chains of the fit among them.

    Parameters
    ----------
    trials
        The object that runs and scores candidates.
    first
        The first candidates.
    noises
        Regimes of the process noise: the first is that of the first candidates, the others are
        tried only for the best of them.
    num_chains
        Number of chains to distribute.

    Returns
    -------
    StartComparison
    """
    for candidate in first:
        trials.run(candidate)
    rows = trials.rows
    if all("failed" in rows[candidate] for candidate in first):
        reasons = {candidate.start: rows[candidate]["failed"] for candidate in first}
        raise RuntimeError(
            "every candidate start failed on the reduced training sets. "
            + " ".join(f"{name}: {reason}." for name, reason in reasons.items())
            + " Pass a start, such as start='em', to use it on all rows"
        )
    best = trials.ranked()[0]
    quieter = [best.replace(noise=noise) for noise in noises[1:]]
    for before, candidate in pairwise([best, *quieter]):
        trials.run(candidate)
        if rows[candidate]["score"] > rows[before]["score"]:
            break
    candidates = trials.share_out(num_chains)
    for candidate in candidates:
        rows[candidate]["chains"] = candidates.count(candidate)
    best = candidates[0]
    row = rows[best]
    row["run_of_start"] = trials.at_start(best)
    notes = ()
    if row["run"] > WORSE * row["run_of_start"]:
        notes = (
            "On held-out training rows the fit's simulations are worse than those of its start, "
            f"{best.start}: CRPS {row['run']:.3g} against {row['run_of_start']:.3g} standard "
            "deviations. Longer chains, or noise='small', may help.",
        )
    plain = tuple(_plain(rows[candidate]) for candidate in trials.ranked())
    return StartComparison(candidates, plain, notes)


def _geometric_mean(values: Sequence[float]) -> float:
    """Return (Π_i v_i)^{1/n} of n values."""
    return float(np.exp(np.mean(np.log(values))))


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with None for numbers that are not finite, which JSON does not support."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }
