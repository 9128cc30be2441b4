"""What several figures ask of a posterior."""

import re
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from gpssm.exports import to_dataframe
from gpssm.fitted import Fitted

LEVEL = 0.9  # of bands


class Visited(NamedTuple):
    """Where the training data went: states x_t (N, Dx) and x_{t+1}, in scaled units, controls u_t in the user's."""

    x: Float[np.ndarray, "N Dx"]
    u: Float[np.ndarray, "N Du"]
    following: Float[np.ndarray, "N Dx"]


def one_chain(fitted: Fitted, chain: int | None) -> Fitted:
    """The draws of one chain alone, or of all where it is None.

    Chains may settle in different coordinates of the states, so that averages over them can be of nothing.
    """
    if chain is None:
        return fitted
    if not 0 <= chain < fitted.num_chains:
        raise IndexError(f"the posterior has {fitted.num_chains} chains, counted from 0; got chain {chain}")
    draws, info = jax.tree.map(lambda leaf: leaf[chain : chain + 1], (fitted.draws, fitted.info))
    return replace(fitted, draws=draws, info=info, cloud=None)


def visited(fitted: Fitted) -> Visited:
    """The path of the states' posterior means, all series one after the other."""
    means = [np.mean(np.asarray(path), axis=(0, 1)) for path in fitted.draws.states]
    before, after = (np.concatenate([path[rows] for path in means]) for rows in (slice(None, -1), slice(1, None)))
    return Visited(before, np.concatenate([one.u for one in fitted.raw]), after)


def quantities(fitted: Fitted) -> dict[str, Float[np.ndarray, "chain draw"]]:
    """The log target and every entry of the parameters that vary, by name."""
    frame = to_dataframe(fitted).drop(columns="acceptance")
    names = ["log_target", *(name for name in frame.columns if name != "log_target")]
    return {name: frame[name].to_numpy().reshape(fitted.num_chains, fitted.num_draws) for name in names}


def plain(name: str) -> str:
    """A parameter's name in words: `basis.parts.0.locations[3,0]` is `basis locations[3,0]`."""
    return re.sub(r"parts\.\d+\.", "", name).replace(".", " ").replace("_", " ")
