"""A mixture of posteriors, weighted by log scores of held-out rows.

    p(y) = Σ_k w_k p_k(y),    w = argmax  n/N Σ_i log Σ_k w_k p_k(y_i) + Σ_k log w_k

Chains stay in the mode in which they start, and no method is best everywhere. Stacking (Yao,
Vehtari, Simpson & Gelman 2018; for chains that do not mix, Yao, Vehtari & Gelman 2022) chooses
weights by the score of the mixture: two posteriors whose errors occur in different places are
better together than the better one alone. The y_i are the N entries of rolling forecasts, and p_k
is a density estimate from the paths of member k. Errors of neighbouring rows are correlated, and
each row is forecast from several origins, so the effective number of entries, n, is one per
`ROWS_PER_ENTRY` held-out rows. The last term is a Dirichlet prior worth one entry per member: if
members are equally good, weights stay even.
"""

import dataclasses
import io
import json
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from gpssm.core import metrics
from gpssm.core.arguments import check_arguments
from gpssm.core.files import check_target, digest, write_atomically
from gpssm.core.messages import distinct_warnings
from gpssm.core.runtime import in_double_precision
from gpssm.core.table import card
from gpssm.core.text import check_path, check_whole, percent, to_json
from gpssm.data.dataset import Dataset
from gpssm.model.likelihoods import Custom
from gpssm.posterior import conditioning, learning, storage
from gpssm.posterior.calibration import Calibration, estimate, needed_factors
from gpssm.posterior.draws import Seconds
from gpssm.posterior.forecast import Forecast, widened
from gpssm.posterior.posterior import Posterior, calibrate, plot, summary
from gpssm.posterior.rollout import BOUNDS
from gpssm.posterior.storage import NotAsSaved
from gpssm.posterior.validation import (
    STACKING,
    Fold,
    RollingForecast,
    RollingOrigin,
    held_out_forecasts,
    outputs_spread,
)

CONTENTS = "stack.json"  # the file of a saved stack that lists its members
# Entries are less independent than one per three rows. This value gives weights of few rows more
# influence from the scores, and those of many rows hardly change.
ROWS_PER_ENTRY = 3


@dataclass(frozen=True, eq=False, repr=False)
class Stack:
    """A mixture of posteriors of the same outputs, sorted by decreasing weight.

        mixture = gpssm.stack(train)
        mixture.forecast(u=future_inputs)
        mixture.members["lgssm"].diagnostics()

    It forecasts, simulates, predicts, smooths outputs and processes new rows as a mixture: each
    member contributes its share of `num_paths` paths. Methods that need a single model (draws,
    transition, diagnostics, export, ...) are available only on the members.

    Parameters
    ----------
    members : mapping of str to Posterior
        The posteriors by name.
    weights : array (K,)
        Their weights, which sum to one.
    table : tuple of dict
        One row for each candidate, including dropped ones: member, weight, log score and CRPS of
        its forecasts of held-out rows, the CRPS in standard deviations of the outputs.
    notes : tuple of str
        Messages about problems.
    calibration : Calibration, optional
        Factors for the intervals of the mixture; see `calibrate`.
    """

    members: Mapping[str, Posterior]
    weights: Float[np.ndarray, " K"]
    table: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    calibration: Calibration | None = None

    simulate = conditioning.simulate
    condition = conditioning.condition
    learn = learning.learn
    update = learning.update
    extend = learning.extend
    calibrate = calibrate
    summary = summary
    plot = plot

    @classmethod
    def of(
        cls,
        members: Mapping[str, Posterior],
        weights: Iterable[float],
        table: Iterable[dict[str, Any]] = (),
        notes: Iterable[str] = (),
    ) -> Self:
        """Create a stack of posteriors with these weights, sorted by weight.

        Calibrations of the members are dropped, because only the mixture is calibrated.

        Parameters
        ----------
        members : mapping of str to Posterior
            One or more posteriors of the same outputs and inputs.
        weights : iterable of float
            One positive number per member; they sum to one.
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
            raise ValueError(f"weights must sum to one; got {values.tolist()}")
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
                    f"a Stack has no {name!r}, which belongs to a single model. Use that of a "
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
        """The name of the nonlinear member of largest weight; of a linear one if there is none.

        Where a report shows a single model (states, traces, sampling), it is this member.
        """
        nonlinear = (name for name, member in self.members.items() if member.learns)
        return next(nonlinear, next(iter(self.members)))

    @property
    def dataset(self) -> Dataset:
        """The training data; those of the member with the largest weight if members differ."""
        return next(iter(self.members.values())).dataset

    @property
    def method(self) -> str:
        """The name of the mixture in tables."""
        return "stack"

    @property
    def learns(self) -> bool:
        """Whether any member samples a learned transition."""
        return any(member.learns for member in self.members.values())

    @property
    def seed(self) -> int:
        """The seed of the member with the largest weight."""
        return next(iter(self.members.values())).seed

    @property
    def seconds(self) -> Seconds:
        """Total time of all fits in seconds."""
        seconds = (member.seconds for member in self.members.values())
        return Seconds(*map(sum, zip(*seconds, strict=True)))

    @check_arguments
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
    ) -> Forecast:
        """Return the mixture of the members' forecasts; see `Posterior.forecast`."""
        return self._mix(
            lambda member, paths: member.forecast(
                horizon,
                u,
                num_paths=paths,
                seed=seed,
                noise=noise,
                index=index,
                bounds=bounds,
            ),
            num_paths,
            calibrated,
        )

    @check_arguments
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
        """Return the mixture of the members' predictions; see `Posterior.predict`."""
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

    def smooth(self, index: int = -1, noise: bool = False, seed: int = 0) -> Forecast:
        """Return the mixture of the members' smoothed outputs; see `Posterior.smooth`."""
        shares = self._shares(min(m.num_chains * m.num_draws for m in self.members.values()))
        return Forecast.join(
            [self.members[name].thinned(n).smooth(index, noise, seed) for name, n in shares.items()]
        )

    def thinned(self, most: int) -> Self:
        """Return the mixture with at most `most` draws in total, but at least one per chain."""
        check_whole("most", most, 0)
        shares = self._shares(most)
        # Round the number of draws, so that mixtures of different weights share compiled programs.
        members = {
            name: member.thinned(2 ** (shares[name].bit_length() - 1))
            for name, member in self.members.items()
        }
        return dataclasses.replace(self, members=members)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Save members and weights in one file (a zip archive) for `gpssm.load`."""
        target = check_target(path, overwrite)
        contents = {
            "names": list(self.members),
            "weights": self.weights.tolist(),
            "table": self.table,
            "notes": self.notes,
        }

        def write(file: Any) -> None:
            with zipfile.ZipFile(file, "w") as archive:
                checked = contents | {"checksum": digest(to_json(contents))}
                archive.writestr(CONTENTS, to_json(checked))
                for number, member in enumerate(self.members.values()):
                    calibrated = dataclasses.replace(member, calibration=self.calibration)
                    image = storage.to_bytes(storage.to_tree(calibrated))
                    archive.writestr(f"{number}.nc", image)

        write_atomically(target, write)

    def _mix(
        self,
        of: Callable[[Posterior, int], Forecast],
        num_paths: int,
        calibrated: bool | None,
        steps: int | None = None,
    ) -> Forecast:
        """Join the forecasts of all members, each with its share of the paths, and calibrate them.

        `steps` is the largest number of steps ahead.
        """
        with distinct_warnings():
            parts = []
            for name, paths in self._shares(num_paths).items():
                # Round the number of paths, so that mixtures of different weights share compiled
                # programs.
                more = 2 ** (paths - 1).bit_length()
                parts.append(of(self.members[name], more).thinned(paths))
        joint = Forecast.join(parts)
        ahead = np.minimum(1 + np.arange(joint.horizon), steps or joint.horizon)
        return widened(joint, self.calibration, ahead, calibrated)

    def _shares(self, total: int) -> dict[str, int]:
        """Return the number of items for each member, by name, in proportion to the weights."""
        return dict(zip(self.members, share_out(total, self.weights), strict=True))

    def map_models(self, change: Callable[[Posterior], Posterior]) -> Self:
        """Return the mixture with a function applied to each member."""
        with distinct_warnings():
            members = {name: change(member) for name, member in self.members.items()}
        return dataclasses.replace(self, members=members)


Forecaster = Posterior | Stack  # anything that has training data and forecasts


def single_posteriors(forecaster: Forecaster) -> list[Posterior]:
    """Return the single posteriors of a forecaster: itself, or its members."""
    return list(forecaster.members.values()) if isinstance(forecaster, Stack) else [forecaster]


def leading_member(forecaster: Forecaster) -> Posterior:
    """Return the single model of a forecaster to show: itself, or the leading member of a stack."""
    if isinstance(forecaster, Stack):
        return forecaster.members[forecaster.leading]
    return forecaster


def draws_outputs(forecaster: Forecaster) -> bool:
    """Whether outputs can be sampled; a user-defined density may have no sampler."""
    likelihoods = [posterior.model.likelihood for posterior in single_posteriors(forecaster)]
    return not any(isinstance(law, Custom) and law.sampler is None for law in likelihoods)


def smoothed_outputs(forecaster: Forecaster, index: int = -1) -> tuple[Forecast, Forecast]:
    """Return the outputs along training series `index` without and with noise.

    Both are without noise if the likelihood cannot be sampled.
    """
    outputs = forecaster.smooth(index)
    if not draws_outputs(forecaster):
        return outputs, outputs
    return outputs, forecaster.smooth(index, noise=True)


def _load_stack(path: Path, parts: Mapping[str, Any] | None) -> Stack:
    """Load a stack saved by `Stack.save`."""
    try:
        with zipfile.ZipFile(path) as archive:
            if CONTENTS not in archive.namelist():
                raise NotAsSaved(
                    f"{path} is a zip file, but not a saved stack: it has no {CONTENTS}."
                )
            contents = json.loads(archive.read(CONTENTS))
            if contents.pop("checksum") != digest(to_json(contents)):
                raise ValueError(f"the checksum of {CONTENTS} does not match: it was changed")
            members = {}
            for number, name in enumerate(contents["names"]):
                file = f"{number}.nc"
                fields = storage.read_open(io.BytesIO(archive.read(file)), Path(file), parts)
                members[str(name)] = Posterior(**fields)
        calibration = next(iter(members.values())).calibration
        rows = [dict(row) for row in contents["table"]]
        stack = Stack.of(members, contents["weights"], rows, map(str, contents["notes"]))
    except (NotAsSaved, MemoryError):
        raise
    except Exception as error:  # which one depends on where the damage is
        raise ValueError(
            f"{path} is damaged ({error}). Use an intact copy, or stack and save again."
        ) from error
    return dataclasses.replace(stack, calibration=calibration)


@in_double_precision
def load(path: str | Path, parts: Mapping[str, Any] | None = None) -> Forecaster:
    """Load a posterior saved by `Posterior.save`, or a stack saved by `Stack.save`.

        posterior = gpssm.load("run.nc", parts={"mean.function": drag})

    Parameters
    ----------
    path
        The file, or the folder of a run on the command line, such as `runs/tank`.
    parts
        User-defined functions of the model by dotted name. If one is missing, the error names it.

    Returns
    -------
    Posterior or Stack
        Identical to the saved object, bit for bit.
    """
    path = check_path(path)
    path = path / "posterior.nc" if path.is_dir() else path
    if zipfile.is_zipfile(path):
        return _load_stack(path, parts)
    return Posterior(**storage.read(path, parts))


def share_out(total: int, weights: Float[np.ndarray, " K"]) -> list[int]:
    """Distribute a number of items by weight, at least one each, by the largest-remainder
    method."""
    rest = max(total - len(weights), 0)
    shares = np.floor(rest * weights)
    odd = int(rest - shares.sum())
    shares[np.argsort(shares - rest * weights, kind="stable")[:odd]] += 1
    return (1 + shares).astype(int).tolist()


def stacking_weights(
    log_densities: Float[np.ndarray, "K N"], worth: float
) -> Float[np.ndarray, " K"]:
    """Maximise n/N Σ_i log Σ_k w_k p_k(y_i) + Σ_k log w_k over weights that sum to one.

    The objective is concave, and is maximised by expectation maximisation: w_k ∝ 1 + n w_k g_k,
    where g_k is the mean of p_k(y_i) / Σ_j w_j p_j(y_i). The mixture would improve with more weight
    on member k if g_k > 1, and with less if g_k < 1. Members with g_k < .7 have weight only because
    of the prior: they are dropped, and the other weights are computed again.

    Parameters
    ----------
    log_densities : array (K, N)
        log p_k(y_i) of K members at N entries.
    worth : float
        n, the effective number of independent entries.
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
        log p(y_i) for the observed entries of all forecasts.
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
        """Whether the mean loss is lower than another by more than two standard errors.

        Two are required because errors of forecasts from neighbouring origins are correlated.
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
        """Score rolling forecasts of the held-out rows of each fold.

        Parameters
        ----------
        posteriors : sequence of Forecaster
            One posterior per fold, fitted without its held-out rows.
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
            raise ValueError("no output was observed in the rows for the weights: pass other rows")
        rows = sum(len(part) for fold in folds for part in fold.rest.values())
        return cls(np.concatenate(densities), np.array(losses), rows, tuple(forecasts))


def mixture_calibration(
    scores: Sequence[HeldOutScores], weights: Float[np.ndarray, " K"]
) -> Calibration:
    """Calibrate the width of a mixture's intervals by its forecasts of held-out rows.

    Parameters
    ----------
    scores : sequence of HeldOutScores
        The scores of each member, from the same origins.
    weights : array (K,)
        The weights of the members.
    """
    needed = []
    for rolling in zip(*(score.forecasts for score in scores), strict=True):
        paths = share_out(len(rolling[0].forecast.paths), weights)
        parts = [part.forecast.thinned(number) for part, number in zip(rolling, paths, strict=True)]
        factors = needed_factors(Forecast.join(parts), rolling[0].rows.y)
        needed.append((factors[None], rolling[0].spacing))
    rows = f"{scores[0].rows} held-out training rows"
    return estimate(needed, rows)


def mix(
    scores: Mapping[str, HeldOutScores | Exception],
    finish: Callable[[str], Posterior],
) -> Stack:
    """Return the stack of the members with positive weights by their scores.

    Parameters
    ----------
    scores : mapping
        Scores of the same held-out rows by member, or the error of a failed member.
    finish : callable
        Returns the posterior of a member by name; called for members with positive weights.

    Returns
    -------
    Stack
        With a note for each failed or dropped member.
    """
    sound = {name: score for name, score in scores.items() if isinstance(score, HeldOutScores)}
    notes = [
        f"{name} failed and was dropped: {error}"
        for name, error in scores.items()
        if isinstance(error, Exception)
    ]
    if not sound:
        raise RuntimeError(" ".join(notes))
    densities = np.stack([score.log_densities for score in sound.values()])
    # A member whose paths are all equal has no density; such entries are ignored.
    densities = densities[:, np.isfinite(densities).all(0)]
    worth = next(iter(sound.values())).rows / ROWS_PER_ENTRY
    weights = stacking_weights(densities, worth)
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
