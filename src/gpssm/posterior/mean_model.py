"""The mean of a model's forecasts without noise, as one deterministic state-space system.

    x_{t+1,s} = m_s(z_t) + A_s(z_t) v_s,   ŷ_t = mean over s of E[y | x_{t+1,s}],   s = 1..S

Its state is one flat vector: the states of all S draws, followed by the inputs of the last K rows
if inputs are delayed by up to K rows. Inputs and outputs are in the user's units.

For tools without JAX, the traced program of one step is translated operation by operation, into
CasADi expressions (`casadi.py`) or lines of NumPy (`export.py`). This supports every kernel, basis,
mean and link whose operations are in `NUMPY`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.core.runtime import in_double_precision
from gpssm.core.text import check_installed, check_whole
from gpssm.data.series import Series
from gpssm.model.model import GPSSM
from gpssm.posterior.draws import merge_chains, past_inputs
from gpssm.posterior.rollout import assemble, members_of

if TYPE_CHECKING:
    from gpssm.posterior.posterior import Posterior

State = Float[Array, " N"]
Step = Callable[[State, Float[Array, " Du"]], tuple[State, Float[Array, " Dy"]]]


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

    def carry_out(self, x: Any, u: Any, operation: "Operation") -> list[Any]:
        """Return the next state and the outputs for symbols x and u; see `interpret`."""
        inputs = jnp.zeros(len(self.series.inputs))
        closed = jax.make_jaxpr(self.step)(jnp.asarray(self.start), inputs)
        return interpret(closed.jaxpr, closed.consts, (x, u), operation)


def mean_step(model: GPSSM, weights: Float[Array, "Dx M"]) -> Step:
    """Return (x, u) ↦ (f(x, u), E[y | f(x, u)]) with f = m + A v of one draw, in scaled units."""
    function = model.function(weights)

    def step(x: Float[Array, " Dx"], u: Float[Array, " Du"]) -> tuple[Array, Array]:
        following = function(x[None], u[None])
        return following[0], model.likelihood.moments(following)[0][0]

    return step


def mean_state(posterior: "Posterior", num_draws: int = 20) -> Float[np.ndarray, " N"]:
    """Return the current state of the mean model of `to_control`, `to_casadi` and `export`.

    Parameters
    ----------
    posterior
        The posterior.
    num_draws
        As in these methods.
    """
    check_whole("num_draws", num_draws, 1)
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
    check_installed("to_control", "control", "control")
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


Operation = Callable[[Any, list[Any]], list[Any]]


def interpret(
    jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], operation: Operation
) -> list[Any]:
    """Return the results of a traced program for symbols in place of numbers.

    Parameters
    ----------
    jaxpr, consts
        The program and its constants; nested programs are evaluated inline.
    arguments
        Symbols, or numbers.
    operation
        Function that returns the results of an operation, an equation of the program, on operands
        that include a symbol. Operations without symbols are evaluated numerically.
    """
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, jax.extend.core.Literal) else values[atom]

    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        names = ("jaxpr", "call_jaxpr", "fun_jaxpr")
        inner = next((eqn.params[name] for name in names if name in eqn.params), None)
        if all(isinstance(operand, NUMBERS) for operand in operands):
            results = eqn.primitive.bind(*operands, **eqn.params)
            results = results if eqn.primitive.multiple_results else [results]
        elif inner is None or eqn.primitive.name in ("scan", "while", "cond"):
            results = operation(eqn, operands)
        else:
            program = getattr(inner, "jaxpr", inner)
            results = interpret(program, getattr(inner, "consts", ()), operands, operation)
        values |= dict(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


NUMBERS = (np.ndarray, np.generic, jax.Array, bool, int, float)
UNARY = (  # functions with the same name in NumPy
    *("exp", "log1p", "expm1", "tanh", "sin", "cos", "sqrt", "sign"),
    *("floor", "log", "square", "sinh", "cosh", "tan", "ceil", "abs"),
)
# NumPy expressions of the operations of a traced program, in terms of their operands.
NUMPY = {
    **{name: f"np.{name}({{0}})" for name in UNARY},
    "add": "{0} + {1}",
    "add_any": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "pow": "{0} ** {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "max": "np.maximum({0}, {1})",
    "min": "np.minimum({0}, {1})",
    "rem": "np.fmod({0}, {1})",
    "atan2": "np.arctan2({0}, {1})",
    "and": "np.logical_and({0}, {1})",
    "or": "np.logical_or({0}, {1})",
    "asin": "np.arcsin({0})",
    "acos": "np.arccos({0})",
    "atan": "np.arctan({0})",
    "neg": "-{0}",
    "rsqrt": "1 / np.sqrt({0})",
    "logistic": "1 / (1 + np.exp(-{0}))",
    "is_finite": "np.isfinite({0})",
    "not": "np.logical_not({0})",
    "copy": "{0}",
    "stop_gradient": "{0}",
    "copy_p": "{0}",
    "clamp": "np.clip({1}, {0}, {2})",
    "integer_pow": "{0} ** {y}",
    "reduce_sum": "np.sum({0}, axis={axes})",
    "reduce_max": "np.max({0}, axis={axes})",
    "reduce_min": "np.min({0}, axis={axes})",
    "reduce_prod": "np.prod({0}, axis={axes})",
    "reshape": "np.reshape({0}, {new_sizes})",
    "squeeze": "np.squeeze({0}, axis={dimensions})",
    "expand_dims": "np.expand_dims({0}, {dimensions})",
    "transpose": "np.transpose({0}, {permutation})",
    "convert_element_type": "np.asarray({0}, '{new_dtype}')",
    "cumsum": "np.cumsum({0}, axis={axis})",
    "concatenate": "np.concatenate([{operands}], axis={dimension})",
    "select_n": "np.where({0}, {2}, {1})",
}


def numpy_expression(eqn: Any, operands: list[str]) -> str:
    """Return an operation of a traced program as an expression in NumPy."""
    name = eqn.primitive.name
    if name not in NUMPY or (name == "select_n" and len(operands) != 3):
        raise TypeError(
            f"the model's step uses {name}, which has no counterpart in NumPy or CasADi and comes "
            "from a user-defined mean, link or kernel. Use posterior.rollout() instead, which "
            "needs JAX."
        )
    return NUMPY[name].format(*operands, operands=", ".join(operands), **eqn.params)
