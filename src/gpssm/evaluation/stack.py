"""Several posteriors as one: forecasts of all of them, mixed by weights that were found on held-out rows.

    p(y) = Σ_k w_k p_k(y)        w = argmax  n/N Σ_i log Σ_k w_k p_k(y_i) + Σ_k log w_k

Chains stay in the mode they start in, and no method is best everywhere. Stacking (Yao, Vehtari, Simpson & Gelman 2018;
for chains that do not mix, Yao, Vehtari & Gelman 2022) weighs posteriors by what their mixture is worth: two that err
in different places are better together than the better one alone. The y_i are the N entries of rolling forecasts, and
p_k is a density estimate from member k's paths. Errors of neighbouring rows go together, and each row is forecast from
several origins: so n, what all entries are worth, is one for `DEPENDENT` held-out rows. The last term is a Dirichlet
prior worth as much as one a member: where members are about as good it keeps their weights even.
"""

import dataclasses
import itertools
import json
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from gpssm.core import metrics
from gpssm.core.files import write_atomically
from gpssm.core.places import Place
from gpssm.core.text import check_flag, check_kind, check_path, check_seed, check_whole, to_json
from gpssm.data.series import Series, as_list
from gpssm.evaluation.calibrate import calibrate, fit_folds
from gpssm.evaluation.checks import DEPENDENT
from gpssm.fitting.choose import competitors, may_be_rectified
from gpssm.fitting.fit import fit
from gpssm.posterior.draws import Seconds
from gpssm.posterior.explore import Smoothed
from gpssm.posterior.forecast import Forecast, widened
from gpssm.posterior.posterior import Posterior, load_posterior
from gpssm.posterior.storage import NotAsSaved
from gpssm.posterior.validation import (
    FEWEST_ROWS,
    HELD_OUT,
    STACKING,
    Fold,
    held_out_forecasts,
    make_folds,
)

LEAST = 0.7  # mean of a member's density over the mixture's below which it is dropped
STEPS = 1000  # of expectation-maximisation
FAILURES = (ArithmeticError, RuntimeError, ValueError)  # that leave a member out
UNNAMED = ("free", "gaussian")
LIST = "stack.json"  # in the file of a stack, beside its members

Member = Posterior | Mapping[str, Any] | str
Row = dict[str, Any]


@dataclass(frozen=True, eq=False, repr=False)
class Stack(Posterior):
    """Posteriors by name, heaviest first, and their weights, which add up to one.

    It forecasts, simulates, predicts, smooths outputs and conditions as a mixture: of `num_paths` paths each member
    makes its share. What is about one model (`draws`, `model`, `transition`, `diagnostics`, ...) is that of the
    heaviest member. `table` has a row for every member that was weighed, those left out too.
    """

    members: Mapping[str, Posterior] = field(default_factory=dict)
    weights: Float[np.ndarray, " K"] = field(default_factory=lambda: np.ones(0))
    table: tuple[Row, ...] = ()

    @classmethod
    def of(
        cls,
        members: Mapping[str, Posterior],
        weights: Iterable[float],
        table: Iterable[Row] = (),
        notes: tuple[str, ...] = (),
    ) -> Self:
        """The stack of posteriors, heaviest first; `table` says how their weights came about.

        It is the mixture that may be calibrated, not its members.
        """
        members = {
            name: dataclasses.replace(one, calibration=None) for name, one in members.items()
        }
        first, table = next(iter(members.values())), tuple(table)
        fields = {one.name: getattr(first, one.name) for one in dataclasses.fields(Posterior)}
        fields["seconds"] = Seconds(
            *map(sum, zip(*(one.seconds for one in members.values()), strict=True))
        )
        fields["notes"] = notes
        return cls(**fields, members=members, weights=np.array(list(weights)), table=table)

    @property
    def method(self) -> str:
        """The name of the mixture."""
        return "stack"

    def __repr__(self) -> str:
        return f"Stack({', '.join(f'{name} {weight:.2f}' for name, weight, _ in self._shares(1))})"

    def forecast(  # type: ignore[override]
        self, *args: Any, num_paths: int = 1000, calibrated: bool | None = None, **options: Any
    ) -> Forecast:
        """As `Posterior.forecast`, each member with its share of the paths."""
        found = self._join(
            lambda one, share: one.forecast(*args, num_paths=share, **options), num_paths
        )
        return widened(found, self, 1 + np.arange(found.horizon), calibrated)

    def simulate(  # type: ignore[override]
        self, *args: Any, num_paths: int = 1000, calibrated: bool | None = None, **options: Any
    ) -> Forecast:
        """As `Posterior.simulate`, each member with its share of the paths."""
        found = self._join(
            lambda one, share: one.simulate(*args, num_paths=share, **options), num_paths
        )
        return widened(found, self, 1 + np.arange(found.horizon), calibrated)

    def predict(  # type: ignore[override]
        self,
        series: Any,
        steps: int = 1,
        *,
        num_paths: int = 1000,
        calibrated: bool | None = None,
        **options: Any,
    ) -> Forecast:
        """As `Posterior.predict`, each member with its share of the paths."""
        found = self._join(
            lambda one, share: one.predict(series, steps, num_paths=share, **options), num_paths
        )
        return widened(found, self, np.minimum(1 + np.arange(found.horizon), steps), calibrated)

    def _join(self, make: Callable[[Posterior, int], Forecast], num_paths: int) -> Forecast:
        check_whole("num_paths", num_paths, 1)
        return Forecast.join(
            [make(self.members[name], share) for name, _, share in self._shares(num_paths)]
        )

    def smooth(self, index: int = -1, noise: bool = False, seed: int = 0) -> Smoothed:
        """As `Posterior.smooth`: the outputs are the mixture's, the states the heaviest member's in its coordinates."""
        draws = min(one.num_chains * one.num_draws for one in self.members.values())
        found = [
            self.members[name].thinned(n).smooth(index, noise, seed)
            for name, _, n in self._shares(draws)
        ]
        joint, y = Smoothed.join(found), self.dataset.experiment(index).y
        return dataclasses.replace(joint, imputed=np.where(np.isnan(y), joint.mean, y))

    def condition(self, *args: Any, **options: Any) -> Self:  # type: ignore[override]
        """As `Posterior.condition`, every member; the weights stay."""
        return self._with(one.condition(*args, **options) for one in self.members.values())

    def condition_at(self, *args: Any, **options: Any) -> Iterator[Self]:  # type: ignore[override]
        """As `Posterior.condition_at`, every member; the weights stay."""
        return map(
            self._with,
            zip(
                *(one.condition_at(*args, **options) for one in self.members.values()), strict=True
            ),
        )

    def learn(self, *args: Any, **options: Any) -> Self:  # type: ignore[override]
        """As `Posterior.learn`, every member; the weights stay."""
        return self._with(one.learn(*args, **options) for one in self.members.values())

    def update(self, series: Any, **options: Any) -> Self:
        """As `Posterior.update`, every member; the weights stay."""
        return self._with(one.update(series, **options) for one in self.members.values())

    def calibrate(
        self, series: Any = None, *, seed: int | None = None, **options: Any
    ) -> "Posterior":
        """As `Posterior.calibrate`, of the mixture; without rows to measure on, every member is fitted to the folds."""
        if series is None:
            fits = [
                fit_folds(one, one.seed if seed is None else seed) for one in self.members.values()
            ]
            options["without"] = [
                (self._with(one for one, _ in pairs), pairs[0][1])
                for pairs in zip(*fits, strict=True)
            ]
        return calibrate(self, series, seed=seed, **options)

    def thinned(self, most: int) -> Self:
        """At most so many draws in all, or one a chain: each member has its share."""
        check_whole("most", most, 0)
        return self._with(
            [self.members[name].thinned(share) for name, _, share in self._shares(most)]
        )

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Save members and weights in one file, for `gpssm.load`: a zip of what `Posterior.save` writes for each."""
        check_flag("overwrite", overwrite)
        if check_path(path).exists() and not overwrite:
            raise FileExistsError(
                f"{path} exists. Pass overwrite=True to replace it, or name another file."
            )
        listed = {
            "names": list(self.members),
            "weights": self.weights.tolist(),
            "table": self.table,
        }

        def write(file: Any) -> None:
            with zipfile.ZipFile(file, "w") as archive, TemporaryDirectory() as folder:
                archive.writestr(LIST, to_json(listed | {"notes": self.notes}))
                for number, member in enumerate(self.members.values()):
                    dataclasses.replace(member, calibration=self.calibration).save(
                        Path(folder) / f"{number}.nc"
                    )
                    archive.write(Path(folder) / f"{number}.nc", f"{number}.nc")

        write_atomically(Path(path), write)

    def _shares(self, total: int) -> list[tuple[str, float, int]]:
        """Name, weight and share of so many things of each member."""
        return list(
            zip(self.members, self.weights.tolist(), share_out(total, self.weights), strict=True)
        )

    def _with(self, changed: Iterable[Posterior]) -> Self:
        members = dict(zip(self.members, changed, strict=True))
        stack = type(self).of(members, self.weights, self.table, self.notes)
        return dataclasses.replace(stack, calibration=self.calibration)


def load_stack(path: str | Path, parts: Mapping[str, Any] | None = None) -> Stack:
    """The stack that `Stack.save` wrote."""
    with TemporaryDirectory() as folder:
        try:
            with zipfile.ZipFile(path) as archive:
                if LIST not in archive.namelist():
                    raise NotAsSaved(
                        f"{path} is a zip file, but not one that a stack was saved in: it has no {LIST}."
                    )
                listed = json.loads(archive.read(LIST))
                names, weights = (
                    [str(name) for name in listed["names"]],
                    np.array(listed["weights"], float),
                )
                table, notes = (
                    [dict(row) for row in listed["table"]],
                    tuple(map(str, listed["notes"])),
                )
                if (
                    len({*names}) != weights.size
                    or not names
                    or not (weights > 0).all()
                    or not weights.sum() < 1.001
                ):
                    raise ValueError("its weights are not those of its members")
                files = [archive.extract(f"{number}.nc", folder) for number in range(len(names))]
            members = {
                name: load_posterior(file, parts) for name, file in zip(names, files, strict=True)
            }
        except (NotAsSaved, MemoryError):
            raise
        except Exception as error:  # which one depends on where the damage is
            reason = str(error).replace(f"{folder}/", "")
            raise ValueError(
                f"{path} is damaged ({reason}). Take a sound copy, or stack and save again."
            ) from error
    stack = Stack.of(members, weights, table, notes)
    return dataclasses.replace(stack, calibration=next(iter(members.values())).calibration)


def share_out(total: int, weights: Float[np.ndarray, " K"]) -> list[int]:
    """So many things by weight, one for each at least, the odd ones by the largest remainder."""
    rest = max(total - len(weights), 0)
    shares = np.floor(rest * weights)
    odd = int(rest - shares.sum())
    shares[np.argsort(shares - rest * weights, kind="stable")[:odd]] += 1
    return (1 + shares).astype(int).tolist()


def stacking_weights(
    log_densities: Float[np.ndarray, "K N"], worth: float
) -> Float[np.ndarray, " K"]:
    """argmax of n/N Σ_i log Σ_k w_k p_k(y_i) + Σ_k log w_k over weights that add up to one, with n = `worth`.

    By expectation-maximisation of a concave objective: w_k ∝ 1 + n w_k g_k, where g_k is the mean of
    p_k(y_i) / Σ_j w_j p_j(y_i). More of a member would make the mixture better where g_k > 1, less of it where g_k < 1:
    those far below have their weight from the prior alone. They get none, and the others are weighed again.
    """
    number = len(log_densities)
    weights, gain = np.full(number, 1 / number), np.ones(number)
    for _ in range(STEPS):
        gain = softmax(np.log(weights)[:, None] + log_densities, axis=0).mean(1) / weights
        weights = (1 + worth * weights * gain) / (number + worth)
    kept = gain >= min(LEAST, gain.max())
    if not kept.all():
        weights = np.zeros(number)
        weights[kept] = stacking_weights(log_densities[kept], worth)
    return weights


def stack(
    series: Any,
    members: Sequence[Member] | Mapping[str, Member] | None = None,
    *,
    seed: int = 0,
    jobs: int = 1,
    cluster: Any = None,
    num_chains: int = 2,
    **fit_arguments: Any,
) -> Stack:
    """Posteriors mixed into one, weighted by the log score of their rolling forecasts of held-out rows.

        mixed = gpssm.stack(train)                                          # the members of `default_members`
        mixed = gpssm.stack(train, ["lgssm", {"start": "em+shooting"}])
        mixed = gpssm.stack(rows_that_follow, {"two states": small, "four": large})

    *Settings* are fitted to the series without their last quarter, and without their first, and weighed by forecasts of
    these; then those with weight are fitted to all of it. *Posteriors* are fitted already: they are weighed by rows
    that follow their data, which none of them has seen.

    :param series: the training data of settings, or the rows to weigh posteriors by.
    :param members: settings of `fit` each, or names of methods; or posteriors. By name, or named after what they are.
    :param jobs: processes in which members are weighed.
    :param cluster: the address of a Dask scheduler whose workers weigh them instead, as tcp://host:8786, or a client.
    :param num_chains: of each member in the end; while they are weighed they have one.
    :param fit_arguments: settings of `fit` that all members share.
    """
    raw, seed = as_list(series), check_seed(seed)
    check_whole("jobs", jobs, 1)
    check_whole("num_chains", num_chains, 1)
    given = default_members(raw) if members is None else members
    if isinstance(given, str) or not isinstance(given, Sequence | Mapping):
        raise TypeError(
            f"members are a list of settings of fit, or posteriors by name; got {given!r}"
        )
    for one in given.values() if isinstance(given, Mapping) else given:
        if isinstance(one, Mapping) and not all(isinstance(name, str) for name in one):
            raise TypeError(f"a member's settings are those of fit, by name; got {one!r}")
        check_kind("a member", one, Posterior, Mapping, str)
    named: dict[str, Any] = (
        dict(given) if isinstance(given, Mapping) else {_name(one): one for one in given}
    )
    if len(named) < 2:
        raise ValueError(
            f"a stack needs two members or more, with names of their own; got {list(named)}"
        )
    ready = {name: one for name, one in named.items() if isinstance(one, Posterior)}
    if ready and len(ready) < len(named):
        raise TypeError(
            "members must be all posteriors, weighed by rows that follow their data, or all settings"
        )
    if ready:
        if fit_arguments:
            raise TypeError(f"posteriors are fitted already and take no {', '.join(fit_arguments)}")
        unseen = [Fold([], {-1: one}, before=False) for one in raw]
        return combine(
            {name: _weigh([one] * len(raw), unseen, seed) for name, one in ready.items()},
            ready.__getitem__,
        )
    folds = make_folds(raw)
    if not folds:
        raise ValueError(
            f"a stack needs a series of {int(FEWEST_ROWS / HELD_OUT)} rows or more, to hold out some of them"
        )
    shared: dict[str, Any] = {
        "seed": seed,
        "progress": False,
        "num_chains": num_chains,
    } | fit_arguments
    settings: dict[str, dict[str, Any]] = {
        name: shared | ({"method": one} if isinstance(one, str) else {**one})
        for name, one in named.items()
    }
    weigh = partial(_fit_and_weigh, folds, seed)
    arrived: dict[int, Weighed | Exception]
    arrived = dict(Place(jobs, cluster).run([*settings.values()], weigh))
    if wrong := [
        one
        for one in arrived.values()
        if isinstance(one, Exception) and not isinstance(one, FAILURES)
    ]:
        raise wrong[0]
    return combine(
        {name: arrived[k] for k, name in enumerate(settings)},
        lambda name: fit(raw, **settings[name]),
    )


def default_members(series: Sequence[Series]) -> list[dict[str, Any]]:
    """`ffvd` from the starts that compete by default, a rival with another basis and sampler, and a linear model.

    Where outputs touch zero and never go below, the absolute value of something that changes sign as well.
    """
    likelihoods = ["gaussian", "abs"] if may_be_rectified(series) else ["gaussian"]
    pairs = itertools.product(likelihoods, competitors(series))
    members = [
        {"method": "ffvd", "start": start, "noise": "free", "likelihood": likelihood}
        for likelihood, start in pairs
    ]
    return [*members, {"method": "rrank"}, {"method": "arx"}]


def _name(member: Member) -> str:
    """A member after what it is: its method and what else was set."""
    if isinstance(member, str):
        return member
    settings = (
        member.spec.describe() | {"method": member.method}
        if isinstance(member, Posterior)
        else member
    )
    shown = ("method", "start", "noise", "likelihood", "state_dim", "mean", "kernel")
    plain = [
        str(settings[name]) for name in shown if name in settings and settings[name] not in UNNAMED
    ]
    return " ".join(plain) or "ffvd"


class Weighed(NamedTuple):
    """What a member made of held-out rows: log p(y_i) of the N entries, and the mean CRPS of these forecasts."""

    log_densities: Float[np.ndarray, " N"]
    crps: float
    rows: int


def _fit_and_weigh(folds: Sequence[Fold], seed: int, settings: Mapping[str, Any]) -> Weighed:
    """A member fitted to each fold, with one chain, and weighed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posteriors = [fit(fold.series, **{**settings, "num_chains": 1}) for fold in folds]
    return _weigh(posteriors, folds, seed)


def _weigh(posteriors: Sequence[Posterior], folds: Sequence[Fold], seed: int) -> Weighed:
    """Rolling forecasts of the held-out rows of each fold, by the posterior that has not seen them."""
    densities, scores = [], []
    for posterior, fold in zip(posteriors, folds, strict=True):
        for _, forecast, rows, horizon, _ in held_out_forecasts(posterior, fold, STACKING, seed):
            paths, y = forecast.paths[:, :horizon], rows.y[:horizon]
            if not np.isnan(y).all():
                densities.append(metrics.log_density(paths, y)[~np.isnan(y)])
                scores.append(metrics.crps(paths, y))
    if not densities:
        raise ValueError(
            "no output was observed in the rows that members are weighed by: give others"
        )
    held = sum(len(rows) for fold in folds for rows in fold.rest.values())
    return Weighed(np.concatenate(densities), float(np.mean(scores)), held)


def combine(
    weighed: Mapping[str, Weighed | Exception], finish: Callable[[str], Posterior]
) -> Stack:
    """The stack of the members with weight, and notes of those that failed or have next to none."""
    sound = {name: one for name, one in weighed.items() if isinstance(one, Weighed)}
    notes = [
        f"{name} failed and is left out: {one}"
        for name, one in weighed.items()
        if isinstance(one, Exception)
    ]
    if not sound:
        raise RuntimeError(" ".join(notes))
    densities = np.stack([one.log_densities for one in sound.values()])
    # Where all paths of a member are equal it has no density: such an entry says nothing of the others either.
    densities = densities[:, np.isfinite(densities).all(0)]
    weights = stacking_weights(densities, next(iter(sound.values())).rows / DEPENDENT)
    scores = zip(sound, weights, densities.mean(1), strict=True)
    table = [
        {
            "member": name,
            "weight": float(weight),
            "log_score": float(score),
            "crps": sound[name].crps,
        }
        for name, weight, score in sorted(scores, key=lambda row: -row[1])
    ]
    if dropped := [row["member"] for row in table if not row["weight"]]:
        notes.append(f"Left out, with next to no weight: {', '.join(dropped)}.")
    kept = [row for row in table if row["weight"]]
    members = {row["member"]: finish(row["member"]) for row in kept}
    return Stack.of(members, [row["weight"] for row in kept], table, tuple(notes))
