"""The mean model as a file that needs NumPy alone.

    x_{t+1} = m_s(z_t) + A_s(z_t) v_s,   ŷ_t = mean over s of E[y | x_{t+1}],   s = 1..S

The program that JAX traces of one step is written again operation by operation, in NumPy, with its arrays beside it: so
every kernel, basis, mean and link can be exported whose operations are in `WORDS`.
"""

import base64
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.core.files import write_atomically
from gpssm.core.runtime import in_double_precision
from gpssm.core.text import check_flag, check_path, check_whole
from gpssm.posterior.draws import merge_chains
from gpssm.posterior.rollout import assemble, members_of

if TYPE_CHECKING:
    from gpssm.posterior.posterior import Posterior


@in_double_precision
def write_export(posterior: "Posterior", path: str | Path, num_draws: int, overwrite: bool) -> None:
    """See `Posterior.export`."""
    path = check_path(path)
    check_whole("num_draws", num_draws, 1)
    check_flag("overwrite", overwrite)
    if path.exists() and not overwrite:
        raise FileExistsError(
            f"{path} exists. Pass overwrite=True to replace it, or name another file."
        )
    fewer = posterior.thinned(max(num_draws, posterior.num_chains))
    draws, series = np.arange(fewer.num_chains * fewer.num_draws), posterior.dataset.experiments[-1]
    ensemble = assemble(*members_of(fewer, draws), series.input_dim)
    if fewer.current is None:
        start = merge_chains(fewer.draws.states[-1])[:, -1]
    else:
        weights = np.exp(merge_chains(fewer.current.log_weights))[..., None]
        start = np.sum(weights * merge_chains(fewer.current.particles), axis=1)

    def step(
        x: Float[Array, "S Dx"], u: Float[Array, " Du"]
    ) -> tuple[Float[Array, "S Dx"], Float[Array, "S Dy"]]:
        controls = jnp.broadcast_to(u, (x.shape[0], 1, u.shape[0]))
        following = ensemble.moments(x[:, None], controls).mean
        return following[:, 0], eqx.filter_vmap(lambda one, x: one.moments(x)[0])(
            ensemble.likelihood, following
        )[:, 0]

    lines, arrays = to_numpy(step, jnp.asarray(start), jnp.zeros(series.input_dim))
    scaler = posterior.dataset.scaler
    stored: dict[str, Any] = arrays | {"start": start, "past": posterior.past_inputs()}
    stored |= {name: np.array(getattr(scaler, name)) for name in scaler.__dataclass_fields__}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **stored)
    text = base64.b64encode(buffer.getvalue()).decode()
    packed = "\n".join(f'    "{text[place : place + 110]}"' for place in range(0, len(text), 110))
    body = "\n".join(f"    {line}" for line in lines)
    named = {"outputs": series.outputs, "inputs": series.inputs, "dt": series.dt}
    delay = posterior.dataset.delay or (0,) * series.input_dim
    page = TEMPLATE.format(**named, delay=delay, body=body, packed=packed)
    write_atomically(Path(path), lambda file: file.write(page.encode()))


NAMES = re.compile(r"\b[va]\d+\b")  # of values and arrays
TEMPLATE = '''"""The mean of a model's forecasts without noise. Written by gpssm; needs NumPy alone.

    y = run(u)           outputs (H, Dy) after the data the model has seen, under the controls u (H, Du)
    x, y = step(x, u)    one row: the states x (S, Dx) of S draws, one control (Du,); outputs (Dy,)

Controls and outputs are in the units of the data. START is where the states were at the end of them. DELAY is the rows
after which each control acts and PAST the last ones of the data, which `run` heeds; `step` takes those that act now.
"""

import base64
import io

import numpy as np

OUTPUTS, INPUTS, DT, DELAY = {outputs!r}, {inputs!r}, {dt!r}, {delay!r}


def step(x, u):
    """The states one row later and the mean output of that row."""
    x, y = _step(np.asarray(x, float), (np.asarray(u, float) - A["input_mean"]) / A["input_std"])
    return x, y.mean(0) * A["output_std"] + A["output_mean"]


def run(u, x=None):
    """Mean outputs (H, Dy) under the controls u (H, Du), from the states x and the controls before them, PAST."""
    x, outputs = START if x is None else x, []
    known = np.concatenate([PAST, np.asarray(u, float).reshape(len(u), len(INPUTS))])
    known = np.where(np.isnan(known), known[np.argmin(np.isnan(known).any(1))], known)
    for row in range(len(PAST), len(known)):
        x, y = step(x, [known[row - lag, j] for j, lag in enumerate(DELAY)])
        outputs.append(y)
    return np.array(outputs)


def _step(x, u):
{body}


A = dict(np.load(io.BytesIO(base64.b64decode(
{packed}
))))
START, PAST = A["start"], A["past"]
'''


def to_numpy(
    function: Callable[..., Any], *given: Array
) -> tuple[list[str], dict[str, np.ndarray]]:
    """Lines of NumPy code that compute a traced function of x and u, and the arrays `A` that they use."""
    closed = jax.make_jaxpr(function)(*given)
    writer = _Writer()
    results = writer.write(
        closed.jaxpr, closed.consts, dict(zip(closed.jaxpr.invars, ("x", "u"), strict=True))
    )
    # What no result needs, such as variances, is left out.
    needed, kept = set(results), [f"return {', '.join(results)}"]
    for name, text in reversed(writer.lines):
        if name in needed:
            kept.append(f"{name} = {text}")
            needed |= set(NAMES.findall(text))
    return kept[::-1], {name: array for name, array in writer.arrays.items() if name in needed}


# How each operation of a traced program is written in NumPy, from its operands.
WORDS = {
    **{
        name: f"np.{name}({{0}})"
        for name in ("exp", "log1p", "expm1", "tanh", "sin", "cos", "sqrt", "sign", "floor")
    },
    **{name: f"np.{name}({{0}})" for name in ("log", "square", "sinh", "cosh", "tan", "ceil")},
    **{
        "asin": "np.arcsin({0})",
        "acos": "np.arccos({0})",
        "atan": "np.arctan({0})",
        "abs": "np.abs({0})",
    },
    **{"neg": "-{0}", "rsqrt": "1 / np.sqrt({0})", "logistic": "1 / (1 + np.exp(-{0}))"},
    **{
        "is_finite": "np.isfinite({0})",
        "not": "~{0}",
        "copy": "{0}",
        "stop_gradient": "{0}",
        "copy_p": "{0}",
    },
    **{
        "add": "{0} + {1}",
        "add_any": "{0} + {1}",
        "sub": "{0} - {1}",
        "mul": "{0} * {1}",
        "div": "{0} / {1}",
    },
    **{
        "max": "np.maximum({0}, {1})",
        "min": "np.minimum({0}, {1})",
        "pow": "{0} ** {1}",
        "rem": "np.fmod({0}, {1})",
    },
    **{"atan2": "np.arctan2({0}, {1})", "and": "{0} & {1}", "or": "{0} | {1}"},
    **{
        "eq": "{0} == {1}",
        "ne": "{0} != {1}",
        "lt": "{0} < {1}",
        "le": "{0} <= {1}",
        "gt": "{0} > {1}",
    },
    **{"ge": "{0} >= {1}", "clamp": "np.clip({1}, {0}, {2})", "integer_pow": "{0} ** {y}"},
    **{"reduce_sum": "np.sum({0}, axis={axes})", "reduce_max": "np.max({0}, axis={axes})"},
    **{"reduce_min": "np.min({0}, axis={axes})", "reduce_prod": "np.prod({0}, axis={axes})"},
    **{"reshape": "np.reshape({0}, {new_sizes})", "squeeze": "np.squeeze({0}, axis={dimensions})"},
    **{
        "expand_dims": "np.expand_dims({0}, {dimensions})",
        "transpose": "np.transpose({0}, {permutation})",
    },
    **{
        "convert_element_type": "np.asarray({0}, '{new_dtype}')",
        "cumsum": "np.cumsum({0}, axis={axis})",
    },
}


class _Writer:
    """Writes a program line by line, calls of other programs in place."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []  # the name of a value, and how it is computed
        self.arrays: dict[str, np.ndarray] = {}

    def write(self, jaxpr: Any, consts: Sequence[Any], names: Mapping[Any, str]) -> list[str]:
        """The names of the program's results, after writing it."""
        known = dict(names) | {
            var: self.constant(value) for var, value in zip(jaxpr.constvars, consts, strict=True)
        }

        def read(atom: Any) -> str:
            return (
                self.constant(atom.val)
                if isinstance(atom, jax.extend.core.Literal)
                else known[atom]
            )

        for eqn in jaxpr.eqns:
            operands = [read(atom) for atom in eqn.invars]
            inner = (
                eqn.params.get("jaxpr")
                or eqn.params.get("call_jaxpr")
                or eqn.params.get("fun_jaxpr")
            )
            if inner is not None and eqn.primitive.name not in ("scan", "while", "cond"):
                open_jaxpr, consts = (
                    (inner.jaxpr, inner.consts) if hasattr(inner, "consts") else (inner, ())
                )
                results = self.write(
                    open_jaxpr, consts, dict(zip(open_jaxpr.invars, operands, strict=True))
                )
                known |= dict(zip(eqn.outvars, results, strict=True))
                continue
            name = f"v{len(self.lines)}"
            self.lines.append((name, self.operation(eqn, operands)))
            known[eqn.outvars[0]] = name
        return [read(atom) for atom in jaxpr.outvars]

    def constant(self, value: Any) -> str:
        """A number as it is, or an array by name."""
        array = np.asarray(value)
        if array.ndim == 0:
            return repr(array.item())
        for name, other in self.arrays.items():
            if (
                other.shape == array.shape
                and other.dtype == array.dtype
                and np.array_equal(other, array, True)
            ):
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
            shape, kept = params["shape"], params["broadcast_dimensions"]
            sizes = [1] * len(shape)
            for place, size in zip(kept, eqn.invars[0].aval.shape, strict=True):
                sizes[place] = size
            return f"np.broadcast_to(np.reshape({operands[0]}, {tuple(sizes)}), {shape})"
        if name == "concatenate":
            return f"np.concatenate([{', '.join(operands)}], axis={params['dimension']})"
        if name == "select_n" and len(operands) == 3:
            return f"np.where({operands[0]}, {operands[2]}, {operands[1]})"
        if name == "slice":
            strides = params["strides"] or (1,) * len(params["start_indices"])
            limits = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
            return f"{operands[0]}[{', '.join(':'.join(map(str, one)) for one in limits)}]"
        if name == "iota":
            sizes = [
                -1 if place == params["dimension"] else 1 for place in range(len(params["shape"]))
            ]
            count = params["shape"][params["dimension"]]
            return f"np.broadcast_to(np.arange({count}).reshape({sizes}), {params['shape']})"
        if name == "dot_general":
            return self.product(eqn, operands)
        raise TypeError(
            f"the model's step uses {name}, which an export has no NumPy for: a mean, link or kernel of your own does "
            "that. Take `posterior.rollout()`, which needs JAX, instead"
        )

    def product(self, eqn: Any, operands: list[str]) -> str:
        """A product of arrays: batch axes first, then those of the left, then those of the right."""
        (left_sum, right_sum), (left_batch, right_batch) = eqn.params["dimension_numbers"]
        letters = iter("abcdefghijklmnopqrstuvwxyz")
        left = [next(letters) for _ in eqn.invars[0].aval.shape]
        right = [next(letters) for _ in eqn.invars[1].aval.shape]
        for mine, other in zip((*left_sum, *left_batch), (*right_sum, *right_batch), strict=True):
            right[other] = left[mine]
        batch = [left[place] for place in left_batch]
        rest = [
            letter for place, letter in enumerate(left) if place not in (*left_sum, *left_batch)
        ]
        rest += [
            letter for place, letter in enumerate(right) if place not in (*right_sum, *right_batch)
        ]
        pattern = f"{''.join(left)},{''.join(right)}->{''.join(batch + rest)}"
        return f'np.einsum("{pattern}", {operands[0]}, {operands[1]}, optimize=True)'
