"""The mean model as a CasADi function, with derivatives and without JAX at run time.

The traced program of one step is evaluated with CasADi symbols. As CasADi has no arrays with more
than two axes, an array is represented by the vector of its entries in C order. There are three
kinds of operations: those that only rearrange entries become gathers, elementwise operations are
those of CasADi, and a sum of products becomes the sum of a product of two gathers.
"""

import functools
import operator
import types
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from gpssm.core.runtime import in_double_precision
from gpssm.core.text import check_installed
from gpssm.posterior.mean_model import mean_model, numpy_expression

if TYPE_CHECKING:
    from gpssm.posterior.posterior import Posterior

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
