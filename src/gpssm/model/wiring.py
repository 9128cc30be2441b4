"""Known structure of the transition: which states and inputs enter which equation.

    x_{t+1,d} = f_d(z_t) + noise,    ∂f_d/∂z_j = 0 wherever `enters[d][j]` is false,    z = [x; u]

Some rows are fully known, and no function is learned for them:

    integrator (d, j)    x_{t+1,d} = x_{t,d} + c z_{t,j} + b
    delay (d, j)         x_{t+1,d} = z_{t,j}

c and b are learned with the start; they determine the units of the states.

A state may also be an output: `measured` (d, k) means y_k = x_d + noise. A wiring applies to the
kernel, the mean, the linear weights and the linear fit from which a sampler starts. States may be
shifted and scaled individually, but not mixed.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np
from jaxtyping import Bool

Mask = tuple[
    tuple[bool, ...], ...
]  # static, so that entries that do not enter are constant zeros in compiled programs
Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Wiring:
    """The wiring of a system: arguments of each transition, known rows, and measured states.

        # A position and its speed, a force
        gpssm.Wiring([[1, 1, 0], [1, 1, 1]], integrators={0: 1}, measured={0: 0})

    Parameters
    ----------
    enters
        Boolean matrix (Dx, Dx+Du) with one row per state and one column per state and input: true
        if the column enters the transition. Rows of integrators and delays are replaced.
    integrators
        Mapping from state d to the column of z that it integrates.
    delays
        Mapping from state d to the column of z whose previous value it holds.
    measured
        Mapping from state d to the output that it equals.
    sparse
        Whether to learn which of these entries matter: each has a lengthscale and a scale of its
        linear weight, with priors that shrink entries not supported by the data (`relevance`
        shows the result).
    """

    enters: Mask
    integrators: Pairs = ()
    delays: Pairs = ()
    measured: Pairs = ()
    sparse: bool = False

    def __init__(
        self,
        enters: Any,
        integrators: Any = (),
        delays: Any = (),
        measured: Any = (),
        sparse: bool = False,
    ) -> None:
        matrix = _matrix(enters)
        named = {"integrators": integrators, "delays": delays, "measured": measured}
        pairs = {what: _pairs(what, value, matrix.shape) for what, value in named.items()}
        for row, column in pairs["integrators"]:
            if row == column:
                raise ValueError(
                    f"integrators: state {row} cannot integrate itself; name another column."
                )
            matrix[row] = False
            matrix[row, [row, column]] = True
        for row, column in pairs["delays"]:
            matrix[row] = False
            matrix[row, column] = True
        rows = [row for what in ("integrators", "delays") for row, _ in pairs[what]]
        if twice := {row for row in rows if rows.count(row) > 1}:
            raise ValueError(
                f"state {min(twice)} is both an integrator and a delay: choose one of them."
            )
        try:
            TopologicalSorter({row: [column] for row, column in pairs["delays"]}).prepare()
        except CycleError as error:
            raise ValueError(
                f"the delays form a cycle through state {min(error.args[1])}: a delay must hold a "
                "state or input outside the cycle."
            ) from None
        if empty := np.flatnonzero(~matrix.any(1)).tolist():
            raise ValueError(
                f"nothing enters the transition of state {empty[0]}: its row of the wiring is all "
                "false. Let a state or input enter, or drop the state."
            )
        object.__setattr__(self, "enters", tuple(tuple(map(bool, row)) for row in matrix))
        object.__setattr__(self, "sparse", bool(sparse))
        for what, value in pairs.items():
            object.__setattr__(self, what, value)

    @property
    def state_dim(self) -> int:
        """Dx."""
        return len(self.enters)

    @property
    def input_dim(self) -> int:
        """Du."""
        return len(self.enters[0]) - len(self.enters)

    @property
    def learned(self) -> tuple[bool, ...]:
        """Whether a row has a function to learn."""
        exact = {row for row, _ in (*self.integrators, *self.delays)}
        return tuple(row not in exact for row in range(self.state_dim))

    @property
    def mask(self) -> Mask:
        """The arguments of the learned functions; known rows are all false."""
        return tuple(
            tuple(enters and learned for enters in row)
            for row, learned in zip(self.enters, self.learned, strict=True)
        )

    def plain(self) -> list[Any]:
        """Return, as lists, the arguments from which `Wiring(*plain)` restores it."""
        pairs = (
            [list(pair) for pair in group]
            for group in (self.integrators, self.delays, self.measured)
        )
        return [[list(row) for row in self.enters], *pairs, self.sparse]

    def words(self, inputs: Iterable[str] = ()) -> str:
        """The arguments of each transition as one line of text."""
        columns = [*(f"x{d + 1}" for d in range(self.state_dim)), *inputs]
        columns += [f"u{j + 1}" for j in range(len(columns) - self.state_dim, self.input_dim)]
        kinds = dict.fromkeys((row for row, _ in self.integrators), " (sum)")
        kinds |= dict.fromkeys((row for row, _ in self.delays), " (delay)")
        rows = [
            f"x{d + 1} from {', '.join(itertools.compress(columns, row))}{kinds.get(d, '')}"
            for d, row in enumerate(self.enters)
        ]
        return "; ".join([*rows, *(["to be pruned"] if self.sparse else [])])


def make_wiring(spec: Any, state_dim: int, input_dim: int, output_dim: int) -> Wiring | None:
    """Create a wiring from a name, a boolean matrix or a wiring, and check its sizes.

    "cascade"       each state depends on itself and the previous state, the first one on the
                    inputs; the last states are outputs
    "chain"         each output is the first state of a chain of integrators; the last state of
                    each chain depends on everything
    "second-order"  chains of two states: positions, which are outputs, and their speeds
    "sparse"        states are the outputs, and their dependencies are learned
    """
    if spec is None:
        return None
    if isinstance(spec, str):
        wiring = _named(spec, state_dim, input_dim, output_dim)
    else:
        wiring = spec if isinstance(spec, Wiring) else Wiring(spec)
    if (wiring.state_dim, wiring.input_dim) != (state_dim, input_dim):
        raise ValueError(
            f"the wiring has {wiring.state_dim} states and {wiring.input_dim} inputs (rows are "
            f"states, columns are states and then inputs), but the model has {state_dim} states "
            f"and the data have {input_dim} inputs. Pass state_dim={wiring.state_dim}, or a "
            f"matrix of shape ({state_dim}, {state_dim + input_dim})."
        )
    if beyond := [output for _, output in wiring.measured if output >= output_dim]:
        raise ValueError(
            f"measured: no output {beyond[0]}; the data have {output_dim}, counted from 0."
        )
    return wiring


def wired_size(spec: Any, output_dim: int) -> int | None:
    """Return the number of states that a wiring implies, or None."""
    if isinstance(spec, str):
        return {"second-order": 2 * output_dim, "sparse": output_dim}.get(spec)
    return None if spec is None else (spec if isinstance(spec, Wiring) else Wiring(spec)).state_dim


NAMES = ("cascade", "chain", "second-order", "sparse")


def _named(name: str, states: int, inputs: int, outputs: int) -> Wiring:
    if name == "cascade":
        enters = np.eye(states, dtype=bool) | np.eye(states, k=-1, dtype=bool)
        first = np.arange(states)[:, None] == np.zeros(inputs)
        if outputs > states:
            raise ValueError(
                f"a cascade of {states} states cannot have {outputs} outputs: use "
                f"state_dim={outputs} or more."
            )
        return Wiring(
            np.hstack([enters, first]), measured={states - outputs + k: k for k in range(outputs)}
        )
    if name in ("chain", "second-order"):
        length, rest = divmod(states, outputs)
        if rest or length < 2 or (name == "second-order" and length != 2):
            wanted = (
                f"state_dim={2 * outputs}"
                if name == "second-order"
                else f"state_dim a multiple of {outputs}, {2 * outputs} or more"
            )
            raise ValueError(
                f"wiring={name!r} has a chain for each of the {outputs} outputs: use {wanted} "
                f"instead of {states}."
            )
        # Chains one after the other: position, speed, ... of the first output, then of the second.
        heads = {output * length: output for output in range(outputs)}
        sums = {row: row + 1 for row in range(states) if (row + 1) % length}
        return Wiring(np.ones((states, states + inputs), bool), integrators=sums, measured=heads)
    if name == "sparse":
        if states != outputs:
            raise ValueError(
                "wiring='sparse' needs the outputs as states, because a structure can only be "
                f"learned for states with a physical meaning. Use state_dim={outputs}, or "
                "Wiring(..., measured=..., sparse=True)."
            )
        itself = {state: state for state in range(states)}
        return Wiring(np.ones((states, states + inputs), bool), measured=itself, sparse=True)
    raise KeyError(
        f"Unknown wiring {name!r}. Known: {', '.join(NAMES)}; or a boolean matrix (states, states "
        "+ inputs)."
    )


def _matrix(enters: Any) -> Bool[np.ndarray, "Dx Dz"]:
    try:
        matrix = np.array(enters, float)
    except (TypeError, ValueError):
        raise TypeError(f"wiring must be a boolean matrix or a name; got {enters!r}.") from None
    if matrix.ndim != 2 or matrix.shape[0] < 1 or matrix.shape[1] < matrix.shape[0]:
        raise ValueError(
            "a wiring needs one row per state and one column per state and input; got the shape "
            f"{matrix.shape}."
        )
    if not np.isin(matrix, (0.0, 1.0)).all():
        raise ValueError("a wiring must contain only true and false, or 1 and 0.")
    return matrix.astype(bool)


def _pairs(what: str, values: Any, shape: tuple[int, ...]) -> Pairs:
    try:
        pairs = sorted((int(row), int(column)) for row, column in dict(values).items())
    except (TypeError, ValueError):
        raise TypeError(
            f"{what} must map states to columns, such as {{0: 1}}; got {values!r}."
        ) from None
    for row, column in pairs:
        if not (0 <= row < shape[0] and column >= 0 and (what == "measured" or column < shape[1])):
            raise ValueError(
                f"{what}: {{{row}: {column}}} is outside of {shape[0]} states and {shape[1]} "
                "columns."
            )
    if what == "measured" and len({column for _, column in pairs}) < len(pairs):
        raise ValueError(f"measured: two states cannot be the same output; got {dict(values)}.")
    return tuple(pairs)
