"""Export the mean model for use without JAX: as a Python file that needs only NumPy, or to CasADi.

The program that JAX traces of one step is carried out with lines of NumPy, or with CasADi's symbols
in place of numbers. CasADi has no arrays of more than two axes, so that an array is the vector of
its entries in C order, and an operation is of one of three kinds: one that only moves entries is
carried out on their numbers and becomes a gather; one on each entry is CasADi's own; a sum of
products is a product of two gathers, summed.
"""

import base64
import functools
import io
import operator
import re
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from gpssm.core.files import check_target, write_atomically
from gpssm.core.runtime import in_double_precision
from gpssm.core.text import check_installed
from gpssm.posterior.mean_model import mean_model, numpy_expression

if TYPE_CHECKING:
    from gpssm.posterior.posterior import Posterior


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


class _Writer:
    """Writes a program line by line."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []  # the name of a value, and how it is computed
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
        """The name of a value, a number as it is, or an array by its name in `A`."""
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
        """Lines that return the results, and the arrays in them; others, as variances, go."""
        lines = [f"return {', '.join(results)}"]
        needed = set(NAMES.findall(lines[0]))
        for name, text in reversed(self.lines):
            if name in needed:
                lines.append(f"{name} = {text}")
                needed |= set(NAMES.findall(text))
        arrays = {name: array for name, array in self.arrays.items() if name in needed}
        return lines[::-1], arrays


def _product(eqn: Any, words: list[str]) -> str:
    """A product of arrays, whose axes are those of the batch, then the left's, then the right's."""
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
    check_installed("to_casadi", "casadi", "casadi")
    import casadi

    model = mean_model(posterior, num_draws)
    x = casadi.MX.sym("x", len(model.start))
    u = casadi.MX.sym("u", len(model.series.inputs))
    results = model.carry_out(x, u, _Operations(casadi).operation)
    return casadi.Function("step", [x, u], results, ["x", "u"], ["x_next", "y"])


class _Operations:
    """The operations of a program on vectors of CasADi."""

    def __init__(self, casadi: types.ModuleType) -> None:
        self.casadi = casadi
        names = {"maximum": "fmax", "minimum": "fmin", "abs": "fabs", "where": "if_else"}
        names |= {f"logical_{name}": f"logic_{name}" for name in ("and", "or", "not")}
        functions = vars(casadi) | {name: getattr(casadi, other) for name, other in names.items()}
        functions["square"] = lambda x: x**2
        functions["clip"] = lambda x, low, high: casadi.fmin(casadi.fmax(x, low), high)
        self.numpy = types.SimpleNamespace(**functions)  # what CasADi calls the functions of NumPy

    def operation(self, eqn: Any, operands: list[Any]) -> list[Any]:
        """The results of an operation; operands are vectors or numbers."""
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
        """An operand as a column of CasADi."""
        if isinstance(operand, self.casadi.MX):
            return operand
        return self.casadi.DM(np.asarray(operand, float).ravel())

    def gather(self, vector: Any, entries: Int[np.ndarray, "..."]) -> Any:
        """The entries with these numbers as a column."""
        return vector[np.asarray(entries).ravel().tolist(), 0]

    def columns(self, vector: Any, size: int) -> Any:
        """Groups of so many entries, side by side."""
        return self.casadi.reshape(vector, size, vector.numel() // size)


def _paired(dimensions: Any, left: np.ndarray, right: np.ndarray) -> list[np.ndarray]:
    """Of each term of a product of arrays, its factors' entries: (batch, left, right, summed)."""
    (left_sum, right_sum), (left_batch, right_batch) = dimensions
    parts = []
    for numbers, summed, batch in ((left, left_sum, left_batch), (right, right_sum, right_batch)):
        free = [axis for axis in range(numbers.ndim) if axis not in (*summed, *batch)]
        sizes = [
            int(np.prod([numbers.shape[axis] for axis in axes])) for axes in (batch, free, summed)
        ]
        parts.append(numbers.transpose(*batch, *free, *summed).reshape(sizes))
    return list(np.broadcast_arrays(parts[0][:, :, None], parts[1][:, None]))
