"""Export the mean model as a Python file that needs only NumPy."""

import base64
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpssm.core.files import check_target, write_atomically
from gpssm.core.runtime import in_double_precision
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
