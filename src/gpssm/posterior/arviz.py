"""Posteriors for other tools: an ArviZ tree, and a table of parameters."""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import gpssm
from gpssm.core.runtime import in_double_precision, jit
from gpssm.core.text import check_seed
from gpssm.data.series import Series
from gpssm.model.likelihoods import Custom, GaussianNoise
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw
from gpssm.posterior.draws import batch_size
from gpssm.posterior.storage import name_axes

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from gpssm.posterior.posterior import Posterior


class Group(NamedTuple):
    """Arrays by name, the names of their axes after (chain, draw), and labels along axes."""

    arrays: dict[str, Any]
    axes: dict[str, tuple[str, ...]]
    labels: dict[str, Any]


@in_double_precision
def to_arviz(posterior: "Posterior", seed: int = 0) -> "xr.DataTree":
    """The posterior as a DataTree of ArviZ, with the groups

        posterior             states, weights, the parameters that vary by their dotted names, and on their natural
                              scale those that are logarithms; `noise_std` in the user's units
        sample_stats          lp, acceptance_rate, diverging, energy, n_steps
        posterior_predictive  y ~ p(y_t | x_{t+1}), one of each draw, in the user's units
        log_likelihood        log p(y_t | x_{t+1}) of each row, in the user's units; rows wholly missing are left out
        observed_data         y as it was given
        constant_data         u as it was given, if there is one

    along chain, draw, time, state, output, input and inducing. A state has the time of the output it emits, so x₀ comes
    one step before the first. Several series have their number in the names: y_0, time_0, y_1, ... The log likelihood
    is given the states, so that leaving a row out (`arviz_stats.loo`) reweights draws of the states that have seen it.

    :param seed: of the predictive draws.
    """
    import arviz_base as az
    import xarray as xr

    seed = check_seed(seed)
    raw = posterior.dataset.experiments
    several = [_Labels(f"_{index}" if len(raw) > 1 else "", one) for index, one in enumerate(raw)]
    groups = {"posterior": _parameters(posterior, several), "sample_stats": _statistics(posterior)}
    groups |= _emissions(posterior, several, seed) | _data(several)
    tree = {
        name: az.dict_to_dataset(
            {key: np.array(array) for key, array in group.arrays.items()},
            dims={key: list(axes) for key, axes in group.axes.items()},
            coords=group.labels,
            sample_dims=[] if name.endswith("_data") else ["chain", "draw"],
            inference_library=gpssm,
            check_conventions=False,
        )
        for name, group in groups.items()
        if group.arrays
    }
    return xr.DataTree.from_dict(tree)


def to_dataframe(posterior: "Posterior") -> "pd.DataFrame":
    """One row a draw, indexed by (chain, draw): parameters that vary, an entry a column (`name[i,j]`), then
    `log_target` and `acceptance`."""
    import pandas as pd

    columns = {}
    for name, leaf in posterior.draws.leaves.items():
        for entry in np.ndindex(leaf.shape[2:]):
            label = f"{name}[{','.join(map(str, entry))}]" if entry else name
            columns[label] = np.ravel(leaf[(..., *entry)])
    columns |= {
        name: np.ravel(getattr(posterior.info, name)) for name in ("log_target", "acceptance")
    }
    chains, draws = range(posterior.num_chains), range(posterior.num_draws)
    return pd.DataFrame(
        columns, index=pd.MultiIndex.from_product([chains, draws], names=["chain", "draw"])
    )


class _Labels(NamedTuple):
    """Names and labels of one series."""

    suffix: str
    raw: Series

    def name(self, name: str) -> str:
        return name + self.suffix

    def time(self, first: int = 0) -> dict[str, np.ndarray]:
        """Row numbers from `first`, or times where the sampling time is known."""
        number, axis = len(self.raw) - first, self.raw.axis
        rows = np.arange(first, len(self.raw)) if axis is None else axis.times(number, first)
        return {self.name("time"): rows}


def _parameters(posterior: "Posterior", several: list[_Labels]) -> Group:
    arrays, axes, labels = {}, {}, {"output": list(posterior.dataset.outputs)}
    sizes = {"output": len(posterior.dataset.outputs)}
    for one, states in zip(several, posterior.draws.states, strict=True):
        arrays[one.name("states")], axes[one.name("states")] = states, (one.name("time"), "state")
        labels |= one.time(first=-1)
    for name, leaf in {"weights": posterior.draws.weights, **posterior.draws.leaves}.items():
        arrays[name], axes[name] = leaf, name_axes(name, leaf.shape[2:], sizes)
        head, dot, last = name.rpartition(".")
        if last.startswith("log_"):
            natural = f"{head}{dot}{last.removeprefix('log_')}"
            arrays[natural], axes[natural] = np.exp(leaf), axes[name]
    if "likelihood.std" in arrays and isinstance(posterior.model.likelihood, GaussianNoise):
        arrays["noise_std"], axes["noise_std"] = (
            arrays["likelihood.std"] * posterior.dataset.scaler.output_std,
            ("output",),
        )
    return Group(arrays, axes, labels)


def _statistics(posterior: "Posterior") -> Group:
    info = posterior.info
    arrays = {
        "lp": info.log_target,
        "acceptance_rate": info.acceptance,
        "diverging": info.divergent,
    }
    return Group(arrays | {"energy": info.energy, "n_steps": info.gradients}, {}, {})


def _data(several: list[_Labels]) -> dict[str, Group]:
    observed, constant = Group({}, {}, {}), Group({}, {}, {})
    for one in several:
        for group, name, values, axis in (
            (observed, "y", one.raw.y, "output"),
            (constant, "u", one.raw.u, "input"),
        ):
            if values.size:
                group.arrays[one.name(name)], group.axes[one.name(name)] = (
                    values,
                    (one.name("time"), axis),
                )
                group.labels.update(one.time() | {axis: list(getattr(one.raw, f"{axis}s"))})
    return {"observed_data": observed, "constant_data": constant}


def _emissions(posterior: "Posterior", several: list[_Labels], seed: int) -> dict[str, Group]:
    """The predictive draws and the log densities of the rows."""
    shape = (posterior.num_chains, posterior.num_draws)
    draws = jax.tree.map(
        lambda leaf: jnp.asarray(leaf.reshape(-1, *leaf.shape[2:])), posterior.draws
    )
    keys = jax.random.split(jax.random.key(seed), shape[0] * shape[1])
    outputs = [jnp.asarray(one.y) for one in posterior.dataset.scaled]
    found = jax.tree.map(np.asarray, _emit(posterior.model, draws, keys, outputs, batch_size()))
    predictive, density = (
        Group({}, {}, {"output": list(posterior.dataset.outputs)}),
        Group({}, {}, {}),
    )
    for one, (y, log_density) in zip(several, found, strict=True):
        name, time = one.name("y"), one.name("time")
        if y is not None:
            predictive.arrays[name] = posterior.dataset.decode(
                np.reshape(y, (*shape, *y.shape[1:]))
            )
            predictive.axes[name] = (time, "output")
            predictive.labels.update(one.time())
        present = np.isfinite(one.raw.y)
        rows = present.any(-1)
        if rows.any():
            # p(y) = p(scaled y) / Π output_std, over the outputs observed
            values = np.reshape(log_density, (*shape, -1)) - present @ np.log(
                posterior.dataset.scaler.output_std
            )
            density.arrays[name], density.axes[name] = values[..., rows], (time,)
            density.labels[time] = one.time()[time][rows]
    return {"posterior_predictive": predictive, "log_likelihood": density}


@jit
def _emit(
    model: GPSSM,
    draws: Draw,
    keys: PRNGKeyArray,
    outputs: list[Float[Array, "_ Dy"]],
    batch: int | None,
) -> list[tuple[Float[Array, "S _ Dy"] | None, Float[Array, "S _"]]]:
    """y ~ p(y | x_{t+1}) and log p(y_t | x_{t+1}) under each draw, for each series, in scaled units.

    A user's density without a sampler has no predictive draws.
    """
    samples = not (isinstance(model.likelihood, Custom) and model.likelihood.sampler is None)

    def one(inputs: tuple[Draw, PRNGKeyArray]) -> list[tuple[Array | None, Array]]:
        draw, key = inputs
        likelihood, found = model.with_leaves(draw.leaves).likelihood, []
        for index, (states, y) in enumerate(zip(draw.states, outputs, strict=True)):
            emitted = (
                likelihood.sample(jax.random.fold_in(key, index), states[1:]) if samples else None
            )
            found.append((emitted, likelihood.log_prob(states[1:], y)))
        return found

    return jax.lax.map(one, (draws, keys), batch_size=batch)
