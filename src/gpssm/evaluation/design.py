"""Rank planned experiments by the expected reduction of a forecast's variance.

An experiment is a plan of inputs u. For each path, which has the function and the parameters of one
draw s, let Y = y_{1:H} be the noisy outputs of the experiment, and Z_s = E[y_{1:H'} | s] the
quantity of interest, an average over paths of the same draw with independent noise. The best linear
predictor of Z from Y, and the reduction of the variance,

    Ẑ = E Z + K (Y − E Y),   K = Cov(Z, Y) Cov(Y)⁻¹,       reduction = 1 − E|Z − Ẑ|² / E|Z − E Z|²

are exact if everything is Gaussian and linear in the unknowns. Otherwise, the posterior given Y has
at most this variance on average, so the reduction is conservative. Covariances are estimated on
some draws and errors on others (folds), to avoid overfitting.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Float

from gpssm.core.runtime import in_double_precision
from gpssm.core.text import as_tuple, check_seed, check_whole
from gpssm.posterior.control import Rollout
from gpssm.posterior.forecast import check_paths
from gpssm.posterior.posterior import Posterior

FOLDS = 5


@in_double_precision
def informative(
    posterior: Posterior,
    experiments: Mapping[str, Any] | Sequence[Any],
    target: Any = None,
    *,
    num_paths: int = 1000,
    max_draws: int = 200,
    seed: int = 0,
) -> pd.DataFrame:
    """Rank planned experiments by how much they would improve forecasts under the target inputs.

        gpssm.analysis.informative(posterior, {"steps": steps, "sines": sines}, target=usual)

    Parameters
    ----------
    posterior
        The current posterior.
    experiments
        Inputs (H, Du) in the user's units, by name or as a list, in any form that `forecast`
        accepts.
    target
        The inputs of the forecast to improve; by default, all experiments one after the other.
    num_paths, max_draws
        Number of paths of each experiment, and the largest number of draws they are spread over.
    seed
        Seed of the paths.

    Returns
    -------
    DataFrame
        One row per experiment, best first: the `reduction` as a share of the variance over all
        steps and outputs, in units of the training spread, and the reduction for each output.
        Negative values mean that the effect is too small to be measured with these draws.
    """
    check_paths(num_paths, None, 1000)
    check_whole("max_draws", max_draws, 1)
    seed = check_seed(seed)
    dataset = posterior.dataset
    if not dataset.inputs:
        raise ValueError("the model has no inputs, so there are no experiments to rank")
    if not isinstance(experiments, Mapping):
        experiments = {str(number): item for number, item in enumerate(as_tuple(experiments))}
    plans = {name: dataset.inputs_ahead(item)[0] for name, item in experiments.items()}
    if not plans:
        raise ValueError("pass at least one experiment: inputs with one row per step")
    fewer = posterior.thinned(max_draws)
    draws = fewer.num_chains * fewer.num_draws
    if draws < 2 * FOLDS:
        raise ValueError(
            f"{draws} draws are too few to rank experiments: at least {2 * FOLDS} are needed"
        )
    paths = max(num_paths, draws)
    owner = np.arange(paths) * draws // paths
    scale = np.array(dataset.scaler.output_std)
    # The target has other random numbers than the experiments.
    wanted = fewer.rollout(paths, seed=seed + 1_000_003, noise=False)
    aims = list(plans.values()) if target is None else [dataset.inputs_ahead(target)[0]]
    Z = np.concatenate([_outputs(wanted, plan) / scale for plan in aims], axis=1)
    Z = np.stack([Z[owner == s].mean(0) for s in range(draws)])
    shown = fewer.rollout(paths, seed=seed)
    rows = {}
    for name, plan in plans.items():
        rest, before = _errors(Z, (_outputs(shown, plan) / scale).reshape(paths, -1), owner)
        by_output = dict(zip(dataset.outputs, 1 - rest / before, strict=True))
        rows[name] = {"reduction": 1 - rest.sum() / before.sum()} | by_output
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("experiment")
    return table.sort_values("reduction", ascending=False, kind="stable")


@eqx.filter_jit
def _run(rollout: Rollout, u: Float[np.ndarray, "H Du"]) -> Any:
    return rollout(rollout.start, jnp.asarray(u))


def _outputs(rollout: Rollout, u: Float[np.ndarray, "H Du"]) -> Float[np.ndarray, "N H Dy"]:
    return np.asarray(_run(rollout, u))


def _errors(
    Z: Float[np.ndarray, "S H Dy"], Y: Float[np.ndarray, "N D"], owner: np.ndarray
) -> tuple[Float[np.ndarray, " Dy"], Float[np.ndarray, " Dy"]]:
    """Return the mean squares of Z − Ẑ and Z − E Z by output, with K and means from other folds."""
    draws, flat = len(Z), Z.reshape(len(Z), -1)
    fold = np.arange(draws) % FOLDS
    after, before = np.zeros(flat.shape[1]), np.zeros(flat.shape[1])
    for k in range(FOLDS):
        inside = fold[owner] != k
        mean_z, mean_y = flat[fold != k].mean(0), Y[inside].mean(0)
        y, z = Y[inside] - mean_y, flat[owner[inside]] - mean_z
        covariance = y.T @ y / len(y)
        # A millionth of the mean variance, for what hardly varies.
        covariance += 1e-6 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
        K = np.linalg.solve(covariance, y.T @ z / len(y))
        targets = flat[owner[~inside]] - mean_z
        after += np.sum((targets - (Y[~inside] - mean_y) @ K) ** 2, axis=0)
        before += np.sum(targets**2, axis=0)
    shape = (-1, Z.shape[-1])
    return after.reshape(shape).sum(0), before.reshape(shape).sum(0)
