"""The model as a control engineer sees it: linear around an operating point, with bands over draws.

    x_{t+1} = f(x_t, u_t),   y_t = h(x_{t+1})          f = E[f | v] and h = E[y | x] of one draw

Around a point (x, u) with A = ∂f/∂x, B = ∂f/∂u at it and H = ∂h/∂x at f(x, u), deviations follow

    δx_{t+1} = A δx_t + B δu_t,   δy_t = C δx_t + D δu_t,   C = H A,   D = H B

since a control acts on the output of its own row. Poles are the eigenvalues of A, the impulse response is D, CB, CAB
and so on, the step response its running sum, and the frequency response C (zI − A)⁻¹ B + D at z = exp(2πi f dt).

Every draw has states in coordinates of its own, and its own operating point in them: an equilibrium x = f(x, u), or its
own state at a row of the training data. None of what is shown depends on the coordinates, so that draws and chains can
be compared. Outputs and controls are in the user's units. The bands are those of what the draws say of f; what the
weights leave open between inducing points, B(z), has no derivative of its own here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Complex, Float

from gpssm.core.runtime import in_double_precision
from gpssm.core.text import as_share, check_choice, check_whole, count, is_whole
from gpssm.data.columns import align_columns
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw
from gpssm.posterior.draws import map_draws, merge_chains
from gpssm.posterior.python_control import linear_systems
from gpssm.posterior.rollout import BOUNDS, training_box

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gpssm.posterior.posterior import Posterior

NEWTON = 60  # damped steps to an equilibrium
STILL = 1e-6  # |f(x, u) − x| at an equilibrium, in scaled units
NEAREST = 0.1  # share of the training rows, those with the nearest controls, from whose states the search starts
CURVE = 25  # points of a static curve
LEVEL = 0.9
MOST_STEPS = 100_000  # of a response


@dataclass(frozen=True, eq=False)
class Response:
    """Step or impulse responses of S draws: change of output j after a unit of input i, (S, n, Dy, Du)."""

    values: Float[np.ndarray, "S n Dy Du"]
    kind: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    dt: float | None = None
    units: Mapping[str, str] = field(default_factory=dict)
    time_unit: str = ""

    @property
    def times(self) -> Float[np.ndarray, " n"]:
        """Steps since the control changed, times dt where it is known."""
        return np.arange(self.values.shape[1]) * (self.dt or 1)

    @property
    def mean(self) -> Float[np.ndarray, "n Dy Du"]:
        """The mean over draws."""
        return np.mean(self.values, axis=0)

    def interval(
        self, level: float = LEVEL
    ) -> tuple[Float[np.ndarray, "n Dy Du"], Float[np.ndarray, "n Dy Du"]]:
        """The central interval over draws: (low, high)."""
        return central_band(self.values, as_share(level))

    def plot(self, level: float = LEVEL) -> "Figure":
        """A panel for each output and input: the median and the central interval over draws."""
        from gpssm.plots.dynamics import plot_response

        return plot_response(self, level)


@dataclass(frozen=True, eq=False)
class Bode:
    """Frequency responses G of S draws, (S, F, Dy, Du), at frequencies in cycles per unit of time, or per step."""

    frequencies: Float[np.ndarray, " F"]
    values: Complex[np.ndarray, "S F Dy Du"]
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    dt: float | None = None
    units: Mapping[str, str] = field(default_factory=dict)
    time_unit: str = ""

    @property
    def magnitude(self) -> Float[np.ndarray, "S F Dy Du"]:
        """|G| in decibels, 20 log₁₀ |G|."""
        return 20 * np.log10(np.maximum(np.abs(self.values), np.finfo(float).tiny))

    @property
    def phase(self) -> Float[np.ndarray, "S F Dy Du"]:
        """arg G in degrees, unwrapped along frequencies; draws begin within half a turn of their common direction."""
        phase = np.rad2deg(np.unwrap(np.angle(self.values), axis=1))
        first = self.values[:, :1] / np.maximum(np.abs(self.values[:, :1]), np.finfo(float).tiny)
        common = np.rad2deg(np.angle(np.sum(first, axis=0)))
        return phase - 360 * np.round((phase[:, :1] - common) / 360)

    def plot(self, level: float = LEVEL) -> "Figure":
        """Magnitude above phase for each output and input, medians with the central interval over draws."""
        from gpssm.plots.dynamics import plot_bode

        return plot_bode(self, level)


@dataclass(frozen=True, eq=False)
class Linearisation:
    """δx' = A δx + B δu, δy = C δx + D δu of S draws, around `x` and `y` of each draw at the control `u`.

        linear = posterior.linearise()
        linear.poles, linear.gain
        linear.step_response(50).plot()
        scipy.signal.dlti(linear.A[0], linear.B[0], linear.C[0], linear.D[0], dt=linear.dt)

    Outputs and controls are in the user's units, states in each draw's coordinates. `missing` counts the draws that
    have no equilibrium where they know f, and are left out. Where controls act `delay` rows later, δu is as they
    arrive; the responses are to controls as they are set, and begin so much later.
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
    units: Mapping[str, str] = field(default_factory=dict)
    time_unit: str = ""
    delay: tuple[int, ...] = ()
    missing: int = 0

    @property
    def poles(self) -> Complex[np.ndarray, "S Dx"]:
        """The eigenvalues of A of each draw, the largest first; those outside of the unit circle are unstable."""
        poles = np.linalg.eigvals(self.A).astype(complex)
        order = np.lexsort((-np.imag(poles), -np.abs(poles).round(12)), axis=-1)
        return np.take_along_axis(poles, order, -1)

    @property
    def gain(self) -> Float[np.ndarray, "S Dy Du"]:
        """The static gain C (I − A)⁻¹ B + D: how far outputs move in the end, for a unit of a control."""
        return self.C @ np.linalg.solve(np.eye(self.A.shape[-1]) - self.A, self.B) + self.D

    def impulse_response(self, n: int = 50) -> Response:
        """D, CB, CAB, .., CAⁿ⁻²B: outputs after a control that is one unit more for one row."""
        check_whole("n", n, 1)
        if n > MOST_STEPS:
            raise ValueError(
                f"a response has at most {MOST_STEPS} rows, by which all has settled; got n={n}"
            )
        self._check_inputs()
        values, state = [self.D], self.B
        for _ in range(n - 1):
            values.append(self.C @ state)
            state = self.A @ state
        found = np.stack(values, 1)
        for i, lag in enumerate(self.delay):
            found[..., i] = np.pad(found[..., i], ((0, 0), (lag, 0), (0, 0)))[:, :n]
        return Response(found, "impulse response", **self._signals)

    def step_response(self, n: int = 50) -> Response:
        """Outputs after a control that stays one unit more."""
        return Response(
            np.cumsum(self.impulse_response(n).values, axis=1), "step response", **self._signals
        )

    def bode(self, frequencies: Float[ArrayLike, " F"] | None = None) -> Bode:
        """G(z) = C (zI − A)⁻¹ B + D at z = exp(2πi f dt), times z⁻ᵈ for a control with a delay of d rows.

        :param frequencies: in cycles per unit of dt, or per step; by default 200 up to the half of the sampling rate.
        """
        self._check_inputs()
        dt = self.dt or 1.0
        f = np.geomspace(5e-4, 0.5, 200) / dt
        if frequencies is not None:
            f = np.atleast_1d(_numbers("frequencies", frequencies))
            if f.ndim != 1 or not f.size:
                raise ValueError(f"frequencies is a list of them; got an array of shape {f.shape}")
        z = np.exp(2j * np.pi * f * dt)[:, None, None]
        resolvent = np.linalg.solve(
            z * np.eye(self.A.shape[-1]) - self.A[:, None], self.B[:, None].astype(complex)
        )
        late = z ** -np.array(self.delay or (0,))
        return Bode(f, late * (self.C[:, None] @ resolvent + self.D[:, None]), **self._signals)

    @property
    def central(self) -> int:
        """The number of the draw whose frequency response is nearest to the median over draws."""
        values = self.bode().values
        middle = np.median(np.real(values), axis=0) + 1j * np.median(np.imag(values), axis=0)
        size = np.maximum(np.mean(np.abs(middle), axis=0), np.finfo(float).tiny)
        return int(np.argmin(np.sum((np.abs(values - middle) / size) ** 2, axis=(1, 2, 3))))

    def to_control(self, *, each: bool = False) -> Any:
        """Return a `control.StateSpace` of python-control, of deviations from the operating point.

        Draws have coordinates of their own, so that an average of their matrices means nothing:
        one draw stands for all, the one whose frequency response is nearest to the median.

        Parameters
        ----------
        each
            Whether to return a list with one system per draw instead.
        """
        return linear_systems(self, each)

    def plot(self, level: float = LEVEL) -> "Figure":
        """The poles of all draws in the unit circle."""
        from gpssm.plots.dynamics import plot_poles

        return plot_poles(self, level)

    def to_dataframe(self) -> Any:
        """A pandas DataFrame with a row a pole: its magnitude over draws, and what it means in steps.

        `time constant` is −1 / log |p|, the steps (times dt) in which it falls to a third; `period` is 2π / |arg p|.
        """
        import pandas

        dt = self.dt or 1.0
        with np.errstate(divide="ignore"):
            magnitude = np.abs(self.poles)
            columns = {
                "magnitude": magnitude,
                "time constant": np.where(magnitude < 1, -dt / np.log(magnitude), np.inf),
                "period": 2 * np.pi * dt / np.abs(np.angle(self.poles)),
            }
        quantiles = {"5%": 0.05, "median": 0.5, "95%": 0.95}
        table = {
            f"{name} {label}": np.quantile(values, q, axis=0, method="nearest")
            for name, values in columns.items()
            for label, q in quantiles.items()
        }
        return pandas.DataFrame(
            table, index=pandas.RangeIndex(1, self.A.shape[-1] + 1, name="pole")
        )

    def __repr__(self) -> str:
        point = ", ".join(
            f"{name}={value:.4g}" for name, value in zip(self.inputs, self.u, strict=True)
        )
        largest = np.quantile(np.abs(self.poles[:, 0]), (0.05, 0.95))
        return (
            f"Linearisation({count(len(self.A), 'draw')} at {point or 'the equilibrium'}, "
            f"largest pole {largest[0]:.3f} to {largest[1]:.3f})"
        )

    @property
    def _signals(self) -> dict[str, Any]:
        return {
            name: getattr(self, name) for name in ("outputs", "inputs", "dt", "units", "time_unit")
        }

    def _check_inputs(self) -> None:
        if not self.inputs:
            raise ValueError(
                "the model has no controls, and so no response to them; see .poles for its own dynamics"
            )


@dataclass(frozen=True, eq=False)
class StaticGain:
    """Where outputs settle while one control is held at N `values` and the others at `u`, under S draws.

    `settled` (S, N, Dy) and its slope `gain` (S, N, Dy) are in the user's units, NaN where a draw has no equilibrium
    that it knows anything about. `stable` (S, N) says whether it would stay there.
    """

    input: str
    values: Float[np.ndarray, " N"]
    u: Float[np.ndarray, " Du"]
    settled: Float[np.ndarray, "S N Dy"]
    gain: Float[np.ndarray, "S N Dy"]
    stable: np.ndarray
    outputs: tuple[str, ...]
    units: Mapping[str, str] = field(default_factory=dict)

    @property
    def found(self) -> Float[np.ndarray, " N"]:
        """The share of the draws that have an equilibrium."""
        return np.mean(np.isfinite(self.settled[..., 0]), axis=0)

    @property
    def median(self) -> Float[np.ndarray, "N Dy"]:
        """The median over draws; NaN where fewer than half of them have an equilibrium."""
        return central_band(self.known(self.settled), 0.0)[0]

    def interval(
        self, level: float = LEVEL
    ) -> tuple[Float[np.ndarray, "N Dy"], Float[np.ndarray, "N Dy"]]:
        """The central interval over draws: (low, high); NaN where fewer than half of them have an equilibrium."""
        return central_band(self.known(self.settled), as_share(level))

    def known(self, values: Float[np.ndarray, "S N Dy"]) -> Float[np.ndarray, "S N Dy"]:
        """The values with NaN where fewer than half of the draws have an equilibrium."""
        return np.where((self.found >= 0.5)[:, None], values, np.nan)

    def plot(self, level: float = LEVEL) -> "Figure":
        """The curve with its band above its slope, a column an output."""
        from gpssm.plots.dynamics import plot_static_gain

        return plot_static_gain(self, level)


@in_double_precision
def linearise(
    posterior: "Posterior", at: Any = None, row: int | None = None, index: int = -1
) -> Linearisation:
    """See `Posterior.linearise`."""
    dataset = posterior.dataset
    series = dataset.experiment(index)
    if at is not None and row is not None:
        raise ValueError("at and row both name an operating point: give one of them")
    x = np.zeros(posterior.model.state_dim)
    near = [np.zeros((1, len(one))) for one in dataset.experiments]
    if row is not None:
        if not is_whole(row) or not -len(series) <= row < len(series):
            raise IndexError(
                f"training series {index} has {len(series)} rows, counted from 0; got row {row}"
            )
        near[index][0, row] = 1.0
        control, rest = dataset.acting[index].u[row], False
    elif isinstance(at, tuple):
        if len(at) != 2:
            raise ValueError(f"at=(x, u) is a state and the controls; got {at!r}")
        x, control = _numbers("the state", at[0]), _control(posterior, at[1])
        if x.shape != (posterior.model.state_dim,):
            raise ValueError(
                f"at=(x, u) needs a state of {posterior.model.state_dim} numbers; got shape {x.shape}"
            )
        rest = False
    else:
        control, rest = _control(posterior, at), True
        near = _nearest(posterior, control[None])
    found = _local(posterior, control[None], near, x, rest)
    known = np.isfinite(found.x[:, 0]).all(-1)
    if not known.any():
        raise ValueError(
            "no draw has an equilibrium at these controls where it has seen data: the system may integrate, drift or "
            "swing. Linearise at a row of the training data, row=..., or at a state of your own, at=(x, u)"
        )
    A, B, C, D, x, y = (part[known, 0] for part in found)
    signals = {
        "outputs": series.outputs,
        "inputs": series.inputs,
        "dt": series.dt,
        "units": series.units,
    }
    seconds = series.axis is not None and series.axis.dates
    signals |= {"time_unit": "s" if seconds else "", "delay": dataset.delay}
    return Linearisation(A, B, C, D, x, control, y, **signals, missing=int(np.sum(~known)))


@in_double_precision
def static_gain(
    posterior: "Posterior",
    input: str | None = None,
    values: Float[ArrayLike, " N"] | None = None,
    at: Any = None,
) -> StaticGain:
    """See `Posterior.static_gain`."""
    series = posterior.dataset.experiments[0]
    if not series.inputs:
        raise ValueError("the model has no controls, and so no static gain")
    input = series.inputs[0] if input is None else input
    check_choice("input", input, series.inputs)
    column = series.inputs.index(input)
    if values is None:
        seen = np.concatenate([one.u[:, column] for one in posterior.dataset.experiments])
        values = np.linspace(np.quantile(seen, 0.01), np.quantile(seen, 0.99), CURVE)
    levels, held = np.atleast_1d(_numbers("values", values)), _control(posterior, at)
    if levels.ndim != 1 or not levels.size:
        raise ValueError(
            f"values is a list of values of {input}; got an array of shape {levels.shape}"
        )
    controls = np.repeat(held[None], len(levels), 0)
    controls[:, column] = levels
    found = _local(
        posterior,
        controls,
        _nearest(posterior, controls),
        np.zeros(posterior.model.state_dim),
        rest=True,
    )
    eye = np.eye(posterior.model.state_dim)
    lost = np.asarray(np.isnan(found.x).any(axis=-1))[..., None]
    A = np.where(lost[..., None], 0 * eye, found.A)
    gain = (found.C @ np.linalg.solve(eye - A, found.B) + found.D)[..., column]
    gain = np.where(lost, np.nan, gain)
    stable = ~lost[..., 0] & (np.abs(np.linalg.eigvals(A)).max(-1) < 1)
    return StaticGain(input, levels, held, found.y, gain, stable, series.outputs, series.units)


class _Local(NamedTuple):
    """The linear models of S draws at N points, in the user's units; NaN where there is no equilibrium."""

    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    D: np.ndarray
    x: np.ndarray
    y: np.ndarray


def _local(
    posterior: "Posterior",
    controls: Float[np.ndarray, "N Du"],
    near: list[np.ndarray],
    x: np.ndarray,
    rest: bool,
) -> _Local:
    """The linear model of each draw at N controls, from its training states weighed by `near`, plus x; or at rest."""
    model, dataset, scaler = posterior.model, posterior.dataset, posterior.dataset.scaler
    offset = jnp.asarray(np.repeat(x[None], len(controls), 0))
    inputs = (
        jnp.asarray(dataset.encode_inputs(controls)),
        [jnp.asarray(one) for one in near],
        offset,
    )
    packed = map_draws(_at_rest if rest else _at_start, model, posterior.draws, inputs)
    dx, du, dy = model.state_dim, controls.shape[1], len(scaler.output_std)
    sizes = np.cumsum([dx * dx, dx * du, dy * dx, dx, dy])
    A, B, H, x, y, gap = np.split(merge_chains(packed), sizes, axis=-1)
    lead = A.shape[:2]
    A, H = A.reshape(*lead, dx, dx), H.reshape(*lead, dy, dx) * np.array(scaler.output_std)[:, None]
    B = B.reshape(*lead, dx, du) / np.array(scaler.input_std)
    y = dataset.decode(y)
    if rest:
        box = training_box(posterior, np.arange(len(x)), BOUNDS)
        away = np.asarray(box.away(jnp.asarray(x), jnp.zeros((len(x), dx))))
        found = ((gap[..., 0] < STILL) & (away <= BOUNDS))[..., None]
        x, y = np.where(found, x, np.nan), np.where(found, y, np.nan)
    return _Local(A, B, H @ A, H @ B, x, y)


Points = tuple[Float[Array, "N Du"], list[Float[Array, "N T"]], Float[Array, "N Dx"]]


def _at_start(model: GPSSM, draw: Draw, inputs: Points) -> Float[Array, "N P"]:
    return _packed(model, draw, inputs, 0)


def _at_rest(model: GPSSM, draw: Draw, inputs: Points) -> Float[Array, "N P"]:
    return _packed(model, draw, inputs, NEWTON)


def _packed(model: GPSSM, draw: Draw, inputs: Points, steps: int) -> Float[Array, "N P"]:
    """A, B, ∂h/∂x, x, h and |f − x|, flat, after so many steps towards an equilibrium.

    The steps are those of Levenberg and Marquardt: (JᵀJ + λI) δ = −Jᵀg with g = f(x, u) − x, and λ ten times larger
    after a step that did not help. Where I − A is singular they end where |g| is least.
    """
    controls, near, offset = inputs
    move = model.transition()

    def following(x: Float[Array, " Dx"], u: Float[Array, " Du"]) -> Float[Array, " Dx"]:
        return move(x[None], u[None]).given(draw.weights)[0]

    def output(x: Float[Array, " Dx"]) -> Float[Array, " Dy"]:
        return model.likelihood.moments(x[None])[0][0]

    def one(x: Float[Array, " Dx"], u: Float[Array, " Du"]) -> Float[Array, " P"]:
        def gap(x: Float[Array, " Dx"]) -> Float[Array, " Dx"]:
            return following(x, u) - x

        def improve(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            x, damping = carry
            g, J = gap(x), jax.jacfwd(gap)(x)
            tried = x - jnp.linalg.solve(J.T @ J + damping * jnp.eye(len(x)), J.T @ g)
            better = jnp.sum(gap(tried) ** 2) < jnp.sum(g**2)
            return jnp.where(better, tried, x), jnp.clip(
                jnp.where(better, damping / 10, damping * 10), 1e-14, 1e8
            )

        x, _ = jax.lax.fori_loop(0, steps, improve, (x, jnp.asarray(1e-3)))
        A, B = jax.jacfwd(following, (0, 1))(x, u)
        after = following(x, u)
        parts = (A, B, jax.jacfwd(output)(after), x, output(after), jnp.max(jnp.abs(gap(x)))[None])
        return jnp.concatenate([part.ravel() for part in parts])

    start = sum(
        (weights @ path[:-1] for weights, path in zip(near, draw.states, strict=True)), offset
    )
    return jax.vmap(one)(start, controls)


def _control(posterior: "Posterior", at: Any) -> Float[np.ndarray, " Du"]:
    """Controls in the user's units as given, in order or by name; else the mean of the training data."""
    dataset = posterior.dataset
    names, mean = (
        dataset.inputs,
        np.mean(np.concatenate([one.u for one in dataset.experiments]), axis=0),
    )
    if at is None:
        return mean
    if isinstance(at, Mapping):
        unknown = [name for name in at if name not in names]
        if unknown:
            raise ValueError(
                f"the model has the controls {', '.join(names)}; got {', '.join(map(str, unknown))}"
            )
        return _numbers(
            "at", [at.get(name, value) for name, value in zip(names, mean, strict=True)]
        )
    return align_columns(np.atleast_2d(_numbers("at", at)), names, "u")[0]


def _numbers(name: str, values: Any) -> np.ndarray:
    """An array of finite numbers."""
    try:
        found = np.asarray(values, float)
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numbers; got {type(values).__name__} ({error})") from None
    if not np.isfinite(found).all():
        raise ValueError(f"{name} must be finite; got {values!r}")
    return found


def _nearest(
    posterior: "Posterior", controls: Float[np.ndarray, "N Du"]
) -> list[Float[np.ndarray, "N T"]]:
    """Weights on the training rows of each series: equal ones for those whose controls are nearest, else none."""
    dataset = posterior.dataset
    seen = np.concatenate([one.u for one in dataset.scaled])
    wanted = dataset.encode_inputs(controls)
    distance = np.linalg.norm(wanted[:, None] - seen[None], axis=-1)
    number = max(int(NEAREST * len(seen)), 1) if seen.shape[1] else len(seen)
    weights = np.zeros(distance.shape)
    np.put_along_axis(
        weights, np.argsort(distance, axis=1, kind="stable")[:, :number], 1 / number, axis=1
    )
    return np.split(weights, np.cumsum([len(one) for one in dataset.experiments])[:-1], axis=1)


def central_band(values: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """The central interval over the first axis of what is not NaN; NaN where all of it is."""
    nothing = np.isnan(values).all(0)
    limits = ((1 - level) / 2, (1 + level) / 2)
    low, high = np.where(
        nothing, np.nan, np.nanquantile(np.where(nothing, 0.0, values), limits, axis=0)
    )
    return low, high
