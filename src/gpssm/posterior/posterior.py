"""What a fit gives back: draws from the posterior, and the verbs of what can be done with them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import jax
import numpy as np
from jaxtyping import ArrayLike, Float

from gpssm.core.notebook import card
from gpssm.core.runtime import in_double_precision
from gpssm.core.text import check_whole, count, is_whole
from gpssm.data.dataset import Dataset
from gpssm.data.delays import name_controls
from gpssm.inference.settings import MethodSettings
from gpssm.methods.spec import Spec
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw, Info
from gpssm.posterior import arviz, conditioning, explore, learning, storage, update
from gpssm.posterior.calibration import Calibration
from gpssm.posterior.casadi import casadi_function
from gpssm.posterior.control import Rollout, make_rollout
from gpssm.posterior.diagnostics import Diagnostics, diagnose, find_notes
from gpssm.posterior.draws import CurrentState, Learned, Seconds, absorb_common
from gpssm.posterior.explore import (
    Derivatives,
    Relevance,
    Smoothed,
    TransitionEstimate,
    UnknownEstimate,
)
from gpssm.posterior.export import write_export
from gpssm.posterior.forecast import forecast
from gpssm.posterior.linearisation import Linearisation, StaticGain, linearise, static_gain
from gpssm.posterior.mean_model import mean_state
from gpssm.posterior.python_control import nonlinear_system
from gpssm.posterior.rollout import BOUNDS

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.figure import Figure

    from gpssm.evaluation.summary import Summary
    from gpssm.posterior.forecast import Forecast

ALIKE = 20  # draws that are enough where they differ in their states alone


@dataclass(frozen=True, eq=False, repr=False)
class Posterior:
    """Draws from the posterior of a model. Every leaf of `draws` and `info` has leading axes (chain, draw).

    `draws.states` has one array (chain, draw, T+1, Dx) a series, in scaled units; `draws.weights` is
    (chain, draw, Dx, M); `draws.leaves` holds the parameters that are not fixed, by name. `model` has the values the
    fit started from, and `model_at` those of a draw. `dataset` has the training data in the user's units, and turns
    these into the model's and back. `warmup` is the `Info` of the warm-up's iterations. `notes` says what went wrong,
    if anything did. `current` is where the state is now, None for the end of the training series, where each draw has a
    last state of its own. `calibration` is what `calibrate` measured, None before, and `learned` what `learn` knows of
    the weights. Of a long series draws may have the states of its last rows only (`dataset.first_states`), and
    `with_states` is the posterior of these.
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

    condition = conditioning.condition
    condition_at = conditioning.condition_at
    extend = update.extend
    learn = learning.learn
    predict = conditioning.predict
    simulate = conditioning.simulate
    update = update.update

    def __repr__(self) -> str:
        notes = f", {len(self.notes)} notes: see .notes" if self.notes else ""
        return (
            f"Posterior({self.method}, {self.num_chains} chains of {self.num_draws} draws{notes})"
        )

    def _repr_html_(self) -> str:
        dataset, several = self.dataset, enumerate(self.dataset.experiments)
        facts = {
            "draws": f"{count(self.num_chains, 'chain')} of {self.num_draws}",
            "training data": ", ".join(
                f"{one.name or f'series {k}'} ({len(one)} rows)" for k, one in several
            ),
            "outputs": ", ".join(dataset.outputs),
            "controls": ", ".join(name_controls(dataset.inputs, dataset.delay)) or "none",
            "model": f"{count(self.model.state_dim, 'state')}, {type(self.model.likelihood).__name__} likelihood",
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
    def apart(self) -> bool:
        """Whether chains have models of their own, as from starts of their own: they differ in what is not sampled.

        They are then several posteriors, and forecasts are the average over them; else all chains are of one.
        """
        sampled = self.model.leaves("sample")
        learned = (
            np.asarray(leaf)[:, -1]
            for name, leaf in self.draws.leaves.items()
            if name not in sampled
        )
        return any(np.any(ends != ends[:1]) for ends in learned)

    @property
    def method(self) -> str:
        """The name of the fit's method."""
        return self.spec.method_name

    @property
    def learns(self) -> bool:
        """Whether the method learned a transition as it sampled, as the linear baselines did not."""
        return not isinstance(self.spec.method, MethodSettings) or self.spec.method.learns

    @property
    def num_gradients(self) -> float:
        """Gradients of the target that the fit took; what chains shared in the warm-up counts once."""
        method = self.spec.method
        shared = 0
        if isinstance(method, MethodSettings) and not self.apart:
            shared = method.num_shared(self.model)
        apart = np.sum(self.info.gradients) + np.sum(self.warmup.gradients[:, shared:])
        return float(apart + np.sum(self.warmup.gradients[0, :shared]))

    @in_double_precision
    def model_at(self, chain: int, draw: int) -> GPSSM:
        """The model with the parameters of one draw."""
        for name, value, number in (
            ("chain", chain, self.num_chains),
            ("draw", draw, self.num_draws),
        ):
            if not is_whole(value) or not -number <= value < number:
                raise IndexError(
                    f"the posterior has {number} of each {name}, counted from 0; got {value!r}"
                )
        return self.model.with_leaves(
            {name: leaf[chain, draw] for name, leaf in self.draws.leaves.items()}
        )

    def past_inputs(
        self, index: int = -1, new_experiment: bool = False
    ) -> Float[np.ndarray, "K Du"]:
        """The inputs of the K rows before those to come, K the longest delay: of the rows after which the state is.

        NaN where nobody knows them: before a new experiment.
        """
        if new_experiment:
            return self.dataset.past_inputs(index, 0)
        return self.dataset.past_inputs(index) if self.current is None else self.current.past

    def with_states(self) -> Self:
        """The posterior with the rows whose states are stored as all its training data: to smooth or draw these.

        Inputs of its dataset are then in the rows on which they act.
        """
        return (
            replace(self, dataset=self.dataset.with_states()) if self.dataset.first_states else self
        )

    def check_states(self, verb: str) -> None:
        """Refuse what needs the states of all training rows where not all are stored."""
        if self.dataset.first_states:
            rows = max(len(one) for one in self.dataset.with_states().experiments)
            raise ValueError(
                f"{verb} needs the states of all training rows, and of this long record those of the last {rows} were "
                "kept. Fit with keep_states='all', or take posterior.with_states(), which has these rows alone."
            )

    @in_double_precision
    def chain(self, number: int) -> Self:
        """The draws of one chain alone, from the end of the training series.

        Chains may settle in different coordinates of the states, so that averages over them can be of nothing.
        """
        if not isinstance(number, Integral) or not 0 <= number < self.num_chains:
            raise IndexError(
                f"the posterior has {self.num_chains} chains, counted from 0; got chain {number}"
            )
        draws, info = jax.tree.map(lambda leaf: leaf[number : number + 1], (self.draws, self.info))
        model, draws = absorb_common([self.model], draws)
        learned = self.learned and self.learned.each(lambda leaf: leaf[number : number + 1])
        return replace(self, model=model, draws=draws, info=info, current=None, learned=learned)

    def thinned(self, most: int) -> Self:
        """The posterior with at most `most` draws, or one a chain, evenly spaced along each.

        Where all draws have one function and one set of parameters, as those of the linear baselines, few are kept: a
        filter finds their states again.
        """
        check_whole("most", most, 0)
        leaves = [self.draws.weights, *self.draws.leaves.values()]
        alike = all(not np.ptp(np.asarray(leaf), axis=(0, 1)).any() for leaf in leaves)
        every = -(
            -self.num_chains
            * self.num_draws
            // max(min(int(most), ALIKE) if alike else int(most), 1)
        )
        draws, info = jax.tree.map(
            lambda leaf: np.asarray(leaf)[:, ::every], (self.draws, self.info)
        )
        current = self.current and self.current.each(lambda leaf: leaf[:, ::every])
        learned = self.learned and self.learned.each(lambda leaf: leaf[:, ::every])
        return replace(self, draws=draws, info=info, current=current, learned=learned)

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
        one_function: bool = False,
    ) -> "Forecast":
        """Paths of the outputs after the end of the data, each under the function and parameters of one draw.

            forecast = posterior.forecast(u=future_inputs)

        :param horizon: number of steps; without it, as many as `u` has rows, or 30 where there are no controls.
        :param u: controls in the user's units, a row a step: an array, a DataFrame (columns by name) or a Series.
            With a delay, as they are set: those of the last steps, which arrive after the horizon, may be left out.
        :param num_paths: spread evenly over the draws of all chains.
        :param noise: whether paths have observation noise; without it they are E[y_t | x_{t+1}].
        :param index: the training series that the forecast follows; of no effect after `condition`.
        :param bounds: a path that leaves the box around its draw's training states, this many times as wide as their
            range, is continued by one that stayed; None for no box. See `forecast.diagnostics`.
        :param calibrated: whether paths are as wide as `calibrate` says; None if it has been called.
        :param one_function: whether what the weights leave open about f, B(z), is drawn as one function a path, not
            afresh at each step (`rollout.py`). Of no effect where nothing is left open, as by a Hilbert basis, or the
            kernel is a user's own without random features.
        """
        settings = {
            "num_paths": num_paths,
            "seed": seed,
            "noise": noise,
            "index": index,
            "one_function": one_function,
        }
        return forecast(self, horizon, u, bounds=bounds, calibrated=calibrated, **settings)

    def rollout(
        self,
        num_paths: int = 100,
        *,
        seed: int = 0,
        noise: bool = True,
        index: int = -1,
        bounds: float | None = BOUNDS,
    ) -> Rollout:
        """The forecast as a pure JAX function of states and controls, for optimisation and control.

            rollout = posterior.rollout(50)
            paths = rollout(rollout.start, u)  # (50, H, Dy), the paths of `forecast` with this seed

        Arguments are those of `forecast`. What `calibrate` found is not applied.
        """
        return make_rollout(self, num_paths, seed, noise, index, bounds)

    def export(self, path: str | Path, num_draws: int = 20, *, overwrite: bool = False) -> None:
        """Write the mean model as a Python file that needs NumPy alone: `run(u)`, `step(x, u)`.

            posterior.export("plant.py")

        Its outputs are the mean over at most `num_draws` draws (one a chain at least), each run without noise from
        where the state is now.
        """
        write_export(self, path, num_draws, overwrite)

    def mean_state(self, num_draws: int = 20) -> Float[np.ndarray, " N"]:
        """Return where the state of the mean model is now: of `to_control`, `to_casadi`, `export`.

        Parameters
        ----------
        num_draws
            As for these.
        """
        return mean_state(self, num_draws)

    def to_casadi(self, num_draws: int = 20) -> Any:
        """Return one step of the mean model, (x, u) → (x_next, y), as a `casadi.Function`.

            step = posterior.to_casadi()
            x, y = step(posterior.mean_state(), u)
            step.save("plant.casadi"), step.generate("plant.c")

        It has derivatives of every order and needs no JAX. Inputs and outputs are in the user's
        units.

        Parameters
        ----------
        num_draws
            As for `to_control`.
        """
        return casadi_function(self, num_draws)

    def to_control(self, num_draws: int = 20) -> Any:
        """Return the mean model as an `nlsys` of python-control.

            plant = posterior.to_control()
            control.input_output_response(plant, times, u.T, posterior.mean_state())

        Parameters
        ----------
        num_draws
            The output is the mean over at most so many draws, one per chain at least; the state
            holds those of all of them.
        """
        return nonlinear_system(self, num_draws)

    def smooth(self, index: int = -1, noise: bool = False, seed: int = 0) -> Smoothed:
        """States and outputs along training series `index`, with missing outputs filled in.

        Outputs are E[y_t | x_{t+1}] of each draw; with `noise`, drawn from p(y_t | x_{t+1}).
        """
        return explore.smooth(self, index, noise, seed)

    def transition(self, x: Float[ArrayLike, "N Dx"], u: Any = None) -> TransitionEstimate:
        """The next state f(x, u), without process noise: of each draw, mean, standard deviation, and novelty.

        :param x: states (N, Dx) in the coordinates of `draws.states`.
        :param u: inputs (N, Du) in the user's units.
        """
        return explore.transition(self, x, u)

    def derivatives(self, x: Float[ArrayLike, "N Dx"], u: Any = None) -> Derivatives:
        """∂f/∂x, ∂f/∂u and ∂E[y]/∂x with standard deviations over draws; x and u as in `transition`."""
        return explore.derivatives(self, x, u)

    def unknown(self, values: Float[ArrayLike, "N ..."]) -> UnknownEstimate:
        """The unknown function of `gpssm.Physics` at values of its feature, mean and standard deviation."""
        return explore.unknown(self, values)

    def relevance(self) -> Relevance:
        """How much each state and control moves each transition along the data; `gpssm.plots.plot_wiring` draws it."""
        return explore.relevance(self.with_states())

    def linearise(
        self, *, at: Any = None, row: int | None = None, index: int = -1
    ) -> Linearisation:
        """The model around an operating point: poles, step, impulse and frequency responses, with bands over draws.

            posterior.linearise(at={"pump": 3.0}).step_response(50).plot()

        :param at: controls in the user's units, in order or by name (the mean for those not named), at whose
            equilibrium f(x, u) = x of each draw it is taken; the mean of the training data by default. Or a pair
            (x, u) with a state in the coordinates of the draws.
        :param row: a row of training series `index`: each draw's own state before it, and its controls, instead.
        """
        return linearise(self.with_states(), at, row, index)

    def static_gain(
        self, input: str | None = None, values: Float[ArrayLike, " N"] | None = None, at: Any = None
    ) -> StaticGain:
        """Where the outputs settle while a control is held, over its range, with the slope there and bands over draws.

        :param input: the control that varies; the first by default.
        :param values: at which, in the user's units; from the 1st to the 99th percentile of the training data.
        :param at: the other controls, as in `linearise`.
        """
        return static_gain(self.with_states(), input, values, at)

    def with_notes(self, said: tuple[str, ...] = ()) -> Self:
        """The posterior with what was said of its run, and what the checks find wrong with it, as notes."""
        return replace(self, notes=(*said, *find_notes(self)))

    def diagnostics(self) -> Diagnostics:
        """R-hat and effective sample sizes of parameters, f, states and outputs, and the sampler's own figures.

        f is taken at inputs the training series passed through, the forecast holds the last controls for 30 steps.
        States are identified only up to a change of coordinates, so they are judged within each chain.
        """
        return diagnose(self)

    def calibrate(self, series: Any = None, **options: Any) -> "Posterior":
        """Measure on unseen rows how much wider intervals must be; see `gpssm.evaluation.calibrate.calibrate`."""
        from gpssm.evaluation.calibrate import calibrate

        return calibrate(self, series, **options)

    def summary(self) -> "Summary":
        """One page: what was fitted, how well it sampled, how noisy, predictable and nonlinear it is, what to distrust.

        `print` it, or take `to_dict`. Errors are in sample, along the longest training series, from a few draws.
        """
        from gpssm.evaluation.summary import summarise

        return summarise(self)

    def plot(self, index: int = -1) -> "Figure":
        """The outputs of training series `index` as the model sees them, with the data; more are in `gpssm.plots`."""
        from gpssm.plots.posteriors import plot_smoothed

        return plot_smoothed(self, index)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Save everything in a netCDF file, to the last bit, for `gpssm.load`.

        A user's own functions (a mean, a likelihood, a link) are saved by name only: `load` is given them again.
        """
        storage.write(self, path, overwrite)

    def to_arviz(self, *, seed: int = 0) -> "xr.DataTree":
        """The posterior for ArviZ: parameters, sampler's figures, predictive draws, data, log likelihood.

        `arviz_stats.loo(tree)` compares models by it. See `gpssm.posterior.arviz.to_arviz` for names and units.
        """
        self.check_states("to_arviz")
        return arviz.to_arviz(self, seed)

    def to_dataframe(self) -> "pd.DataFrame":
        """A table of the parameters that vary: one row a draw, one column an entry, indexed by (chain, draw)."""
        return arviz.to_dataframe(self)


@in_double_precision
def load_posterior(path: str | Path, parts: Mapping[str, Any] | None = None) -> Posterior:
    """Read one posterior that `Posterior.save` wrote; `gpssm.load` also reads stacks."""
    return Posterior(**storage.read(path, parts))
