"""The learned dynamics: the transition at any state, and linear models around operating points.

    x_{t+1} = f(x_t, u_t),   y_t = h(x_{t+1})          f = E[f | v] and h = E[y | x] of one draw

Around a point (x, u) with A = ∂f/∂x, B = ∂f/∂u at it and H = ∂h/∂x at f(x, u), deviations follow

    δx_{t+1} = A δx_t + B δu_t,   δy_t = C δx_t + D δu_t,   C = H A,   D = H B

since an input acts on the output of the same row. Poles are the eigenvalues of A, the impulse
response is D, CB, CAB and so on, the step response its running sum, and the frequency response C
(zI − A)⁻¹ B + D at z = exp(2πi f dt).

Coordinates of states and operating points differ between draws. The operating point is an
equilibrium x = f(x, u), or the state of the draw at a row of the training data. Poles, responses
and gains do not depend on the coordinates, so draws and chains can be compared. Outputs and inputs
are in the user's units. Bands show the variation of E[f | v] over draws; they do not include the
residual variance B(z) between inducing points, which `transition` and `unknown` do. Averages over
draws of the transition are also averages over chains, which may use different coordinates of the
states: use one chain at a time if `Posterior.diagnostics` shows that they do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Complex, Float

from gpssm.core.arguments import check_arguments
from gpssm.core.runtime import in_double_precision
from gpssm.core.text import check_choice, check_installed, count, is_whole
from gpssm.data.columns import align_columns, to_columns
from gpssm.data.scaler import FAR
from gpssm.model.bases import FeaturePoints
from gpssm.model.kernels import Feature
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw
from gpssm.posterior.control import mean_step
from gpssm.posterior.draws import map_draws, merge_chains, stored_rows
from gpssm.posterior.rollout import (
    BOUNDS,
    training_box,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from gpssm.posterior.posterior import Posterior

LEVEL = 0.9
TINY = np.finfo(float).tiny

Band = tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]


@dataclass(frozen=True, eq=False)
class Response:
    """Step or impulse responses of S draws: change of output j after a unit of input i.

    Parameters
    ----------
    values : array (S, n, Dy, Du)
        The responses.
    linear
        The linearised model.
    kind
        "step response" or "impulse response".
    """

    values: Float[np.ndarray, "S n Dy Du"]
    linear: "Linearisation"
    kind: str

    def __repr__(self) -> str:
        draws, rows = self.values.shape[:2]
        signals = f"{', '.join(self.linear.inputs)} to {', '.join(self.linear.outputs)}"
        return f"Response({self.kind} of {signals}, {count(rows, 'row')}, {count(draws, 'draw')})"

    @property
    def times(self) -> Float[np.ndarray, " n"]:
        """Time since the input changed: steps, multiplied by dt if it is known."""
        return np.arange(self.values.shape[1]) * (self.linear.dt or 1)

    @check_arguments
    def interval(self, level: float = LEVEL) -> Band:
        """The central interval over draws: (low, high)."""
        return central_band(self.values, level)

    def plot(self, level: float = LEVEL) -> "Figure":
        """Plot the median and the central interval over draws, one panel per output and input."""
        from gpssm.plots.posteriors import plot_response

        return plot_response(self, level)


@dataclass(frozen=True, eq=False)
class Bode:
    """Frequency responses G of S draws.

    Parameters
    ----------
    frequencies : array (F,)
        Frequencies in cycles per unit of time, or per step.
    values : array (S, F, Dy, Du)
        G at the frequencies.
    linear
        The linearised model.
    """

    frequencies: Float[np.ndarray, " F"]
    values: Complex[np.ndarray, "S F Dy Du"]
    linear: "Linearisation"

    def __repr__(self) -> str:
        signals = f"{', '.join(self.linear.inputs)} to {', '.join(self.linear.outputs)}"
        low, high = self.frequencies[[0, -1]]
        return f"Bode({signals}, {low:.3g} to {high:.3g}, {count(len(self.values), 'draw')})"

    @property
    def magnitude(self) -> Float[np.ndarray, "S F Dy Du"]:
        """|G| in decibels, 20 log₁₀ |G|."""
        return 20 * np.log10(np.maximum(np.abs(self.values), TINY))

    @property
    def phase(self) -> Float[np.ndarray, "S F Dy Du"]:
        """arg G in degrees, unwrapped along frequencies.

        Draws begin within half a turn of their common direction.
        """
        phase = np.rad2deg(np.unwrap(np.angle(self.values), axis=1))
        first = self.values[:, :1] / np.maximum(np.abs(self.values[:, :1]), TINY)
        common = np.rad2deg(np.angle(np.sum(first, axis=0)))
        return phase - 360 * np.round((phase[:, :1] - common) / 360)

    def plot(self, level: float = LEVEL) -> "Figure":
        """Plot magnitude above phase for each output and input, with intervals over draws."""
        from gpssm.plots.posteriors import plot_bode

        return plot_bode(self, level)


@dataclass(frozen=True, eq=False)
class Linearisation:
    """δx' = A δx + B δu, δy = C δx + D δu of S draws, around an operating point of each.

        linear = posterior.linearise()
        linear.poles, linear.gain
        linear.step_response(50).plot()
        scipy.signal.dlti(linear.A[0], linear.B[0], linear.C[0], linear.D[0], dt=linear.dt)

    Outputs and inputs are in the user's units, states in each draw's coordinates.

    Parameters
    ----------
    A, B, C, D
        The matrices of each draw.
    x, u, y
        The operating points: states, the inputs of all, outputs.
    outputs, inputs
        Names of the columns.
    dt, time_unit
        Sampling time, and its unit.
    units
        Units of columns by name.
    delay
        Delay of each input in rows. δu is delayed; responses are to inputs at the rows where they
        are set, and begin after the delay.
    missing
        Number of draws that are left out because they have no equilibrium near the data.
    """

    A: Float[np.ndarray, "S Dx Dx"]
    B: Float[np.ndarray, "S Dx Du"]
    C: Float[np.ndarray, "S Dy Dx"]
    D: Float[np.ndarray, "S Dy Du"]
    x: Float[np.ndarray, "S Dx"]
    u: Float[np.ndarray, " Du"]
    y: Float[np.ndarray, "S Dy"]
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    dt: float | None = None
    time_unit: str = ""
    units: Mapping[str, str] = field(default_factory=dict)
    delay: tuple[int, ...] = ()
    missing: int = 0

    @property
    def poles(self) -> Complex[np.ndarray, "S Dx"]:
        """The eigenvalues of A of each draw, the largest first; stable inside the unit circle."""
        poles = np.linalg.eigvals(self.A).astype(complex)
        order = np.lexsort((-np.imag(poles), -np.abs(poles).round(12)), axis=-1)
        return np.take_along_axis(poles, order, -1)

    @property
    def gain(self) -> Float[np.ndarray, "S Dy Du"]:
        """The static gain C (I − A)⁻¹ B + D: the final change of outputs per unit of input."""
        return _transfer(np.ones(1), self.A, self.B, self.C, self.D)[:, 0]

    @check_arguments
    def impulse_response(self, n: int = 50) -> Response:
        """Return the impulse response D, CB, CAB, .., CAⁿ⁻²B to a unit input in one row."""
        self._check_inputs()
        if n > 100_000:
            raise ValueError(f"a response has at most 100000 rows; got n={n}")
        response = np.zeros((len(self.A), n, *self.D.shape[1:]))
        state = self.B
        response[:, 0] = self.D
        for row in range(1, n):
            response[:, row] = self.C @ state
            state = self.A @ state
        for i, lag in enumerate(self.delay):
            response[..., i] = np.pad(response[..., i], ((0, 0), (lag, 0), (0, 0)))[:, :n]
        return Response(response, self, "impulse response")

    def step_response(self, n: int = 50) -> Response:
        """Return the response to a step of one unit."""
        values = np.cumsum(self.impulse_response(n).values, axis=1)
        return Response(values, self, "step response")

    def bode(self, frequencies: Float[ArrayLike, " F"] | None = None) -> Bode:
        """Return the frequency response C (zI − A)⁻¹ B + D at z = exp(2πi f dt), with delays z⁻ᵈ.

        Parameters
        ----------
        frequencies
            Frequencies in cycles per unit of dt, or per step; by default 200 up to half the
            sampling rate.
        """
        self._check_inputs()
        dt = self.dt or 1.0
        default = np.geomspace(5e-4, 0.5, 200) / dt
        f = default if frequencies is None else _numbers("frequencies", frequencies)
        z = np.exp(2j * np.pi * f * dt)
        late = z[:, None, None] ** -np.array(self.delay or (0,))
        return Bode(f, late * _transfer(z, self.A, self.B, self.C, self.D), self)

    @property
    def central(self) -> int:
        """The index of the draw whose frequency response is nearest to the median over draws."""
        values = self.bode().values
        middle = np.median(np.real(values), axis=0) + 1j * np.median(np.imag(values), axis=0)
        size = np.maximum(np.mean(np.abs(middle), axis=0), TINY)
        return int(np.argmin(np.sum((np.abs(values - middle) / size) ** 2, axis=(1, 2, 3))))

    def to_control(self, *, each: bool = False) -> Any:
        """Return a `control.StateSpace` of python-control, of deviations from the operating point.

        State coordinates differ between draws, so an average of their matrices has no meaning. The
        result is for the draw whose frequency response is nearest to the median.

        Parameters
        ----------
        each
            Whether to return a list with one system per draw instead.
        """
        check_installed("to_control", "control")
        import control

        dt = self.dt or True
        delay = self.delay or (0,) * len(self.inputs)
        late = [control.tf2ss([1.0], [1.0, *np.zeros(rows)], dt) for rows in delay]
        systems = []
        for s in range(len(self.A)) if each else [self.central]:
            undelayed = control.ss(self.A[s], self.B[s], self.C[s], self.D[s], dt)
            system = control.ss(
                undelayed * control.append(*late),
                name=f"draw_{s}",
                inputs=list(self.inputs),
                outputs=list(self.outputs),
            )
            systems.append(system)
        return systems if each else systems[0]

    def plot(self, level: float = LEVEL) -> "Figure":
        """Plot the poles of all draws in the unit circle."""
        from gpssm.plots.posteriors import plot_poles

        return plot_poles(self, level)

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame with one row per pole: its magnitude, time constant and period.

        `time constant` is −1 / log |p|, the steps (times dt) in which it falls to a third; `period`
        is 2π / |arg p|.
        """
        import pandas

        dt = self.dt or 1.0
        magnitude = np.abs(self.poles)
        with np.errstate(divide="ignore"):
            constant = np.where(magnitude < 1, -dt / np.log(magnitude), np.inf)
            period = 2 * np.pi * dt / np.abs(np.angle(self.poles))
        columns = {"magnitude": magnitude, "time constant": constant, "period": period}
        quantiles = {"5%": 0.05, "median": 0.5, "95%": 0.95}
        table = {
            f"{name} {label}": np.quantile(values, q, axis=0, method="nearest")
            for name, values in columns.items()
            for label, q in quantiles.items()
        }
        index = pandas.RangeIndex(1, self.A.shape[-1] + 1, name="pole")
        return pandas.DataFrame(table, index=index)

    def __repr__(self) -> str:
        pairs = zip(self.inputs, self.u, strict=True)
        point = ", ".join(f"{name}={value:.4g}" for name, value in pairs)
        largest = np.quantile(np.abs(self.poles[:, 0]), (0.05, 0.95))
        return (
            f"Linearisation({count(len(self.A), 'draw')} at {point or 'the equilibrium'}, "
            f"largest pole {largest[0]:.3f} to {largest[1]:.3f})"
        )

    def _check_inputs(self) -> None:
        if not self.inputs:
            raise ValueError(
                "the model has no inputs and therefore no responses; see .poles for its dynamics"
            )


@dataclass(frozen=True, eq=False)
class StaticGain:
    """Steady-state outputs of S draws for N values of one input, with the other inputs held at `u`.

    Parameters
    ----------
    input, values
        The input and its values.
    u
        The values of all inputs; the value of `input` is ignored.
    settled, gain : array (S, N, Dy)
        Steady-state outputs, and their slope, in the user's units; NaN if a draw has no equilibrium
        near the data.
    stable : array (S, N)
        Whether the equilibrium of a draw is stable.
    """

    input: str
    values: Float[np.ndarray, " N"]
    u: Float[np.ndarray, " Du"]
    settled: Float[np.ndarray, "S N Dy"]
    gain: Float[np.ndarray, "S N Dy"]
    stable: Bool[np.ndarray, "S N"]
    outputs: tuple[str, ...]
    units: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        low, high = self.values[[0, -1]]
        draws = count(len(self.settled), "draw")
        return f"StaticGain({self.input} from {low:.4g} to {high:.4g}, {draws})"

    @property
    def share(self) -> Float[np.ndarray, " N"]:
        """The share of draws with an equilibrium."""
        return np.mean(np.isfinite(self.settled[..., 0]), axis=0)

    @property
    def median(self) -> Float[np.ndarray, "N Dy"]:
        """Return the median over draws; NaN if fewer than half of them have an equilibrium."""
        return central_band(self.supported(self.settled), 0.0)[0]

    def supported(self, values: Float[np.ndarray, "S N Dy"]) -> Float[np.ndarray, "S N Dy"]:
        """Return the values, with NaN where fewer than half of the draws have an equilibrium."""
        return np.where((self.share >= 0.5)[:, None], values, np.nan)

    def plot(self, level: float = LEVEL) -> "Figure":
        """Plot the curve and its slope with bands, one column per output."""
        from gpssm.plots.posteriors import plot_static_gain

        return plot_static_gain(self, level)


@in_double_precision
def linearise(
    posterior: "Posterior", *, at: Any = None, row: int | None = None, index: int = -1
) -> Linearisation:
    """Linearise the model around an operating point; the result has poles and responses.

        posterior.linearise(at={"pump": 3.0}).step_response(50).plot()

    Parameters
    ----------
    posterior
        The posterior.
    at
        Inputs in the user's units, in order or by name, at whose equilibrium f(x, u) = x each draw
        is linearised. Inputs that are not named, and the default, are means of the training data.
        Alternatively, a pair (x, u) with a state in the coordinates of the draws.
    row
        A row of training series `index` to linearise at instead: the state of each draw before it,
        and its inputs.
    index
        The number of the training series.
    """
    posterior = stored_rows(posterior)
    series = posterior.dataset.experiment(index)
    if row is not None:
        if at is not None:
            raise ValueError("at and row both name an operating point: pass only one of them")
        if not is_whole(row) or not -len(series) <= row < len(series):
            raise IndexError(
                f"training series {index} has {len(series)} rows, counted from 0; got row {row}"
            )
        u = posterior.dataset.acting[index].u[[row]]
        states = np.asarray(posterior.draws.states[index])[:, :, :-1]
        local = _local_models(posterior, u, states[:, :, [row]])
    elif isinstance(at, tuple):
        dim = posterior.model.state_dim
        x = _numbers("the state", at[0]) if len(at) == 2 else np.zeros(0)
        if x.shape != (dim,):
            raise ValueError(f"at=(x, u) needs a state of {dim} numbers and the inputs; got {at!r}")
        u = _input_values(posterior, at[1])[None]
        local = _local_models(posterior, u, x[None])
    else:
        u = _input_values(posterior, at)[None]
        local = _equilibria(posterior, u)
    settled = np.isfinite(local.x[:, 0]).all(-1)
    if not settled.any():
        raise ValueError(
            "no draw has an equilibrium near the data at these inputs: the system may integrate, "
            "drift or oscillate. Linearise at a row of the training data, row=..., or at a given "
            "state, at=(x, u)"
        )
    A, B, C, D, x, y, _ = (part[settled, 0] for part in local)
    return Linearisation(
        *(A, B, C, D, x, u[0], y),
        outputs=series.outputs,
        inputs=series.inputs,
        dt=series.dt,
        units=series.units,
        time_unit="s" if series.axis is not None and series.axis.dates else "",
        delay=posterior.dataset.delay,
        missing=int(np.sum(~settled)),
    )


@in_double_precision
def static_gain(
    posterior: "Posterior",
    input: str | None = None,
    values: Float[ArrayLike, " N"] | None = None,
    at: Any = None,
) -> StaticGain:
    """Return steady-state outputs over the range of an input, with bands over draws.

        gpssm.analysis.static_gain(posterior).plot()

    Parameters
    ----------
    posterior
        The posterior.
    input
        The input that varies; the first by default.
    values
        Values of the input in the user's units; by default from the 1st to the 99th percentile of
        the training data.
    at
        The other inputs, as in `linearise`.
    """
    posterior = stored_rows(posterior)
    series = posterior.dataset.experiments[0]
    if not series.inputs:
        raise ValueError("the model has no inputs and therefore no static gain")
    input = series.inputs[0] if input is None else input
    check_choice("input", input, series.inputs)
    column = series.inputs.index(input)
    if values is None:
        rows = np.concatenate([item.u[:, column] for item in posterior.dataset.experiments])
        values = np.linspace(np.quantile(rows, 0.01), np.quantile(rows, 0.99), 25)
    levels = _numbers("values", values)
    u = _input_values(posterior, at)
    inputs = np.repeat(u[None], len(levels), 0)
    inputs[:, column] = levels
    local = _equilibria(posterior, inputs)
    lost = np.asarray(np.isnan(local.x).any(axis=-1))[..., None]
    A = np.where(lost[..., None], 0.0, local.A)
    slopes = _transfer(np.ones(1), A, local.B, local.C, local.D)[..., 0, :, column]
    gain = np.where(lost, np.nan, slopes)
    stable = ~lost[..., 0] & (np.abs(np.linalg.eigvals(A)).max(-1) < 1)
    return StaticGain(input, levels, u, local.y, gain, stable, series.outputs, series.units)


@in_double_precision
def relevance(posterior: "Posterior") -> "pd.DataFrame":
    """Return how much each state and input z_j moves each next state x_d along the data.

        r_dj = √mean_t (∂f_d/∂z_j)² · std(z_j) / std(x_d),   the mean over draws

    It is exactly zero for entries excluded by a wiring, and computed from a few draws and rows.

    Returns
    -------
    DataFrame
        One row per state, one column per state and input.
    """
    import pandas

    posterior = stored_rows(posterior)
    few = posterior.thinned(40)
    means = [np.mean(np.asarray(path), axis=(0, 1))[:-1] for path in posterior.draws.states]
    x = np.concatenate(means)
    u = np.concatenate([series.u for series in posterior.dataset.acting])
    every = -(-len(x) // 200)
    local = _local_models(few, u[::every], x[::every])
    slopes = np.concatenate([local.A, local.B], axis=-1)
    spread = np.concatenate([x.std(0), u.std(0)])
    scale = spread / np.maximum(x.std(0)[:, None], 1e-12)
    moved = np.sqrt(np.mean(slopes**2, axis=1)) * scale
    states = [f"x{d + 1}" for d in range(x.shape[1])]
    columns = [*states, *posterior.dataset.inputs]
    return pandas.DataFrame(np.mean(moved, axis=0), index=states, columns=columns)


class LocalModels(NamedTuple):
    """The linear models of S draws at N points, in the user's units; NaN without equilibrium.

    `gap` is |f(x, u) − x|, in scaled units.
    """

    A: Float[np.ndarray, "S N Dx Dx"]
    B: Float[np.ndarray, "S N Dx Du"]
    C: Float[np.ndarray, "S N Dy Dx"]
    D: Float[np.ndarray, "S N Dy Du"]
    x: Float[np.ndarray, "S N Dx"]
    y: Float[np.ndarray, "S N Dy"]
    gap: Float[np.ndarray, "S N"]


def _equilibria(posterior: "Posterior", u: Float[np.ndarray, "N Du"]) -> LocalModels:
    """Return the models at equilibria, searched from the mean state of the tenth of the rows with
    the most similar inputs."""
    dataset = posterior.dataset
    rows = np.concatenate([series.u for series in dataset.scaled])
    distance = np.linalg.norm(dataset.encode_inputs(u)[:, None] - rows[None], axis=-1)
    number = max(int(0.1 * len(rows)), 1) if rows.shape[1] else len(rows)
    order = np.argsort(distance, axis=1, kind="stable")[:, :number]
    weights = np.zeros(distance.shape)
    np.put_along_axis(weights, order, 1 / number, axis=1)
    states = np.concatenate(
        [np.asarray(path)[:, :, :-1] for path in posterior.draws.states], axis=2
    )
    local = _local_models(posterior, u, weights @ states, steps=60)
    box = training_box(posterior, np.arange(len(local.x)), BOUNDS)
    away = np.asarray(box.away(jnp.asarray(local.x), jnp.zeros(local.x[:, 0].shape)))
    settled = ((local.gap < 1e-6) & (away <= BOUNDS))[..., None]
    return local._replace(
        x=np.where(settled, local.x, np.nan), y=np.where(settled, local.y, np.nan)
    )


def _local_models(
    posterior: "Posterior",
    u: Float[np.ndarray, "N Du"],
    x: Float[np.ndarray, "*draws N Dx"],
    steps: int = 0,
) -> LocalModels:
    """Return the linear model of each draw at N inputs and states, or at equilibria near them.

    The search for equilibria has `steps` iterations.
    """
    dataset = posterior.dataset
    shape = (posterior.num_chains, posterior.num_draws, *x.shape[-2:])
    draws = posterior.draws._replace(states=(np.broadcast_to(x, shape),))
    inputs = jnp.asarray(dataset.encode_inputs(u))
    local = map_draws(_local_model, posterior.model, draws, (inputs, steps))
    A, B, C, D, x, y, gap = map(merge_chains, local)
    output_std = np.array(dataset.scaler.output_std)[:, None]
    input_std = np.array(dataset.scaler.input_std)
    D = output_std * D / input_std
    return LocalModels(A, B / input_std, output_std * C, D, x, dataset.decode(y), gap)


def _local_model(
    model: GPSSM, draw: Draw, inputs: tuple[Float[Array, "N Du"], int]
) -> tuple[Array, ...]:
    """Return the linear models of one draw at inputs, after a number of steps to an equilibrium.

    The steps are those of Levenberg and Marquardt: (JᵀJ + λI) δ = −Jᵀg with g = f(x, u) − x, and λ
    ten times larger after a step that did not help. Where I − A is singular they end where |g| is
    least.
    """
    u, steps = inputs
    step = mean_step(model, draw.weights)

    def local(x: Float[Array, " Dx"], u: Float[Array, " Du"]) -> tuple[Array, ...]:
        def gap(x: Float[Array, " Dx"]) -> Float[Array, " Dx"]:
            return step(x, u)[0] - x

        def improve(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            x, damping = carry
            g, J = gap(x), jax.jacfwd(gap)(x)
            proposal = x - jnp.linalg.solve(J.T @ J + damping * jnp.eye(len(x)), J.T @ g)
            better = jnp.sum(gap(proposal) ** 2) < jnp.sum(g**2)
            damping = jnp.where(better, damping / 10, damping * 10)
            return jnp.where(better, proposal, x), jnp.clip(damping, 1e-14, 1e8)

        x, _ = jax.lax.fori_loop(0, steps, improve, (x, jnp.asarray(1e-3)))
        (A, B), (C, D) = jax.jacfwd(step, (0, 1))(x, u)
        return A, B, C, D, x, step(x, u)[1], jnp.max(jnp.abs(gap(x)))

    return jax.vmap(local)(draw.states[0], u)


def _input_values(posterior: "Posterior", at: Any) -> Float[np.ndarray, " Du"]:
    """Return inputs in the user's units, given in order or by name; by default the training
    mean."""
    names = posterior.dataset.inputs
    mean = np.mean(np.concatenate([item.u for item in posterior.dataset.experiments]), axis=0)
    if at is None:
        return mean
    if isinstance(at, Mapping):
        for name in at:
            check_choice("an input of at", name, names)
        at = [at.get(name, value) for name, value in zip(names, mean, strict=True)]
    return align_columns(_numbers("at", at)[None], names, "u")[0]


def _numbers(name: str, values: Any) -> Float[np.ndarray, " N"]:
    """Return a list of finite numbers as an array."""
    try:
        numbers = np.atleast_1d(np.asarray(values, float))
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numbers; got {type(values).__name__} ({error})") from None
    if numbers.ndim != 1 or not np.isfinite(numbers).all():
        raise ValueError(f"{name} must be a list of finite numbers; got {values!r}")
    return numbers


def _transfer(
    z: np.ndarray, A: np.ndarray, B: np.ndarray, C: np.ndarray, D: np.ndarray
) -> np.ndarray:
    """Return C (zI − A)⁻¹ B + D at each z, as an axis before the last two."""
    A, B, C, D = (matrix[..., None, :, :] for matrix in (A, B, C, D))
    return C @ np.linalg.solve(z[:, None, None] * np.eye(A.shape[-1]) - A, B) + D


def central_band(values: np.ndarray, level: float) -> Band:
    """Return the central interval over the first axis, without NaN; NaN where all of it is."""
    empty = np.isnan(values).all(0)
    limits = ((1 - level) / 2, (1 + level) / 2)
    quantiles = np.nanquantile(np.where(empty, 0.0, values), limits, axis=0)
    low, high = np.where(empty, np.nan, quantiles)
    return low, high


Inputs = tuple[Float[Array, "N Dx"], Float[Array, "N Du"]]  # scaled states and inputs


class FunctionEstimate(NamedTuple):
    """A learned function at N inputs.

    Parameters
    ----------
    mean, std
        Posterior mean and standard deviation.
    novelty
        For a transition, the mean of B / k(z, z) over draws and states; empty for other functions.
    draws
        Its mean under each draw, E[f | v].
    """

    mean: Float[np.ndarray, "N ..."]
    std: Float[np.ndarray, "N ..."]
    novelty: Float[np.ndarray, " N"]
    draws: Float[np.ndarray, "chain draw N ..."]

    @classmethod
    def of(
        cls,
        mean: Float[np.ndarray, "chain draw N ..."],
        variance: Float[np.ndarray, "chain draw N ..."],
        novelty: Float[np.ndarray, " N"],
    ) -> Self:
        """Return the estimate from means and variances under each draw."""
        std = np.sqrt(np.var(mean, axis=(0, 1)) + np.mean(variance, axis=(0, 1)))
        return cls(np.mean(mean, axis=(0, 1)), std, novelty, mean)


@in_double_precision
def transition(
    posterior: "Posterior", x: Float[ArrayLike, "N Dx"], u: Any = None
) -> FunctionEstimate:
    """Return the next state f(x, u) without process noise: draws, mean, std and novelty.

    Over draws, E f and Var f = Var(E[f | v]) + E[B].

    Parameters
    ----------
    posterior
        The posterior.
    x : array (N, Dx)
        States in the coordinates of `draws.states`.
    u : array (N, Du)
        Inputs in the user's units.
    """
    inputs = _inputs(posterior, x, u)
    mean, residual, share = map_draws(_transition_moments, posterior.model, posterior.draws, inputs)
    return FunctionEstimate.of(mean, residual, np.mean(share, axis=(0, 1, 3)))


def _transition_moments(model: GPSSM, draw: Draw, inputs: Inputs) -> tuple[Array, Array, Array]:
    """Return m + A v, B and B / k(z, z)."""
    step = model.transition()(*inputs)
    residual = jnp.maximum(step.residual, 0.0)
    prior = model.kernel.diagonal(jnp.concatenate(inputs, -1))
    share = residual / jnp.maximum(prior, jnp.finfo(prior.dtype).tiny)
    return step.given(draw.weights), residual.T, share.T


@in_double_precision
def unknown(posterior: "Posterior", values: Float[ArrayLike, "N ..."]) -> FunctionEstimate:
    """Return the unknown function in the physics: E h, and Var h = Var(E[h | v]) + E[B_h].

        gpssm.analysis.unknown(posterior, speeds).mean

    Parameters
    ----------
    posterior
        A fit with `physics=gpssm.Physics(...)`.
    values : array (N, ...)
        Values of the feature, the argument of the function, in the user's units.
    """
    kernel = posterior.model.kernel
    basis = posterior.model.basis
    if not isinstance(kernel, Feature) or not isinstance(basis, FeaturePoints):
        raise TypeError(
            "this model has no unknown function of a feature: fit one with "
            "fit(physics=gpssm.Physics(...))."
        )
    features = np.asarray(values, float)
    points = jnp.asarray(features.reshape(features.shape[0] if features.ndim else 1, -1))
    if points.shape[1] != basis.locations.shape[1] or not np.isfinite(features).all():
        raise ValueError(
            f"values must be finite, of shape (N, {basis.locations.shape[1]}); got "
            f"{features.shape}."
        )
    mean, variance = map_draws(_unknown_moments, posterior.model, posterior.draws, points)
    scale = kernel.state_scale[kernel.into]
    return jax.tree.map(lambda part: scale * part, FunctionEstimate.of(mean, variance, np.zeros(0)))


def _unknown_moments(
    model: GPSSM, draw: Draw, values: Float[Array, "N P"]
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    assert isinstance(model.kernel, Feature)
    assert isinstance(model.basis, FeaturePoints)
    return model.basis.unknown(model.kernel, draw.weights, values)


def _inputs(posterior: "Posterior", x: Float[ArrayLike, "N Dx"], u: Any) -> Inputs:
    """Return states and scaled inputs; a single pair may be one-dimensional."""
    states = to_columns(x, None, "x")[0]
    single = np.ndim(x) == 1
    states = states.T if single else states
    dim = posterior.model.state_dim
    if not states.size or states.shape[1] != dim:
        raise ValueError(f"x must have shape (N, {dim}), one state per row; got {states.shape}")
    if not (np.abs(states) < FAR).all():
        raise ValueError(f"x must be finite and in a plausible range; got {x!r}")
    if u is None:
        u = np.zeros((len(states), 0))
    u = align_columns(np.atleast_2d(u) if single else u, posterior.dataset.inputs, "u")
    if len(u) != len(states):
        raise ValueError(f"u must have one row for each of the {len(states)} states; got {len(u)}")
    if not np.isfinite(u).all():
        raise ValueError("u must be finite: it has NaN or infinite values")
    return jnp.asarray(states), jnp.asarray(posterior.dataset.encode_inputs(u))
