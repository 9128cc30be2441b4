"""Models for control: the forecast as a function, its mean for other tools, planned experiments.

**The rollout** is the forecast as a pure function of the current states and future inputs:

    (x_T of S draws with P paths each, u_{1:H}) ↦ y_{1:H} of N paths

All random numbers are fixed in advance: with equal seeds, the paths are those of `forecast`, and
plans are compared under the same noise. The function can be compiled, vectorised and differentiated
with respect to inputs and states, as needed for model predictive control.

**The mean model** is the mean of forecasts without noise, one deterministic state-space system:

    x_{t+1,s} = m_s(z_t) + A_s(z_t) v_s,   ŷ_t = mean over s of E[y | x_{t+1,s}],   s = 1..S

Its state is one flat vector: the states of all S draws, then the inputs of the last K rows where
inputs act up to K rows later. Inputs and outputs are in the user's units.

CasADi carries out the program that JAX traces of one step, operation by operation. So every kernel,
basis, mean and link goes there whose operations it has. It has no arrays of more than two axes, so
that an array is the vector of its entries in C order, and an operation is of one of three kinds:
one that only moves entries is carried out on their numbers and becomes a gather; one on each entry
is CasADi's own; a sum of products is a product of two gathers, summed.

**Planned experiments** are ranked by the expected reduction of a forecast's variance. For each path
of an experiment, which has the function and the parameters of one draw s, let Y = y_{1:H} be its
noisy outputs, and Z_s = E[y_{1:H'} | s] the quantity of interest, an average over paths of the same
draw with independent noise. The best linear predictor of Z from Y, and the reduction,

    Ẑ = E Z + K (Y − E Y),   K = Cov(Z, Y) Cov(Y)⁻¹,       reduction = 1 − E|Z − Ẑ|² / E|Z − E Z|²

are exact if everything is Gaussian and linear in the unknowns. Otherwise, the posterior given Y has
at most this variance on average, so the reduction is conservative. Covariances are estimated on
some draws and errors on others (folds), to avoid overfitting.
"""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gpssm.core.arguments import check_arguments
from gpssm.core.runtime import in_double_precision
from gpssm.core.text import as_tuple, check_installed
from gpssm.data.delays import arriving
from gpssm.data.series import Series
from gpssm.model.model import GPSSM
from gpssm.posterior.draws import merge_chains, past_inputs
from gpssm.posterior.filtering import forecast_scale
from gpssm.posterior.forecast import check_paths, start_states
from gpssm.posterior.rollout import (
    BOUNDS,
    Box,
    Ensemble,
    assemble,
    members_of,
    plan_paths,
    run_paths,
)

if TYPE_CHECKING:
    import pandas as pd

    from gpssm.posterior.posterior import Posterior

FOLDS = 5  # of the draws, for the score of an experiment
State = Float[Array, " N"]
Step = Callable[[State, Float[Array, " Du"]], tuple[State, Float[Array, " Dy"]]]


class StateEnsemble(NamedTuple):
    """The states from which P paths of each of S draws start.

    Parameters
    ----------
    states
        States in the coordinates of the draws.
    scale
        Factor of the noise variances of each draw.
    past
        The previous inputs in the user's units, as many rows as the longest delay.
    """

    states: Float[Array, "S P Dx"]
    scale: Float[Array, " S"]
    past: Float[Array, "K Du"]


class Rollout(eqx.Module):
    """A forecast as a function: `rollout(states, u)` returns paths (N, H, Dy) in the user's units.

        rollout = posterior.rollout(num_paths=100)
        value = jax.jit(lambda u: jnp.mean((rollout(rollout.start, u) - target) ** 2))
        jax.grad(value)(u)

    All computations use float64: use it inside `with jax.enable_x64(True):`, or after
    `jax.config.update("jax_enable_x64", True)`.

    Parameters
    ----------
    start
        The states when the rollout was created; `states_of(posterior)` returns the states after
        `condition`.
    ensemble, keys, slots, box, noise
        As in `run_paths`.
    output_scale, input_scale
        Mean and standard deviation of each column.
    draws
        Numbers of the draws.
    index
        The training series that the paths follow.
    delay
        Delay of each input in rows.
    """

    start: StateEnsemble
    ensemble: Ensemble
    keys: PRNGKeyArray
    slots: Int[Array, " N"]
    box: Box | None
    output_scale: tuple[Float[Array, " Dy"], Float[Array, " Dy"]]
    input_scale: tuple[Float[Array, " Du"], Float[Array, " Du"]]
    draws: tuple[int, ...] = eqx.field(static=True)
    index: int = eqx.field(static=True)
    delay: tuple[int, ...] = eqx.field(static=True)
    noise: bool = eqx.field(static=True)

    def __call__(self, start: StateEnsemble, u: Float[Array, "H Du"]) -> Float[Array, "N H Dy"]:
        """Return the outputs of the paths from these states with these inputs.

        Parameters
        ----------
        start
            States to start from.
        u
            Inputs in the user's units, one row per step.
        """
        traced = isinstance(u, jax.core.Tracer)  # type: ignore[attr-defined]
        if traced and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            raise TypeError(
                "a rollout computes in float64, but the arguments have 32 bits: work inside "
                '`with jax.enable_x64(True):`, or call jax.config.update("jax_enable_x64", '
                "True) first"
            )
        with jax.enable_x64(True):
            mean, std = self.input_scale
            inputs = jnp.asarray(u, mean.dtype)
            if inputs.ndim != 2 or inputs.shape[1] != len(mean):
                raise ValueError(
                    f"u must have shape (H, {len(mean)}), one row per step; got {inputs.shape}"
                )
            scaled = (arriving(inputs, self.delay, start.past) - mean[None]) / std[None]
            ensemble = self.ensemble.scaled(start.scale)
            emission, *_ = run_paths(
                ensemble, start.states, scaled, self.keys, self.slots, self.box, self.noise
            )
            mean, std = self.output_scale
            return jnp.swapaxes(emission.y, 0, 1) * std[None, None] + mean[None, None]

    def states_of(self, posterior: "Posterior") -> StateEnsemble:
        """Return the start states of a posterior with the same draws.

        Parameters
        ----------
        posterior : Posterior
            The posterior of the rollout, or the same posterior after `condition`.
        """
        return _states(posterior, np.array(self.draws), self.keys, self.index)


@check_arguments
@in_double_precision
def rollout(
    posterior: "Posterior",
    num_paths: int = 100,
    *,
    seed: int = 0,
    noise: bool = True,
    index: int = -1,
    bounds: float | None = BOUNDS,
) -> Rollout:
    """Return the forecast as a pure JAX function of states and inputs, to optimise over.

        rollout = posterior.rollout(50)
        paths = rollout(rollout.start, u)  # (50, H, Dy), the paths of `forecast` with this seed

    The calibration of the posterior is not applied.

    Parameters
    ----------
    posterior
        The posterior.
    num_paths, seed, noise, index, bounds
        As in `forecast`.
    """
    check_paths(num_paths, bounds, 1)
    dataset = posterior.dataset
    scaler = dataset.scaler
    plan = plan_paths(posterior, num_paths, seed, bounds)
    return Rollout(
        start=_states(posterior, plan.draws, plan.keys, index),
        ensemble=eqx.filter_jit(assemble)(*plan.members, dataset.experiment(index).input_dim),
        keys=plan.keys,
        slots=plan.slots,
        box=plan.box,
        output_scale=(jnp.asarray(scaler.output_mean), jnp.asarray(scaler.output_std)),
        input_scale=(jnp.asarray(scaler.input_mean), jnp.asarray(scaler.input_std)),
        draws=tuple(plan.draws.tolist()),
        index=index,
        delay=dataset.delay,
        noise=noise,
    )


@in_double_precision
def _states(
    posterior: "Posterior", draws: Int[np.ndarray, " S"], keys: PRNGKeyArray, index: int
) -> StateEnsemble:
    scale = forecast_scale(posterior.current, draws)
    past = jnp.asarray(past_inputs(posterior, index))
    return StateEnsemble(start_states(posterior, index, draws, keys, scale), scale, past)


class MeanModel(NamedTuple):
    """A deterministic state-space system in the user's units.

    Parameters
    ----------
    step
        A pure JAX function, (state, inputs) → (next state, outputs).
    start
        The initial state.
    series
        A series with the names and the sampling time.
    """

    step: Step
    start: Float[np.ndarray, " N"]
    series: Series


def mean_step(model: GPSSM, weights: Float[Array, "Dx M"]) -> Step:
    """Return (x, u) ↦ (f(x, u), E[y | f(x, u)]) with f = m + A v of one draw, in scaled units."""
    function = model.function(weights)

    def step(x: Float[Array, " Dx"], u: Float[Array, " Du"]) -> tuple[Array, Array]:
        following = function(x[None], u[None])
        return following[0], model.likelihood.moments(following)[0][0]

    return step


@check_arguments
def mean_state(posterior: "Posterior", num_draws: int = 20) -> Float[np.ndarray, " N"]:
    """Return the current state of the mean model of `to_control`, `to_casadi` and `export`.

    Parameters
    ----------
    posterior
        The posterior.
    num_draws
        As in these methods.
    """
    thinned = posterior.thinned(max(num_draws, posterior.num_chains))
    if thinned.current is None:
        states = merge_chains(thinned.draws.states[-1])[:, -1]
    else:
        states = merge_chains(thinned.current.state.mean)
    past = past_inputs(posterior)
    # Unknown inputs before the first row are replaced by their mean.
    past = np.where(np.isnan(past), np.array(posterior.dataset.scaler.input_mean), past)
    return np.concatenate([states.ravel(), past.ravel()])


@in_double_precision
def mean_model(posterior: "Posterior", num_draws: int) -> MeanModel:
    """Return the mean model of at most `num_draws` draws, but at least one per chain."""
    start = mean_state(posterior, num_draws)
    thinned = posterior.thinned(max(num_draws, posterior.num_chains))
    series, scaler = posterior.dataset.experiments[-1], posterior.dataset.scaler
    delay = posterior.dataset.delay or (0,) * series.input_dim
    shape = (thinned.num_chains * thinned.num_draws, 1, posterior.model.state_dim)
    size = shape[0] * shape[2]
    members = members_of(thinned, np.arange(shape[0]))
    ensemble = eqx.filter_jit(assemble)(*members, series.input_dim)
    emit = eqx.filter_vmap(lambda likelihood, x: likelihood.moments(x)[0])

    def step(state: State, u: Float[Array, " Du"]) -> tuple[State, Float[Array, " Dy"]]:
        before = state[size:].reshape(max(delay, default=0), len(delay))
        window = jnp.concatenate([before, u[None]])
        acting = [window[len(window) - 1 - lag, column] for column, lag in enumerate(delay)]
        scaled = (jnp.array(acting) - jnp.array(scaler.input_mean)) / jnp.array(scaler.input_std)
        inputs = jnp.broadcast_to(scaled, (*shape[:2], len(delay)))
        following = ensemble.moments(state[:size].reshape(shape), inputs).mean
        outputs = jnp.mean(emit(ensemble.likelihood, following)[:, 0], axis=0)
        outputs = outputs * jnp.array(scaler.output_std) + jnp.array(scaler.output_mean)
        return jnp.concatenate([following.ravel(), window[1:].ravel()]), outputs

    return MeanModel(step, start, series)


@check_arguments
@in_double_precision
def to_control(posterior: "Posterior", num_draws: int = 20) -> Any:
    """Return the mean model as an `nlsys` of python-control.

        plant = posterior.to_control()
        state = gpssm.analysis.mean_state(posterior)
        control.input_output_response(plant, times, u.T, state)

    Parameters
    ----------
    posterior
        The posterior.
    num_draws
        Maximum number of draws, but at least one per chain. The output is the mean over these
        draws; the state contains the states of all of them.
    """
    check_installed("to_control", "control")
    import control

    model = mean_model(posterior, num_draws)
    step = in_double_precision(jax.jit(model.step))
    return control.nlsys(
        lambda t, x, u, params: np.asarray(step(x, np.atleast_1d(u))[0]),
        lambda t, x, u, params: np.asarray(step(x, np.atleast_1d(u))[1]),
        inputs=list(model.series.inputs),
        outputs=list(model.series.outputs),
        states=len(model.start),
        dt=model.series.dt or True,
        name="gpssm",
    )


@check_arguments
@in_double_precision
def to_casadi(posterior: "Posterior", num_draws: int = 20) -> Any:
    """Return one step of the mean model, (x, u) → (x_next, y), as a `casadi.Function`.

        step = posterior.to_casadi()
        x, y = step(gpssm.analysis.mean_state(posterior), u)
        step.save("plant.casadi"), step.generate("plant.c")

    It has derivatives of any order and does not need JAX. Inputs and outputs are in the user's
    units.

    Parameters
    ----------
    posterior
        The posterior.
    num_draws
        As in `to_control`.
    """
    check_installed("to_casadi", "casadi")
    import casadi

    model = mean_model(posterior, num_draws)
    inputs = np.zeros(len(model.series.inputs))
    program = jax.make_jaxpr(model.step)(jnp.asarray(model.start), jnp.asarray(inputs))
    x = casadi.MX.sym("x", len(model.start))
    u = casadi.MX.sym("u", len(inputs))
    results = _Interpreter(casadi).run(program.jaxpr, program.consts, (x, u))
    return casadi.Function("step", [x, u], results, ["x", "u"], ["x_next", "y"])


COPIES = ("copy", "copy_p", "stop_gradient", "convert_element_type")
MOVES = (
    *("broadcast_in_dim", "concatenate", "expand_dims", "reshape", "rev"),
    *("slice", "squeeze", "transpose"),
)
ALIKE = (  # operations with the same name in CasADi
    *("exp", "log1p", "expm1", "tanh", "sin", "cos", "tan", "sqrt", "sign", "floor", "ceil"),
    *("log", "sinh", "cosh", "asin", "acos", "atan", "atan2"),
)
OPERATORS = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "pow", "neg")},
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "add_any": operator.add,
    "div": operator.truediv,
    "square": lambda x: x**2,
}


class _Interpreter:
    """Carries out a traced program on CasADi vectors."""

    def __init__(self, casadi: Any) -> None:
        self.casadi = casadi
        self.functions: dict[str, Callable[..., Any]] = {
            **OPERATORS,
            **{name: getattr(casadi, name) for name in ALIKE},
            **{name: getattr(casadi, f"logic_{name}") for name in ("and", "or", "not")},
            **{"abs": casadi.fabs, "max": casadi.fmax, "min": casadi.fmin, "rem": casadi.fmod},
            "rsqrt": lambda x: 1 / casadi.sqrt(x),
            "logistic": lambda x: 1 / (1 + casadi.exp(-x)),
            "clamp": lambda low, x, high: casadi.fmin(casadi.fmax(x, low), high),
            "select_n": lambda which, off, on: casadi.if_else(which, on, off),
        }

    def run(self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        """Return the results of a program.

        Nested programs are carried out inline, and operations without symbols numerically.
        """
        values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, jax.extend.core.Literal) else values[atom]

        for eqn in jaxpr.eqns:
            operands = [read(atom) for atom in eqn.invars]
            names = ("jaxpr", "call_jaxpr", "fun_jaxpr")
            inner = next((eqn.params[name] for name in names if name in eqn.params), None)
            if not any(isinstance(operand, self.casadi.MX) for operand in operands):
                results = eqn.primitive.bind(*operands, **eqn.params)
                results = results if eqn.primitive.multiple_results else [results]
            elif inner is None or eqn.primitive.name in ("scan", "while", "cond"):
                results = [self.operation(eqn, operands)]
            else:
                program = getattr(inner, "jaxpr", inner)
                results = self.run(program, getattr(inner, "consts", ()), operands)
            values |= dict(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def operation(self, eqn: Any, operands: list[Any]) -> Any:
        """Return the result of an operation; operands are vectors or numbers."""
        name, params = eqn.primitive.name, eqn.params
        operands = [self.vector(operand) for operand in operands]
        shapes = [atom.aval.shape for atom in eqn.invars]
        numbers = [np.arange(np.prod(shape, dtype=int)).reshape(shape) for shape in shapes]
        if name in COPIES:
            return operands[0]
        if name in MOVES:
            starts = np.cumsum([0, *(part.size for part in numbers[:-1])])
            places = [part + start for part, start in zip(numbers, starts, strict=True)]
            moved = eqn.primitive.bind(*places, **params)
            return self.gather(self.casadi.vertcat(*operands), moved)
        if name == "dot_general":
            left, right = _paired(params["dimension_numbers"], *numbers)
            products = self.gather(operands[0], left) * self.gather(operands[1], right)
            return self.casadi.sum1(self.columns(products, left.shape[-1])).T
        if name in ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"):
            axes = params["axes"]
            groups = np.moveaxis(numbers[0], axes, range(-len(axes), 0))
            size = int(np.prod([shapes[0][axis] for axis in axes]))
            columns = self.columns(self.gather(operands[0], groups), size)
            if name == "reduce_sum":
                return self.casadi.sum1(columns).T
            fold = self.functions.get(name.removeprefix("reduce_"), operator.mul)
            return functools.reduce(fold, self.casadi.vertsplit(columns)).T
        shape = eqn.outvars[0].aval.shape
        whole = [
            operand
            if part.size in (1, np.prod(shape))
            else self.gather(operand, np.broadcast_to(part, shape))
            for operand, part in zip(operands, numbers, strict=True)
        ]
        if name == "integer_pow":
            return whole[0] ** params["y"]
        if name not in self.functions or (name == "select_n" and len(whole) != 3):
            raise TypeError(
                f"the model's step uses {name}, which has no counterpart in CasADi and comes from "
                "a user-defined mean, link or kernel. Use posterior.rollout() instead, which needs "
                "JAX."
            )
        return self.functions[name](*whole)

    def vector(self, operand: Any) -> Any:
        """Return an operand as a CasADi column."""
        if isinstance(operand, self.casadi.MX):
            return operand
        return self.casadi.DM(np.asarray(operand, float).ravel())

    def gather(self, vector: Any, entries: Int[np.ndarray, "..."]) -> Any:
        """Return the entries with these indices as a column."""
        return vector[np.asarray(entries).ravel().tolist(), 0]

    def columns(self, vector: Any, size: int) -> Any:
        """Return groups of `size` entries as columns."""
        return self.casadi.reshape(vector, size, vector.numel() // size)


def _paired(dimensions: Any, left: np.ndarray, right: np.ndarray) -> list[np.ndarray]:
    """Return the indices of the factors of each term of a product: (batch, left, right, summed)."""
    (left_sum, right_sum), (left_batch, right_batch) = dimensions
    parts = []
    for numbers, summed, batch in ((left, left_sum, left_batch), (right, right_sum, right_batch)):
        free = [axis for axis in range(numbers.ndim) if axis not in (*summed, *batch)]
        sizes = [
            int(np.prod([numbers.shape[axis] for axis in axes])) for axes in (batch, free, summed)
        ]
        parts.append(numbers.transpose(*batch, *free, *summed).reshape(sizes))
    return list(np.broadcast_arrays(parts[0][:, :, None], parts[1][:, None]))


@check_arguments
@in_double_precision
def informative(
    posterior: "Posterior",
    experiments: Mapping[str, Any] | Sequence[Any],
    target: Any = None,
    *,
    num_paths: int = 1000,
    max_draws: int = 200,
    seed: int = 0,
) -> "pd.DataFrame":
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
    import pandas

    check_paths(num_paths, None, 1000)
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
        rest, before = _squared_errors(Z, (_outputs(shown, plan) / scale).reshape(paths, -1), owner)
        by_output = dict(zip(dataset.outputs, 1 - rest / before, strict=True))
        rows[name] = {"reduction": 1 - rest.sum() / before.sum()} | by_output
    table = pandas.DataFrame.from_dict(rows, orient="index").rename_axis("experiment")
    return table.sort_values("reduction", ascending=False, kind="stable")


@eqx.filter_jit
def _run(rollout: Rollout, u: Float[np.ndarray, "H Du"]) -> Any:
    return rollout(rollout.start, jnp.asarray(u))


def _outputs(rollout: Rollout, u: Float[np.ndarray, "H Du"]) -> Float[np.ndarray, "N H Dy"]:
    return np.asarray(_run(rollout, u))


def _squared_errors(
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
