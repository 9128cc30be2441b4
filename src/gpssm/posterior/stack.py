"""A mixture of posteriors, weighted by log scores of held-out rows.

    p(y) = Σ_k w_k p_k(y),    w = argmax  n/N Σ_i log Σ_k w_k p_k(y_i) + Σ_k log w_k

Chains stay in the mode they start in, and no method is best everywhere. Stacking (Yao, Vehtari,
Simpson & Gelman 2018; for chains that do not mix, Yao, Vehtari & Gelman 2022) weighs posteriors by
what their mixture is worth: two that err in different places are better together than the better
one alone. The y_i are the N entries of rolling forecasts, and p_k is a density estimate from the
paths of member k. Errors of neighbouring rows are correlated, and each row is forecast from several
origins: n, what all entries are worth, is one for `ROWS_PER_ENTRY` held-out rows. The last term is
a Dirichlet prior worth one entry per member: where members are about as good, weights stay even.
"""

import dataclasses
import json
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from gpssm.core import metrics
from gpssm.core.files import check_target, digest, write_atomically
from gpssm.core.messages import distinct_warnings
from gpssm.core.notebook import card
from gpssm.core.text import check_whole, percent, to_json
from gpssm.data.dataset import Dataset
from gpssm.inference.progress import Mode
from gpssm.model.likelihoods import Custom
from gpssm.posterior.calibration import Calibration, Needed, estimate, needed_factors
from gpssm.posterior.draws import Seconds
from gpssm.posterior.explore import Smoothed
from gpssm.posterior.forecast import Forecast, widened
from gpssm.posterior.learning import MAX_DRAWS, Forgetting
from gpssm.posterior.posterior import Posterior, load_posterior
from gpssm.posterior.rollout import BOUNDS
from gpssm.posterior.storage import NotAsSaved
from gpssm.posterior.update import Relearn
from gpssm.posterior.validation import (
    STACKING,
    Fold,
    RollingForecast,
    RollingOrigin,
    held_out_forecasts,
    outputs_spread,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gpssm.evaluation.summary import Summary

CONTENTS = "stack.json"  # the file inside a saved stack that names its members
# Entries are less independent than one for three rows. But weights of few rows then lean on what
# members are worth, and those of many rows hardly change.
ROWS_PER_ENTRY = 3


@dataclass(frozen=True, eq=False, repr=False)
class Stack:
    """A mixture of posteriors of the same outputs, heaviest first.

        mixture = gpssm.stack(train)
        mixture.forecast(u=future_inputs)
        mixture.members["lgssm"].diagnostics()

    It forecasts, simulates, predicts, smooths outputs and takes new rows as a mixture: of
    `num_paths` paths each member makes its share. What belongs to a single model (its draws,
    transition, diagnostics, export, ...) is an attribute of the members alone.

    Parameters
    ----------
    members : mapping of str to Posterior
        The posteriors by name.
    weights : array (K,)
        Their weights, which add up to one.
    table : tuple of dict
        One row for each posterior that was weighed, dropped ones too: member, weight, log score and
        CRPS of its forecasts of held-out rows, the latter in standard deviations of the outputs.
    notes : tuple of str
        What went wrong, if anything did.
    calibration : Calibration, optional
        How much wider the intervals of the mixture must be, see `calibrate`.
    """

    members: Mapping[str, Posterior]
    weights: Float[np.ndarray, " K"]
    table: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    calibration: Calibration | None = None

    @classmethod
    def of(
        cls,
        members: Mapping[str, Posterior],
        weights: Iterable[float],
        table: Iterable[dict[str, Any]] = (),
        notes: Iterable[str] = (),
    ) -> Self:
        """The stack of posteriors with these weights, sorted by weight.

        Calibrations of the members are dropped: it is the mixture that may be calibrated.

        Parameters
        ----------
        members : mapping of str to Posterior
            One posterior or more, of the same outputs and inputs.
        weights : iterable of float
            One positive number each; they add up to one.
        table, notes
            See `Stack`.
        """
        values = np.array(list(weights), float)
        if not members or values.shape != (len(members),) or not (values > 0).all():
            raise ValueError(
                f"a stack needs one positive weight for each member; got {values.tolist()} for "
                f"{list(members)}"
            )
        if not np.isclose(values.sum(), 1):
            raise ValueError(f"weights must add up to one; got {values.tolist()}")
        columns = {
            name: (member.dataset.outputs, member.dataset.inputs)
            for name, member in members.items()
        }
        if len({*columns.values()}) > 1:
            raise ValueError(
                f"members must have the same outputs and inputs, in the same order; got {columns}"
            )
        names = [list(members)[place] for place in np.argsort(-values, kind="stable")]
        plain = {name: dataclasses.replace(members[name], calibration=None) for name in names}
        weights = np.sort(values)[::-1]
        unscored = {"log_score": np.nan, "crps": np.nan}
        rows = tuple(table) or tuple(
            {"member": name, "weight": float(weight)} | unscored
            for name, weight in zip(plain, weights, strict=True)
        )
        return cls(plain, weights, rows, tuple(notes))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if hasattr(Posterior, name) or name in Posterior.__dataclass_fields__:
                raise AttributeError(
                    f"a Stack has no {name!r}, which belongs to a single model. Take that of a "
                    f"member: stack.members[{next(iter(self.members))!r}].{name}"
                )
            raise AttributeError(f"'Stack' object has no attribute {name!r}")

    def __repr__(self) -> str:
        shares = zip(self.members, self.weights, strict=True)
        return f"Stack({', '.join(f'{name} {weight:.2f}' for name, weight in shares)})"

    def _repr_html_(self) -> str:
        facts = {
            name: f"{percent(weight)}: {member!r}"
            for (name, member), weight in zip(self.members.items(), self.weights, strict=True)
        }
        return card("Stack", facts, notes=self.notes)

    @property
    def leading(self) -> str:
        """The name of the heaviest nonlinear member; of the heaviest one if all are linear.

        Where a report shows a single model (its states, traces, sampling), it is this one.
        """
        nonlinear = (name for name, member in self.members.items() if member.learns)
        return next(nonlinear, next(iter(self.members)))

    @property
    def dataset(self) -> Dataset:
        """The training data; of the heaviest member where members differ."""
        return next(iter(self.members.values())).dataset

    @property
    def method(self) -> str:
        """The name of the mixture in tables."""
        return "stack"

    @property
    def learns(self) -> bool:
        """Whether any member learned a transition as it sampled."""
        return any(member.learns for member in self.members.values())

    @property
    def seed(self) -> int:
        """The seed of the heaviest member."""
        return next(iter(self.members.values())).seed

    @property
    def seconds(self) -> Seconds:
        """Seconds of all fits together."""
        seconds = (member.seconds for member in self.members.values())
        return Seconds(*map(sum, zip(*seconds, strict=True)))

    def forecast(
        self,
        horizon: int | None = None,
        u: Any = None,
        *,
        num_paths: int = 1000,
        seed: int = 0,
        noise: bool = True,
        index: int = -1,
        bounds: float | None = BOUNDS,
        calibrated: bool | None = None,
        one_function: bool = False,
    ) -> Forecast:
        """The mixture of the members' forecasts; see `Posterior.forecast`."""
        return self._mix(
            lambda member, paths: member.forecast(
                horizon,
                u,
                num_paths=paths,
                seed=seed,
                noise=noise,
                index=index,
                bounds=bounds,
                one_function=one_function,
            ),
            num_paths,
            calibrated,
        )

    def simulate(
        self,
        u: Any = None,
        warmup: Any = None,
        *,
        horizon: int | None = None,
        num_particles: int | None = None,
        num_paths: int = 1000,
        seed: int = 0,
        noise: bool = True,
        bounds: float | None = BOUNDS,
        calibrated: bool | None = None,
    ) -> Forecast:
        """The mixture of the members' simulations; see `Posterior.simulate`."""
        return self._mix(
            lambda member, paths: member.simulate(
                u,
                warmup,
                horizon=horizon,
                num_particles=num_particles,
                num_paths=paths,
                seed=seed,
                noise=noise,
                bounds=bounds,
            ),
            num_paths,
            calibrated,
        )

    def predict(
        self,
        series: Any,
        steps: int = 1,
        *,
        new_experiment: bool = False,
        num_paths: int = 1000,
        num_particles: int | None = None,
        seed: int = 0,
        noise: bool = True,
        index: int = -1,
        bounds: float | None = BOUNDS,
        calibrated: bool | None = None,
    ) -> Forecast:
        """The mixture of the members' predictions; see `Posterior.predict`."""
        return self._mix(
            lambda member, paths: member.predict(
                series,
                steps,
                new_experiment=new_experiment,
                num_paths=paths,
                num_particles=num_particles,
                seed=seed,
                noise=noise,
                index=index,
                bounds=bounds,
            ),
            num_paths,
            calibrated,
            steps,
        )

    def smooth(self, index: int = -1, noise: bool = False, seed: int = 0) -> Smoothed:
        """The mixture of the members' smoothed outputs; see `Posterior.smooth`.

        `states` has no columns: each member has states in coordinates of its own.
        """
        shares = self._shares(min(m.num_chains * m.num_draws for m in self.members.values()))
        joint = Smoothed.join(
            [self.members[name].thinned(n).smooth(index, noise, seed) for name, n in shares.items()]
        )
        y = self.dataset.experiment(index).y
        states = np.zeros((len(joint.paths), joint.horizon + 1, 0))
        imputed = np.where(np.isnan(y), joint.mean, y)
        return dataclasses.replace(joint, states=states, imputed=imputed)

    def extend(
        self,
        series: Any,
        relearn: Relearn = None,
        *,
        new_experiment: bool = False,
        seed: int | None = None,
        index: int = -1,
    ) -> Self:
        """Every member after new rows, with unchanged weights; see `Posterior.extend`.

        Members whose method does not learn as it samples, such as linear models, are conditioned.
        """
        shared: dict[str, Any] = {"new_experiment": new_experiment, "seed": seed, "index": index}

        def after(member: Posterior) -> Posterior:
            conditions = relearn in ("weights", "all") and not member.learns
            return member.extend(series, None if conditions else relearn, **shared)

        return self._each(after)

    def condition(
        self,
        series: Any,
        *,
        new_experiment: bool = False,
        num_particles: int | None = None,
        seed: int = 0,
        index: int = -1,
    ) -> Self:
        """`extend(series)`, with its own options; see `Posterior.condition`."""
        return self._each(
            lambda member: member.condition(
                series,
                new_experiment=new_experiment,
                num_particles=num_particles,
                seed=seed,
                index=index,
            )
        )

    def learn(
        self,
        series: Any,
        *,
        forgetting: Forgetting = None,
        new_experiment: bool = False,
        max_draws: int = MAX_DRAWS,
        seed: int = 0,
        index: int = -1,
    ) -> Self:
        """`extend(series, "weights")`, with its own options; see `Posterior.learn`."""
        shared: dict[str, Any] = {"new_experiment": new_experiment, "seed": seed, "index": index}
        return self._each(
            lambda member: (
                member.learn(series, forgetting=forgetting, max_draws=max_draws, **shared)
                if member.learns
                else member.condition(series, **shared)
            )
        )

    def update(
        self,
        series: Any,
        *,
        new_experiment: bool = False,
        num_warmup: int | None = None,
        num_draws: int | None = None,
        seed: int | None = None,
        progress: Mode = False,
        index: int = -1,
    ) -> Self:
        """`extend(series, "all")`, with its own options; see `Posterior.update`."""
        shared: dict[str, Any] = {"new_experiment": new_experiment, "seed": seed, "index": index}
        return self._each(
            lambda member: (
                member.update(
                    series, num_warmup=num_warmup, num_draws=num_draws, progress=progress, **shared
                )
                if member.learns
                else member.extend(series, **shared)
            )
        )

    def calibrate(
        self,
        series: Any = None,
        *,
        new_experiment: bool = False,
        index: int = -1,
        seed: int | None = None,
    ) -> "Stack":
        """Measure on unseen rows how much wider the mixture's intervals must be.

        See `Posterior.calibrate`. Without rows to measure on, every member is fitted to the folds.
        """
        from gpssm.evaluation.calibrate import calibrate

        return calibrate(self, series, new_experiment=new_experiment, index=index, seed=seed)

    def thinned(self, most: int) -> Self:
        """The mixture with at most `most` draws in all, or one per chain; each member its share."""
        check_whole("most", most, 0)
        shares = self._shares(most)
        # A few numbers of draws, so that programs serve mixtures of any weights.
        return self.with_members(
            member.thinned(2 ** (shares[name].bit_length() - 1))
            for name, member in self.members.items()
        )

    def summary(self) -> "Summary":
        """One page: what is mixed, and what was fitted; see `Posterior.summary`.

        Figures of a single model are those of the `leading` member.
        """
        from gpssm.evaluation.summary import summarise

        return summarise(self)

    def plot(self, index: int = -1) -> "Figure":
        """The outputs of training series `index` as the mixture sees them, with the data."""
        from gpssm.plots.posteriors import plot_smoothed

        return plot_smoothed(self, index)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Save members and weights in one file for `gpssm.load`: a zip of what members save."""
        target = check_target(path, overwrite)
        contents = {
            "names": list(self.members),
            "weights": self.weights.tolist(),
            "table": self.table,
            "notes": self.notes,
        }

        def write(file: Any) -> None:
            with zipfile.ZipFile(file, "w") as archive, TemporaryDirectory() as folder:
                archive.writestr(
                    CONTENTS, to_json(contents | {"checksum": digest(to_json(contents))})
                )
                for number, member in enumerate(self.members.values()):
                    dataclasses.replace(member, calibration=self.calibration).save(
                        Path(folder) / f"{number}.nc"
                    )
                    archive.write(Path(folder) / f"{number}.nc", f"{number}.nc")

        write_atomically(target, write)

    def _mix(
        self,
        of: Callable[[Posterior, int], Forecast],
        num_paths: int,
        calibrated: bool | None,
        steps: int | None = None,
    ) -> Forecast:
        """The forecasts of all members joined, each with its share of the paths, and calibrated.

        Rows are forecast so many `steps` ahead at most.
        """
        check_whole("num_paths", num_paths, 1)
        with distinct_warnings(3):
            parts = []
            for name, paths in self._shares(num_paths).items():
                # A few numbers of paths, so that programs serve mixtures of any weights.
                more = 2 ** (paths - 1).bit_length()
                parts.append(of(self.members[name], more).thinned(paths))
        joint = Forecast.join(parts)
        ahead = np.minimum(1 + np.arange(joint.horizon), steps or joint.horizon)
        return widened(joint, self.calibration, ahead, calibrated)

    def _shares(self, total: int) -> dict[str, int]:
        """The share of so many things that each member has, by name."""
        return dict(zip(self.members, share_out(total, self.weights), strict=True))

    def _each(self, change: Callable[[Posterior], Posterior]) -> Self:
        with distinct_warnings(3):
            return self.with_members(map(change, self.members.values()))

    def with_members(self, posteriors: Iterable[Posterior]) -> Self:
        """The same mixture of other posteriors, in the order of the members."""
        members = dict(zip(self.members, posteriors, strict=True))
        return dataclasses.replace(self, members=members)


Forecaster = Posterior | Stack  # what forecasts from data of its own


def single_posteriors(forecaster: Forecaster) -> list[Posterior]:
    """The posteriors of single models that a forecaster consists of: itself, or its members."""
    return list(forecaster.members.values()) if isinstance(forecaster, Stack) else [forecaster]


def leading_member(forecaster: Forecaster) -> Posterior:
    """The single model to show of a forecaster: a posterior itself, or a stack's leading member."""
    if isinstance(forecaster, Stack):
        return forecaster.members[forecaster.leading]
    return forecaster


def draws_outputs(forecaster: Forecaster) -> bool:
    """Whether outputs can be drawn: a user's own density may come without a sampler."""
    likelihoods = [posterior.model.likelihood for posterior in single_posteriors(forecaster)]
    return not any(isinstance(one, Custom) and one.sampler is None for one in likelihoods)


def smoothed_outputs(forecaster: Forecaster, index: int = -1) -> tuple[Forecast, Forecast]:
    """Outputs along training series `index` without and with noise.

    Both are without noise where a likelihood cannot draw any.
    """
    outputs = forecaster.smooth(index)
    if not draws_outputs(forecaster):
        return outputs, outputs
    return outputs, forecaster.smooth(index, noise=True)


def load_stack(path: str | Path, parts: Mapping[str, Any] | None = None) -> Stack:
    """Read what `Stack.save` wrote."""
    with TemporaryDirectory() as folder:
        try:
            with zipfile.ZipFile(path) as archive:
                if CONTENTS not in archive.namelist():
                    raise NotAsSaved(
                        f"{path} is a zip file, but not one that a stack was saved in: it has no "
                        f"{CONTENTS}."
                    )
                contents = json.loads(archive.read(CONTENTS))
                if contents.pop("checksum") != digest(to_json(contents)):
                    raise ValueError(f"the checksum of {CONTENTS} does not match: it was changed")
                names = [str(name) for name in contents["names"]]
                files = [archive.extract(f"{number}.nc", folder) for number in range(len(names))]
            members = {
                name: load_posterior(file, parts) for name, file in zip(names, files, strict=True)
            }
            calibration = members[names[0]].calibration
            rows = [dict(row) for row in contents["table"]]
            notes = map(str, contents["notes"])
            stack = Stack.of(members, contents["weights"], rows, notes)
        except (NotAsSaved, MemoryError):
            raise
        except Exception as error:  # which one depends on where the damage is
            reason = str(error).replace(f"{folder}/", "")
            raise ValueError(
                f"{path} is damaged ({reason}). Take a sound copy, or stack and save again."
            ) from error
    return dataclasses.replace(stack, calibration=calibration)


def load_forecaster(path: Path, parts: Mapping[str, Any] | None = None) -> Posterior | Stack:
    """Read what `save` of a posterior or of a stack wrote."""
    return load_stack(path, parts) if zipfile.is_zipfile(path) else load_posterior(path, parts)


def share_out(total: int, weights: Float[np.ndarray, " K"]) -> list[int]:
    """So many things by weight, at least one each, the odd ones by the largest remainder."""
    rest = max(total - len(weights), 0)
    shares = np.floor(rest * weights)
    odd = int(rest - shares.sum())
    shares[np.argsort(shares - rest * weights, kind="stable")[:odd]] += 1
    return (1 + shares).astype(int).tolist()


def stacking_weights(
    log_densities: Float[np.ndarray, "K N"], worth: float
) -> Float[np.ndarray, " K"]:
    """argmax of n/N Σ_i log Σ_k w_k p_k(y_i) + Σ_k log w_k over weights that add up to one.

    By expectation maximisation of a concave objective: w_k ∝ 1 + n w_k g_k, where g_k is the mean
    of p_k(y_i) / Σ_j w_j p_j(y_i). More of a member would make the mixture better where g_k > 1,
    less of it where g_k < 1. Members with g_k < .7 owe their weight to the prior alone: they get
    none, and the others are weighed again.

    Parameters
    ----------
    log_densities : array (K, N)
        log p_k(y_i) of K members at N entries.
    worth : float
        n, the number of independent entries that all are worth.
    """
    number = len(log_densities)
    weights = np.full(number, 1 / number)
    gain = np.ones(number)
    for _ in range(1000):  # of expectation maximisation
        gain = softmax(np.log(weights)[:, None] + log_densities, axis=0).mean(1) / weights
        weights = (1 + worth * weights * gain) / (number + worth)
    useful = gain >= min(0.7, gain.max())
    if not useful.all():
        weights = np.zeros(number)
        weights[useful] = stacking_weights(log_densities[useful], worth)
    return weights


class HeldOutScores(NamedTuple):
    """Scores of forecasts of held-out rows, and the forecasts.

    Parameters
    ----------
    log_densities : array (N,)
        log p(y_i) of the observed entries of all forecasts.
    losses : array (F,)
        CRPS of each forecast, averaged over steps and outputs, in standard deviations of the
        training outputs.
    rows : int
        Number of held-out rows.
    forecasts : tuple of RollingForecast
        The forecasts, fold after fold.
    """

    log_densities: Float[np.ndarray, " N"]
    losses: Float[np.ndarray, " F"]
    rows: int
    forecasts: tuple[RollingForecast, ...]

    @property
    def crps(self) -> float:
        """The mean loss."""
        return float(np.mean(self.losses))

    def is_better(self, other: Self) -> bool:
        """Whether the mean loss is lower than another's by more than two standard errors.

        Forecasts from neighbouring origins err together, so that one would be too few.
        """
        gain = other.losses - self.losses
        return len(gain) > 1 and bool(gain.mean() > 2 * gain.std(ddof=1) / np.sqrt(len(gain)))

    @classmethod
    def of(
        cls,
        posteriors: Sequence[Forecaster],
        folds: Sequence[Fold],
        seed: int,
        scheme: RollingOrigin = STACKING,
    ) -> Self:
        """Scores of rolling forecasts of the held-out rows of each fold.

        Parameters
        ----------
        posteriors : sequence of Forecaster
            One per fold, that has not seen its held-out rows.
        folds : sequence of Fold
            The held-out rows.
        seed : int
            Seed of filters and paths.
        scheme : RollingOrigin
            Origins, horizon, paths and draws.
        """
        densities = []
        losses = []
        forecasts = []
        for posterior, fold in zip(posteriors, folds, strict=True):
            spread = outputs_spread(posterior.dataset.experiments)
            for rolling in held_out_forecasts(posterior, fold, scheme, seed):
                paths = rolling.forecast.paths[:, : rolling.horizon]
                y = rolling.rows.y[: rolling.horizon]
                if not np.isnan(y).all():
                    densities.append(metrics.log_density(paths, y)[~np.isnan(y)])
                    losses.append(metrics.crps(paths, y, scale=spread))
                    forecasts.append(rolling)
        if not densities:
            raise ValueError(
                "no output was observed in the rows that members are weighed by: give others"
            )
        rows = sum(len(part) for fold in folds for part in fold.rest.values())
        return cls(np.concatenate(densities), np.array(losses), rows, tuple(forecasts))


def mixture_calibration(
    scores: Sequence[HeldOutScores], weights: Float[np.ndarray, " K"]
) -> Calibration:
    """How much wider the intervals of a mixture must be, by its forecasts of held-out rows.

    Parameters
    ----------
    scores : sequence of HeldOutScores
        Those of each member, from the same origins.
    weights : array (K,)
        The weights of the members.
    """
    needed = []
    for rolling in zip(*(score.forecasts for score in scores), strict=True):
        paths = share_out(len(rolling[0].forecast.paths), weights)
        parts = [part.forecast.thinned(number) for part, number in zip(rolling, paths, strict=True)]
        factors = needed_factors(Forecast.join(parts), rolling[0].rows.y)
        needed.append(Needed(factors[None], rolling[0].spacing))
    rows = f"{scores[0].rows} training rows, held out of fits without them"
    return estimate(needed, rows)


def mix(
    scores: Mapping[str, HeldOutScores | Exception],
    finish: Callable[[str], Posterior],
    among: Collection[str] | None = None,
) -> Stack:
    """The stack of the members that deserve weight by their scores.

    Parameters
    ----------
    scores : mapping
        Scores of the same held-out rows by member, or the error that a member failed with.
    finish : callable
        Returns the posterior of a member by name; called for those with weight.
    among : collection of str, optional
        The members that may have weight; all by default.

    Returns
    -------
    Stack
        With a note of each member that failed, and of those dropped.
    """
    sound = {name: score for name, score in scores.items() if isinstance(score, HeldOutScores)}
    notes = [
        f"{name} failed and is left out: {error}"
        for name, error in scores.items()
        if isinstance(error, Exception)
    ]
    if not sound:
        raise RuntimeError(" ".join(notes))
    densities = np.stack([score.log_densities for score in sound.values()])
    # Where all paths of a member are equal it has no density; such an entry judges nobody.
    densities = densities[:, np.isfinite(densities).all(0)]
    competes = np.array([among is None or name in among for name in sound])
    worth = next(iter(sound.values())).rows / ROWS_PER_ENTRY
    weights = np.zeros(len(sound))
    weights[competes] = stacking_weights(densities[competes], worth)
    table = [
        {
            "member": name,
            "weight": float(weight),
            "log_score": float(log_score),
            "crps": sound[name].crps,
        }
        for name, weight, log_score in zip(sound, weights, densities.mean(1), strict=True)
    ]
    table.sort(key=lambda row: -row["weight"])
    if dropped := [row["member"] for row in table if not row["weight"]]:
        notes.append(f"Dropped (negligible weight): {', '.join(dropped)}.")
    shares = {row["member"]: row["weight"] for row in table if row["weight"]}
    return Stack.of({name: finish(name) for name in shares}, shares.values(), table, notes)
