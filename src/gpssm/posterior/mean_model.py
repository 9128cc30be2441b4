"""The mean of a model's forecasts without noise, as one deterministic state-space system.

    x_{t+1,s} = m_s(z_t) + A_s(z_t) v_s,   ŷ_t = mean over s of E[y | x_{t+1,s}],   s = 1..S

Its state is one flat vector: the states of all S draws, then the inputs of the last K rows where
inputs act up to K rows later. Inputs and outputs are in the user's units.

For tools without JAX, the program that JAX traces of one step is carried out operation by
operation: by symbols of CasADi, or by lines of NumPy. So every kernel, basis, mean and link goes
there whose operations are in `NUMPY`. CasADi has no arrays of more than two axes, so that an array
is the vector of its entries in C order, and an operation is of one of three kinds: one that only
moves entries is carried out on their numbers and becomes a gather; one on each entry is CasADi's
own; a sum of products is a product of two gathers, summed.
"""

import base64
import functools
import io
import operator
import re
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gpssm.core.files import check_target, write_atomically
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


@in_double_precision
def export(
    posterior: "Posterior", path: str | Path, num_draws: int = 20, *, overwrite: bool = False
) -> None:
    """Write the mean model as a Python file that needs only NumPy, with `run(u)` and `step(x, u)`.

        posterior.export("plant.py")

    Its outputs are the mean over draws, each simulated without noise from its current state.

    Parameters
    ----------
    posterior
        The posterior.
    path
        The file.
    num_draws
        As in `to_control`.
    overwrite
        Whether to replace an existing file.
    """
    target = check_target(path, overwrite)
    model = mean_model(posterior, num_draws)
    writer = _Writer()
    results = [writer.word(result) for result in model.carry_out("x", "u", writer.write)]
    lines, arrays = writer.needed_for(results)
    stored: dict[str, Any] = arrays | {"start": model.start}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **stored)
    text = base64.b64encode(buffer.getvalue()).decode()
    packed = "\n".join(f'    "{text[place : place + 110]}"' for place in range(0, len(text), 110))
    body = "\n".join(f"    {line}" for line in lines)
    names = {"outputs": model.series.outputs, "inputs": model.series.inputs}
    page = TEMPLATE.format(**names, dt=model.series.dt, body=body, packed=packed)
    write_atomically(target, lambda file: file.write(page.encode()))


NAMES = re.compile(r"\b[va]\d+\b")  # names of values and arrays
TEMPLATE = '''"""The mean of a model's forecasts without noise. Written by gpssm; needs only NumPy.

    y = run(u)           outputs (H, Dy) after the training data, for inputs u (H, Du)
    x, y = step(x, u)    one row: state x (N,) and inputs u (Du,) to next state and outputs y (Dy,)

Inputs and outputs are in the units of the data. START is the state at the end of the data: those of
all draws, and the last inputs if they are delayed.
"""

import base64
import io

import numpy as np

OUTPUTS, INPUTS, DT = {outputs!r}, {inputs!r}, {dt!r}


def run(u, x=None):
    """Return the mean outputs (H, Dy) for inputs u (H, Du), from the state x."""
    x, outputs = START if x is None else x, []
    for row in np.asarray(u, float).reshape(len(u), len(INPUTS)):
        x, y = step(x, row)
        outputs.append(y)
    return np.array(outputs)


def step(x, u):
    """Return the state one row later and the mean output of that row."""
    x, u = np.asarray(x, float), np.asarray(u, float)
{body}


A = dict(np.load(io.BytesIO(base64.b64decode(
{packed}
))))
START = A["start"]
'''


class _Writer:
    """A writer of a program, line by line."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []  # the name of a value, and its expression
        self.arrays: dict[str, np.ndarray] = {}
        self.names: dict[Any, str] = {}  # of arrays, by their content

    def write(self, eqn: Any, operands: list[Any]) -> list[str]:
        """Write an operation, and return the name of its result."""
        words = [self.word(operand) for operand in operands]
        match eqn.primitive.name:
            case "broadcast_in_dim":
                shape = eqn.params["shape"]
                sizes = np.ones(len(shape), int)
                sizes[list(eqn.params["broadcast_dimensions"])] = eqn.invars[0].aval.shape
                text = f"np.broadcast_to(np.reshape({words[0]}, {sizes.tolist()}), {shape})"
            case "slice":
                starts, stops = eqn.params["start_indices"], eqn.params["limit_indices"]
                steps = eqn.params["strides"] or (1,) * len(starts)
                limits = (f"{a}:{b}:{c}" for a, b, c in zip(starts, stops, steps, strict=True))
                text = f"{words[0]}[{', '.join(limits)}]"
            case "dot_general":
                text = _product(eqn, words)
            case _:
                text = numpy_expression(eqn, words)
        name = f"v{len(self.lines)}"
        self.lines.append((name, text))
        return [name]

    def word(self, operand: Any) -> str:
        """Return the name of a value, a number, or the name of an array in `A`."""
        if isinstance(operand, str):
            return operand
        array = np.asarray(operand)
        if array.ndim == 0:
            return repr(array.item())
        key = (array.shape, array.dtype, array.tobytes())
        name = self.names.setdefault(key, f"a{len(self.names)}")
        self.arrays[name] = array
        return f'A["{name}"]'

    def needed_for(self, results: list[str]) -> tuple[list[str], dict[str, np.ndarray]]:
        """Return the lines and arrays needed for the results, without those of variances, for
        example.
        """
        lines = [f"return {', '.join(results)}"]
        needed = set(NAMES.findall(lines[0]))
        for name, text in reversed(self.lines):
            if name in needed:
                lines.append(f"{name} = {text}")
                needed |= set(NAMES.findall(text))
        arrays = {name: array for name, array in self.arrays.items() if name in needed}
        return lines[::-1], arrays


def _product(eqn: Any, words: list[str]) -> str:
    """Return a product of arrays; its axes are those of the batch, of the left and of the right."""
    (left_sum, right_sum), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    rank = eqn.invars[0].aval.ndim
    left = list(range(rank))
    right = list(range(rank, rank + eqn.invars[1].aval.ndim))
    for place, other in zip((*left_sum, *left_batch), (*right_sum, *right_batch), strict=True):
        right[other] = place
    shared = (*left_sum, *left_batch)
    rest = [*left_batch, *(axis for axis in left + right if axis not in shared)]
    return f"np.einsum({words[0]}, {left}, {words[1]}, {right}, {rest}, optimize=True)"


COPIES = ("copy", "copy_p", "stop_gradient", "convert_element_type")
MOVES = (
    *("broadcast_in_dim", "concatenate", "expand_dims", "reshape", "rev"),
    *("slice", "squeeze", "transpose"),
)


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
    x = casadi.MX.sym("x", len(model.start))
    u = casadi.MX.sym("u", len(model.series.inputs))
    results = model.carry_out(x, u, _Operations(casadi).operation)
    return casadi.Function("step", [x, u], results, ["x", "u"], ["x_next", "y"])


class _Operations:
    """The operations of a program on CasADi vectors."""

    def __init__(self, casadi: types.ModuleType) -> None:
        self.casadi = casadi
        names = {"maximum": "fmax", "minimum": "fmin", "abs": "fabs", "where": "if_else"}
        names |= {f"logical_{name}": f"logic_{name}" for name in ("and", "or", "not")}
        functions = vars(casadi) | {name: getattr(casadi, other) for name, other in names.items()}
        functions["square"] = lambda x: x**2
        functions["clip"] = lambda x, low, high: casadi.fmin(casadi.fmax(x, low), high)
        self.numpy = types.SimpleNamespace(**functions)  # CasADi's names of NumPy functions

    def operation(self, eqn: Any, operands: list[Any]) -> list[Any]:
        """Return the results of an operation; operands are vectors or numbers."""
        name, params = eqn.primitive.name, eqn.params
        operands = [self.vector(operand) for operand in operands]
        shapes = [atom.aval.shape for atom in eqn.invars]
        numbers = [np.arange(np.prod(shape, dtype=int)).reshape(shape) for shape in shapes]
        if name in COPIES:
            return operands
        if name in MOVES:
            starts = np.cumsum([0, *(part.size for part in numbers[:-1])])
            places = [part + start for part, start in zip(numbers, starts, strict=True)]
            moved = eqn.primitive.bind(*places, **params)
            return [self.gather(self.casadi.vertcat(*operands), moved)]
        if name == "dot_general":
            left, right = _paired(params["dimension_numbers"], *numbers)
            products = self.gather(operands[0], left) * self.gather(operands[1], right)
            return [self.casadi.sum1(self.columns(products, left.shape[-1])).T]
        if name in ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"):
            axes = params["axes"]
            groups = np.moveaxis(numbers[0], axes, range(-len(axes), 0))
            size = int(np.prod([shapes[0][axis] for axis in axes]))
            columns = self.columns(self.gather(operands[0], groups), size)
            if name == "reduce_sum":
                return [self.casadi.sum1(columns).T]
            folds = {"reduce_max": self.casadi.fmax, "reduce_min": self.casadi.fmin}
            fold = folds.get(name, operator.mul)
            return [functools.reduce(fold, self.casadi.vertsplit(columns)).T]
        shape = eqn.outvars[0].aval.shape
        whole = [
            operand
            if part.size in (1, np.prod(shape))
            else self.gather(operand, np.broadcast_to(part, shape))
            for operand, part in zip(operands, numbers, strict=True)
        ]
        letters = dict(zip("abc", whole, strict=False))
        return [eval(numpy_expression(eqn, list(letters)), {"np": self.numpy, **letters})]

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
