"""The mean model as a file that needs NumPy alone.

The program that JAX traces of one step is written again operation by operation, in NumPy, with its
arrays beside it: so every kernel, basis, mean and link can be exported whose operations are in
`WORDS`.
"""

import base64
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from gpssm.core.files import check_target, write_atomically
from gpssm.core.runtime import in_double_precision
from gpssm.posterior.mean_model import mean_model

if TYPE_CHECKING:
    from gpssm.posterior.posterior import Posterior


@in_double_precision
def export(
    posterior: "Posterior", path: str | Path, num_draws: int = 20, *, overwrite: bool = False
) -> None:
    """Write the mean model as a Python file that needs NumPy alone: `run(u)`, `step(x, u)`.

        posterior.export("plant.py")

    Its outputs are the mean over draws, each run without noise from where the state is now.

    Parameters
    ----------
    posterior
        The posterior.
    path
        The file.
    num_draws
        As for `to_control`.
    overwrite
        Whether to replace a file that is there.
    """
    target = check_target(path, overwrite)
    model = mean_model(posterior, num_draws)
    lines, arrays = to_numpy(
        model.step, jnp.asarray(model.start), jnp.zeros(len(model.series.inputs))
    )
    stored: dict[str, Any] = arrays | {"start": model.start}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **stored)
    text = base64.b64encode(buffer.getvalue()).decode()
    packed = "\n".join(f'    "{text[place : place + 110]}"' for place in range(0, len(text), 110))
    body = "\n".join(f"    {line}" for line in lines)
    names = {"outputs": model.series.outputs, "inputs": model.series.inputs}
    page = TEMPLATE.format(**names, dt=model.series.dt, body=body, packed=packed)
    write_atomically(target, lambda file: file.write(page.encode()))


NAMES = re.compile(r"\b[va]\d+\b")  # of values and arrays
TEMPLATE = '''"""The mean of a model's forecasts without noise. Written by gpssm; needs NumPy alone.

    y = run(u)           outputs (H, Dy) after the data the model has seen, under inputs u (H, Du)
    x, y = step(x, u)    one row: a state x (N,), inputs u (Du,); the next state, outputs y (Dy,)

Inputs and outputs are in the units of the data. START is the state at the end of them: that of each
draw, and the last inputs where they act later.
"""

import base64
import io

import numpy as np

OUTPUTS, INPUTS, DT = {outputs!r}, {inputs!r}, {dt!r}


def run(u, x=None):
    """Return the mean outputs (H, Dy) under inputs u (H, Du), from the state x."""
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


def to_numpy(
    function: Callable[..., Any], *arguments: Array
) -> tuple[list[str], dict[str, np.ndarray]]:
    """Lines of NumPy code that compute a traced function of x and u, and their arrays `A`."""
    closed = jax.make_jaxpr(function)(*arguments)
    writer = _Writer()
    names = dict(zip(closed.jaxpr.invars, ("x", "u"), strict=True))
    results = writer.write(closed.jaxpr, closed.consts, names)
    # What no result needs, such as variances, is left out.
    needed = set(results)
    lines = [f"return {', '.join(results)}"]
    for name, text in reversed(writer.lines):
        if name in needed:
            lines.append(f"{name} = {text}")
            needed |= set(NAMES.findall(text))
    arrays = {name: array for name, array in writer.arrays.items() if name in needed}
    return lines[::-1], arrays


UNARY = (  # that NumPy calls by the same name
    *("exp", "log1p", "expm1", "tanh", "sin", "cos", "sqrt", "sign"),
    *("floor", "log", "square", "sinh", "cosh", "tan", "ceil", "abs"),
)
# How each operation of a traced program is written in NumPy, from its operands.
WORDS = {
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
}


def inner_program(eqn: Any) -> tuple[Any, Sequence[Any]] | None:
    """Return the program that an operation calls, if it calls one, and its constants."""
    names = ("jaxpr", "call_jaxpr", "fun_jaxpr")
    inner = next((eqn.params[name] for name in names if name in eqn.params), None)
    if inner is None or eqn.primitive.name in ("scan", "while", "cond"):
        return None
    return (inner.jaxpr, inner.consts) if hasattr(inner, "consts") else (inner, ())


class _Writer:
    """Writes a program line by line, calls of other programs in place."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []  # the name of a value, and how it is computed
        self.arrays: dict[str, np.ndarray] = {}

    def write(self, jaxpr: Any, consts: Sequence[Any], names: Mapping[Any, str]) -> list[str]:
        """The names of the program's results, after writing it."""
        values = dict(names)
        values |= {
            var: self.constant(value) for var, value in zip(jaxpr.constvars, consts, strict=True)
        }

        def read(atom: Any) -> str:
            if isinstance(atom, jax.extend.core.Literal):
                return self.constant(atom.val)
            return values[atom]

        for eqn in jaxpr.eqns:
            operands = [read(atom) for atom in eqn.invars]
            inner = inner_program(eqn)
            if inner is not None:
                program, constants = inner
                arguments = dict(zip(program.invars, operands, strict=True))
                results = self.write(program, constants, arguments)
                values |= dict(zip(eqn.outvars, results, strict=True))
                continue
            name = f"v{len(self.lines)}"
            self.lines.append((name, self.operation(eqn, operands)))
            values[eqn.outvars[0]] = name
        return [read(atom) for atom in jaxpr.outvars]

    def constant(self, value: Any) -> str:
        """A number as it is, or an array by name."""
        array = np.asarray(value)
        if array.ndim == 0:
            return repr(array.item())
        for name, other in self.arrays.items():
            alike = (other.shape, other.dtype) == (array.shape, array.dtype)
            if alike and np.array_equal(other, array, equal_nan=True):
                return f'A["{name}"]'
        name = f"a{len(self.arrays)}"
        self.arrays[name] = array
        return f'A["{name}"]'

    def operation(self, eqn: Any, operands: list[str]) -> str:
        """One line of the program in NumPy."""
        name, params = eqn.primitive.name, eqn.params
        if name in WORDS:
            return WORDS[name].format(*operands, **params)
        if name == "broadcast_in_dim":
            shape = params["shape"]
            sizes = [1] * len(shape)
            pairs = zip(params["broadcast_dimensions"], eqn.invars[0].aval.shape, strict=True)
            for place, size in pairs:
                sizes[place] = size
            return f"np.broadcast_to(np.reshape({operands[0]}, {tuple(sizes)}), {shape})"
        if name == "concatenate":
            return f"np.concatenate([{', '.join(operands)}], axis={params['dimension']})"
        if name == "select_n" and len(operands) == 3:
            return f"np.where({operands[0]}, {operands[2]}, {operands[1]})"
        if name == "slice":
            strides = params["strides"] or (1,) * len(params["start_indices"])
            limits = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
            return f"{operands[0]}[{', '.join(':'.join(map(str, limit)) for limit in limits)}]"
        if name == "iota":
            sizes = [
                -1 if place == params["dimension"] else 1 for place in range(len(params["shape"]))
            ]
            count = params["shape"][params["dimension"]]
            return f"np.broadcast_to(np.arange({count}).reshape({sizes}), {params['shape']})"
        if name == "dot_general":
            return self.product(eqn, operands)
        raise TypeError(
            f"the model's step uses {name}, which an export has no NumPy for: a mean, link or "
            "kernel of your own does that. Take `posterior.rollout()`, which needs JAX, instead"
        )

    def product(self, eqn: Any, operands: list[str]) -> str:
        """A product of arrays: batch axes first, then the left's, then the right's."""
        (left_sum, right_sum), (left_batch, right_batch) = eqn.params["dimension_numbers"]
        letters = iter("abcdefghijklmnopqrstuvwxyz")
        left = [next(letters) for _ in eqn.invars[0].aval.shape]
        right = [next(letters) for _ in eqn.invars[1].aval.shape]
        pairs = zip((*left_sum, *left_batch), (*right_sum, *right_batch), strict=True)
        for place, other in pairs:
            right[other] = left[place]
        batch = [left[place] for place in left_batch]
        shared = {left[place] for place in (*left_sum, *left_batch)}
        rest = [letter for letter in left + right if letter not in shared]
        pattern = f"{''.join(left)},{''.join(right)}->{''.join(batch + rest)}"
        return f'np.einsum("{pattern}", {operands[0]}, {operands[1]}, optimize=True)'
