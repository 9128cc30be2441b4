"""Fewer draws of a posterior, where all of them would cost more than they add."""

import dataclasses
from typing import TypeVar

import jax
import numpy as np

from gpssm.fitted import Fitted

ALIKE = 20  # draws that are enough where they differ in their states alone

AnyFitted = TypeVar("AnyFitted", bound=Fitted)


def thinned(fitted: AnyFitted, most: int) -> AnyFitted:
    """The posterior with at most `most` draws, or one a chain, evenly spaced along each.

    Where all draws have one function and one set of parameters, as those of the linear baselines, few are kept: a
    filter finds their states again.
    """
    most = min(most, ALIKE) if _alike(fitted) else most
    every = -(-fitted.num_chains * fitted.num_draws // max(most, 1))
    draws, info = jax.tree.map(lambda leaf: np.asarray(leaf)[:, ::every], (fitted.draws, fitted.info))
    cloud = fitted.cloud
    if cloud is not None:
        arrays = {name: getattr(cloud, name)[:, ::every] for name in ("particles", "log_weights", "surprise")}
        cloud = cloud._replace(**arrays)
    return dataclasses.replace(fitted, draws=draws, info=info, cloud=cloud)


def _alike(fitted: Fitted) -> bool:
    leaves = [fitted.draws.weights, *fitted.draws.leaves.values()]
    return all(not np.ptp(np.asarray(leaf), axis=(0, 1)).any() for leaf in leaves)
