"""What a fit gives back: draws from the posterior, and what follows from them draw by draw."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import ArrayLike, Float

from gpssm import conditioning, exports, prediction, storage, update
from gpssm.diagnostics import Diagnostics
from gpssm.dynamics import Linearisation, TransitionEstimate, function_values, linearise, transition
from gpssm.examination import diagnose
from gpssm.fitted import Fitted
from gpssm.forecast import Forecast
from gpssm.forecasting import forecast
from gpssm.plots import plot_smoothed
from gpssm.rollout import BOUNDS
from gpssm.runtime import numerical
from gpssm.smoothing import Smoothed, outputs_of, smooth
from gpssm.summarising import summarise
from gpssm.summary import Summary

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Posterior(Fitted):
    """What `fit` returns: draws, and the verbs of what can be done with them, in the user's units."""

    condition = conditioning.condition
    condition_at = conditioning.condition_at
    predict = prediction.predict
    simulate = prediction.simulate
    update = update.update

    def __repr__(self) -> str:
        notes = f", {len(self.notes)} notes: see .notes" if self.notes else ""
        return f"Posterior({self.config['method']}, {self.num_chains} chains of {self.num_draws} draws{notes})"

    def function(
        self, x: Float[ArrayLike, "N Dx"], u: Float[ArrayLike, "N Du"]
    ) -> Float[np.ndarray, "chain draw N Dx"]:
        """E[f(z) | v] = m(z) + A(z) v of each draw at the inputs z = [x; u], in scaled units."""
        return function_values(self, x, u)

    def outputs(self, index: int = 0) -> Float[np.ndarray, "chain draw T Dy"]:
        """E[y_t | x_{t+1}] of each draw along series `index`, in the user's units."""
        return outputs_of(self, index)

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
    ) -> Forecast:
        """Paths of the outputs after the end of the data, each under the function and parameters of one draw.

            forecast = posterior.forecast(u=future_inputs)

        :param horizon: number of steps; without it, as many as `u` has rows, or 30 where there are no controls.
        :param u: controls in the user's units, a row a step: an array, a DataFrame (columns by name) or a Series.
        :param num_paths: spread evenly over the draws of all chains.
        :param noise: whether paths have observation noise; without it they are E[y_t | x_{t+1}].
        :param index: the training series that the forecast follows; of no effect after `condition`.
        :param bounds: a path that leaves the box around its draw's training states, this many times as wide as their
            range, is continued by one that stayed; None for no box. See `forecast.diagnostics`.
        """
        return forecast(self, horizon, u, num_paths=num_paths, seed=seed, noise=noise, index=index, bounds=bounds)

    def smooth(self, index: int = 0, noise: bool = False, seed: int = 0) -> Smoothed:
        """States and outputs along training series `index`, with missing outputs filled in.

        Outputs are E[y_t | x_{t+1}] of each draw; with `noise`, drawn from p(y_t | x_{t+1}).
        """
        return smooth(self, index, noise, seed)

    def transition(self, x: Float[ArrayLike, "N Dx"], u: Any = None) -> TransitionEstimate:
        """f(x, u) with its standard deviation, without process noise, and how new the inputs are to the model.

        :param x: states (N, Dx) in the coordinates of `draws.states`.
        :param u: controls (N, Du) in the user's units.
        """
        return transition(self, x, u)

    def linearise(self, x: Float[ArrayLike, "N Dx"], u: Any = None) -> Linearisation:
        """∂f/∂x, ∂f/∂u and ∂E[y]/∂x with standard deviations over draws; x and u as in `transition`."""
        return linearise(self, x, u)

    def diagnostics(self) -> Diagnostics:
        """R-hat and effective sample sizes of parameters, f, states and outputs, and the sampler's own figures.

        f is taken at inputs the training series passed through, the forecast holds the last controls for 30 steps.
        States are identified only up to a change of coordinates, so they are judged within each chain.
        """
        return diagnose(self)

    def summary(self) -> Summary:
        """One page: what was fitted, how well it sampled, how noisy, predictable and nonlinear it is, what to distrust.

        `print` it, or take `to_dict`. Errors are in sample, along the longest training series, from a few draws.
        """
        return summarise(self)

    def plot(self, index: int = 0) -> "Figure":
        """The outputs of training series `index` as the model sees them, with the data; more are in `gpssm.plots`."""
        return plot_smoothed(self, index)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Save everything in a netCDF file, to the last bit, for `gpssm.load`.

        A user's own functions (a mean, a likelihood, a link) are saved by name only: `load` is given them again.
        """
        storage.write(self, path, overwrite)

    def to_arviz(self, *, seed: int = 0) -> "xr.DataTree":
        """The posterior for ArviZ: parameters, sampler's figures, predictive draws, data, log likelihood.

        `arviz_stats.loo(tree)` compares models by it. See `exports.to_arviz` for names and units.
        """
        return exports.to_arviz(self, seed)

    def to_dataframe(self) -> "pd.DataFrame":
        """A table of the parameters that vary: one row a draw, one column an entry, indexed by (chain, draw)."""
        return exports.to_dataframe(self)


@numerical
def load(path: str | Path, parts: Mapping[str, Any] | None = None) -> Posterior:
    """The posterior that `Posterior.save` wrote.

        posterior = gpssm.load("run.nc", parts={"mean.function": drag})

    :param parts: the user's own functions in the model by dotted name; where one is missing the error names it.
    """
    return Posterior(**storage.read(path, parts))
