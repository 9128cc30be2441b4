"""Posteriors as trees for ArviZ."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import gpssm
from gpssm.core.runtime import in_double_precision
from gpssm.core.text import check_seed
from gpssm.data.series import Series
from gpssm.model.likelihoods import Custom, GaussianNoise
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw
from gpssm.posterior.draws import check_states, map_draws, split_chains
from gpssm.posterior.explore import smooth
from gpssm.posterior.storage import to_tree

if TYPE_CHECKING:
    import xarray as xr

    from gpssm.posterior.posterior import Posterior


@in_double_precision
def to_arviz(posterior: "Posterior", *, seed: int = 0) -> "xr.DataTree":
    """Return the posterior as an xarray DataTree for ArviZ, with these groups.

        posterior             states, weights, the parameters that vary by their dotted names, and
                              on their natural scale those that are logarithms; `noise_std` in the
                              user's units
        sample_stats          lp, acceptance_rate, diverging, energy, n_steps
        posterior_predictive  y ~ p(y_t | x_{t+1}), one for each draw, in the user's units
        log_likelihood        log p(y_t | x_{t+1}) of each row, in the user's units; rows without
        any output are omitted observed_data         y in the user's units constant_data         u
        in the user's units, if there is one

    A state has the time of the output it emits, so x₀ is one step before the first row. With
    several series, names include the number of the series: y_0, time_0, y_1, ... The log likelihood
    is conditional on the states, which were inferred from all rows, so leave-one-out scores such as
    `arviz_stats.loo(tree)` are too optimistic.

    Parameters
    ----------
    posterior
        The posterior, with the states of all rows.
    seed
        Seed of the predictive draws.
    """
    import xarray as xr

    check_states(posterior, "to_arviz")
    seed = check_seed(seed)
    stored = to_tree(posterior)
    names = ("posterior", "sample_stats", "observed_data", "constant_data")
    groups = {name: stored[name].to_dataset() for name in names if name in stored.children}
    groups["posterior"] = groups["posterior"].assign(_natural(posterior, groups["posterior"]))
    likelihood = posterior.model.likelihood
    # A user-defined density without a sampler has no predictive draws.
    if not (isinstance(likelihood, Custom) and likelihood.sampler is None):
        predictive = {}
        for index, (suffix, _) in enumerate(_numbered(posterior)):
            y = smooth(posterior, index, noise=True, seed=seed).paths
            axes = ("chain", "draw", f"time{suffix}", "output")
            predictive[f"y{suffix}"] = (axes, split_chains(y, posterior.draws))
        groups["posterior_predictive"] = xr.Dataset(predictive)
    groups["log_likelihood"] = xr.Dataset(_log_likelihood(posterior))
    tree = xr.DataTree.from_dict(
        {name: _labelled(posterior, name, dataset) for name, dataset in groups.items()}
    )
    tree.attrs = {
        "inference_library": "gpssm",
        "inference_library_version": gpssm.__version__,
        "created_at": stored.attrs["created"],
    }
    return tree


def _natural(posterior: "Posterior", dataset: "xr.Dataset") -> Mapping[str, Any]:
    """Return the parameters that are logarithms on their natural scale."""
    natural: dict[str, Any] = {}
    for name in posterior.draws.leaves:
        head, dot, last = name.rpartition(".")
        if last.startswith("log_"):
            natural[f"{head}{dot}{last.removeprefix('log_')}"] = np.exp(dataset[name])
    if "likelihood.std" in natural and isinstance(posterior.model.likelihood, GaussianNoise):
        scale = np.array(posterior.dataset.scaler.output_std)
        natural["noise_std"] = natural["likelihood.std"] * scale
    return natural


def _labelled(posterior: "Posterior", group: str, dataset: "xr.Dataset") -> "xr.Dataset":
    """Return a group with times, names of outputs and inputs, and numbers along the other axes."""
    labels: dict[Any, Any] = {name: np.arange(size) for name, size in dataset.sizes.items()}
    labels |= {"output": list(posterior.dataset.outputs), "input": list(posterior.dataset.inputs)}
    first = -1 if group == "posterior" else 0
    for suffix, series in _numbered(posterior):
        rows = np.arange(first, len(series))
        if series.axis is not None:
            rows = series.axis.times(len(rows), first)
        if group == "log_likelihood":
            rows = rows[np.isfinite(series.y).any(-1)]
        labels[f"time{suffix}"] = rows
    return dataset.assign_coords({name: labels[name] for name in dataset.sizes})


def _numbered(posterior: "Posterior") -> list[tuple[str, Series]]:
    """Return the experiments with the suffixes of their names in a tree."""
    experiments = posterior.dataset.experiments
    many = len(experiments) > 1
    return [(f"_{k}" if many else "", series) for k, series in enumerate(experiments)]


def _log_likelihood(posterior: "Posterior") -> dict[str, Any]:
    """Return log p(y_t | x_{t+1}) of the rows of each experiment with their axes, in its units."""
    dataset = posterior.dataset
    outputs = [jnp.asarray(series.y) for series in dataset.scaled]
    densities = map_draws(_log_densities, posterior.model, posterior.draws, outputs)
    variables = {}
    for (suffix, series), values in zip(_numbered(posterior), densities, strict=True):
        present = np.isfinite(series.y)
        if present.any():
            # p(y) = p(scaled y) / Π output_std, over the outputs observed
            values = values - present @ np.log(dataset.scaler.output_std)
            axes = ("chain", "draw", f"time{suffix}")
            variables[f"y{suffix}"] = (axes, values[..., present.any(-1)])
    return variables


def _log_densities(
    model: GPSSM, draw: Draw, outputs: list[Float[Array, "_ Dy"]]
) -> list[Float[Array, " _"]]:
    pairs = zip(draw.states, outputs, strict=True)
    return [model.likelihood.log_prob(states[1:], y) for states, y in pairs]
