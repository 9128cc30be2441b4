"""What several figures ask of a posterior."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from gpssm.posterior.arviz import to_dataframe
from gpssm.posterior.posterior import Posterior

LEVEL = 0.9  # of bands


class Visited(NamedTuple):
    """Where the training data went: states x_t (N, Dx) and x_{t+1}, in scaled units, controls u_t in the user's."""

    x: Float[np.ndarray, "N Dx"]
    u: Float[np.ndarray, "N Du"]
    following: Float[np.ndarray, "N Dx"]


def visited(posterior: Posterior) -> Visited:
    """The path of the states' posterior means, all series one after the other."""
    posterior = posterior.with_states()
    means = [np.mean(np.asarray(path), axis=(0, 1)) for path in posterior.draws.states]
    before, after = (
        np.concatenate([path[rows] for path in means]) for rows in (slice(None, -1), slice(1, None))
    )
    return Visited(before, np.concatenate([one.u for one in posterior.dataset.acting]), after)


def quantities(posterior: Posterior) -> dict[str, Float[np.ndarray, "chain draw"]]:
    """The log target and every entry of the parameters that vary, by name."""
    frame = to_dataframe(posterior).drop(columns="acceptance")
    names = ["log_target", *(name for name in frame.columns if name != "log_target")]
    return {
        name: frame[name].to_numpy().reshape(posterior.num_chains, posterior.num_draws)
        for name in names
    }
