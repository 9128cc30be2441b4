"""The result of a fit: draws from the posterior, and the methods that use them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gpssm.core.runtime import in_double_precision
from gpssm.core.table import card
from gpssm.core.text import check_whole, count
from gpssm.data.dataset import Dataset
from gpssm.data.delays import name_inputs
from gpssm.inference.settings import MethodSettings
from gpssm.methods.spec import Spec
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw, Info
from gpssm.posterior import (
    conditioning,
    control,
    diagnostics,
    dynamics,
    forecast,
    learning,
    storage,
)
from gpssm.posterior.calibration import Calibration
from gpssm.posterior.draws import CurrentState, Forecasting, Learned, Seconds, absorb_common

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gpssm.evaluation.summary import Summary

ALIKE = 20  # number of draws that suffices if they differ only in their states


def calibrate(
    forecaster: Forecasting,
    series: Any = None,
    *,
    new_experiment: bool = False,
    index: int = -1,
    seed: int | None = None,
    without: Sequence[Any] = (),
) -> Forecasting:
    """Calibrate the width of intervals on held-out rows.

    See `gpssm.evaluation.held_out.calibrate`.
    """
    from gpssm.evaluation import held_out

    fitted: Any = forecaster
    return held_out.calibrate(
        fitted,
        series,
        new_experiment=new_experiment,
        index=index,
        seed=seed,
        without=without,
    )


def summary(forecaster: Any) -> "Summary":
    """Return a summary of the fit: data, model, convergence, noise, nonlinearity and warnings.

    Use `print` or `to_dict`. Errors are in sample, along the longest training series, from a few
    draws. For a stack, results for a single model are those of the `leading` member.
    """
    from gpssm.evaluation.summary import summarise

    return summarise(forecaster)


def plot(forecaster: Any, index: int = -1) -> "Figure":
    """Plot the smoothed outputs of training series `index`, with the data."""
    from gpssm.plots.posteriors import plot_smoothed

    return plot_smoothed(forecaster, index)


@dataclass(frozen=True, eq=False, repr=False)
class Posterior:
    """Draws from the posterior of a model.

        posterior = gpssm.fit(train)
        posterior.forecast(u=future).plot()

    Every leaf of `draws` and `info` has leading axes (chain, draw).

    Parameters
    ----------
    model
        The model with its initial values.
    draws
        States, one array (chain, draw, T+1, Dx) for each series, in scaled units; weights (chain,
        draw, Dx, M); and, by name, the parameters that are not fixed. For a long series, draws may
        contain only the states of its last rows (`dataset.first_states`).
    info, warmup
        Diagnostics of the sampler for the draws, and for the iterations of the warm-up.
    dataset
        The training data, with the conversion between the user's units and the model's.
    spec
        The specification of the fit.
    seconds
        The time that the fit took.
    seed
        The seed of the fit.
    notes
        Messages about problems during the fit.
    current
        The current state; None for the end of the training series, where each draw has a last
        state.
    calibration
        The result of `calibrate`, or None.
    learned
        The state of `learn`, the distribution of the weights, or None.
    comparison
        The compared starts, one row each.
    """

    model: GPSSM
    draws: Draw
    info: Info
    warmup: Info
    dataset: Dataset
    spec: Spec
    seconds: Seconds
    seed: int
    notes: tuple[str, ...] = ()
    current: CurrentState | None = None
    calibration: Calibration | None = None
    learned: Learned | None = None
    comparison: tuple[dict[str, Any], ...] = ()

    smooth = forecast.smooth  # the module, which `forecast` hides below
    forecast = forecast.forecast
    simulate = conditioning.simulate
    predict = conditioning.predict
    condition = conditioning.condition
    learn = learning.learn
    extend = learning.extend
    update = learning.update
    transition = dynamics.transition
    linearise = dynamics.linearise
    rollout = control.rollout
    to_casadi = control.to_casadi
    to_control = control.to_control
    to_arviz = storage.to_arviz
    diagnostics = diagnostics.diagnose
    save = storage.save
    calibrate = calibrate
    summary = summary
    plot = plot

    def __repr__(self) -> str:
        notes = f", {len(self.notes)} notes: see .notes" if self.notes else ""
        return (
            f"Posterior({self.method}, {self.num_chains} chains of {self.num_draws} draws{notes})"
        )

    def __getstate__(self) -> dict[str, Any]:
        # A process that computes in single precision would read arrays of JAX in that precision.
        spec, fields = (
            {name: _converted(value, jax.Array, np.asarray) for name, value in vars(part).items()}
            for part in (self.spec, self)
        )
        return fields | {"spec": spec}

    @in_double_precision
    def __setstate__(self, state: dict[str, Any]) -> None:
        spec = object.__new__(Spec)
        model = _converted(state["model"], np.ndarray, jnp.asarray)
        for name, value in state["spec"].items():
            object.__setattr__(spec, name, _converted(value, np.ndarray, jnp.asarray))
        for name, value in (state | {"spec": spec, "model": model}).items():
            object.__setattr__(self, name, value)

    def _repr_html_(self) -> str:
        dataset = self.dataset
        likelihood = type(self.model.likelihood).__name__
        facts = {
            "draws": f"{count(self.num_chains, 'chain')} of {self.num_draws}",
            "training data": ", ".join(
                f"{series.name or f'series {k}'} ({len(series)} rows)"
                for k, series in enumerate(dataset.experiments)
            ),
            "outputs": ", ".join(dataset.outputs),
            "inputs": ", ".join(name_inputs(dataset.inputs, dataset.delay)) or "none",
            "model": f"{count(self.model.state_dim, 'state')}, {likelihood} likelihood",
            "seconds": f"{sum(self.seconds):.0f}",
        }
        if self.current is not None:
            facts["state"] = f"after {self.current.rows} rows"
        if self.learned is not None:
            less = " and less" if np.ptp(self.learned.rates) > 0 else ""
            facts["learned since"] = (
                f"{self.learned.rows} rows, forgetting {self.learned.forgetting:.4g}{less}"
            )
        return card(f"Posterior: {self.method}", facts, notes=self.notes)

    @property
    def num_chains(self) -> int:
        """Number of chains."""
        return self.draws.weights.shape[0]

    @property
    def num_draws(self) -> int:
        """Number of draws kept in each chain."""
        return self.draws.weights.shape[1]

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.spec.method_name

    @property
    def learns(self) -> bool:
        """Whether the method samples a learned transition, unlike the linear baselines."""
        return not isinstance(self.spec.method, MethodSettings) or self.spec.method.learns

    @in_double_precision
    def thinned(self, most: int | None = None, *, chain: int | None = None) -> Self:
        """Return the posterior with at most `most` draws, but at least one per chain, evenly
        spaced.

        If all draws share one function and one set of parameters, as in the linear baselines, few
        draws are enough, because a filter recovers their states.

        Parameters
        ----------
        most
            Number of draws; all of them by default.
        chain
            Keep only the draws of this chain. Chains may use different coordinates of the states,
            so averages of states over chains have no meaning.
        """
        posterior = self if chain is None else self._chain(chain)
        if most is None:
            return posterior
        check_whole("most", most, 0)
        leaves = [posterior.draws.weights, *posterior.draws.leaves.values()]
        alike = all(not np.ptp(np.asarray(leaf), axis=(0, 1)).any() for leaf in leaves)
        size = max(min(int(most), ALIKE) if alike else int(most), 1)
        every = -(-posterior.num_chains * posterior.num_draws // size)
        return posterior._each(lambda leaf: np.asarray(leaf)[:, ::every])

    def map_models(self, change: Callable[["Posterior"], "Posterior"]) -> "Posterior":
        """Return the posterior changed by a function, which `Stack` applies to each member."""
        return change(self)

    def _chain(self, chain: int) -> Self:
        if not isinstance(chain, Integral) or not 0 <= chain < self.num_chains:
            raise IndexError(
                f"the posterior has {self.num_chains} chains, counted from 0; got chain {chain}"
            )
        part = replace(self, current=None)._each(lambda leaf: leaf[chain : chain + 1])
        model, draws = absorb_common([part.model], part.draws)
        return replace(part, model=model, draws=draws)

    def _each(self, function: Callable[[Any], Any]) -> Self:
        """Return the posterior with a function applied to every array of the draws."""
        current, learned = self.current, self.learned
        arrays = (self.draws, self.info, current and current.state, learned and learned[:2])
        draws, info, state, distribution = jax.tree.map(function, arrays)
        return replace(
            self,
            draws=draws,
            info=info,
            current=current and current._replace(state=state),
            learned=learned and learned._replace(state=distribution[0], rates=distribution[1]),
        )


def _converted(part: Any, kind: type, convert: Callable[[Any], Any]) -> Any:
    """Return a module or named tuple with its arrays of one type converted, anything else
    unchanged."""
    if not isinstance(part, eqx.Module) and not hasattr(part, "_fields"):
        return part
    return jax.tree.map(lambda leaf: convert(leaf) if isinstance(leaf, kind) else leaf, part)
