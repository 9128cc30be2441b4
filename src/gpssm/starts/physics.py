"""Physics with an unknown part: what is known is written down, what is not is one scalar function
to be learned.

    x_{t+1} = step(x_t, u_t, θ) + e_into g(x_t, u_t) h(φ(x_t, u_t)) + noise,    h ~ GP(0, k)
    y_t = C x_{t+1} + noise

`step` is physics with parameters θ; h is what nobody knows, friction as a function of the speed,
say; φ is what it depends on, and g what is known of how it enters transition `into`. This is linear
in the weights of h, so that the model is one like any other: collapsed target, conditionals and
samplers are exact as they are. All functions are of states and controls in the user's units,
written in JAX.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.core.runtime import in_double_precision
from gpssm.data.scaler import Scaler
from gpssm.data.series import Series
from gpssm.linear.arx import interpolated
from gpssm.model.bases import FeaturePoints
from gpssm.model.kernels import Feature, make_kernel
from gpssm.model.likelihoods import Gaussian
from gpssm.model.means import PhysicsMean
from gpssm.model.model import GPSSM
from gpssm.model.priors import InverseGamma, Normal, Prior
from gpssm.starts.build import Start


@dataclasses.dataclass(frozen=True)
class Unknown:
    """A scalar function h of a feature of state and input, and where it enters.

    Parameters
    ----------
    feature
        φ(x, u), a number (or a vector).
    into
        The state whose transition it enters.
    at
        Values of the feature that the data may reach (N,) or (N, P): inducing points lie there.
    factor
        G(x, u), what is known of how it enters; one without it.
    size
        How large h may be: the prior standard deviation of its values.
    length
        Over what difference of the feature h changes; a fifth of the range of `at` without it.
    kernel
        A stationary kernel by name; "matern32" for what may have a kink.
    """

    feature: Callable[[Array, Array], Array]
    into: int
    at: Any
    factor: Callable[[Array, Array], Array] | None = None
    size: float = 1.0
    length: float | None = None
    kernel: str = "se"


@dataclasses.dataclass(frozen=True)
class Physics:
    """Known equations of a system in the user's units, for `gpssm.fit(series, physics=...)`.

    Parameters
    ----------
    step
        (x, u, θ) → the next x, for one state (Dx,) and one control (Du,).
    unknown
        What is not known.
    outputs
        C (Dy, Dx), the states that are seen.
    states
        (y, u) → states (T+1, Dx) to start from, roughly right; missing outputs come interpolated.
    scale
        Sizes of the states (Dx,): x₀ ~ N(0, scale²), and noises are relative to them.
    parameters
        The parameters θ by name, each a prior, whose mean is the value to start from.
    noise
        Standard deviation of a step's noise (Dx,) to start from; a hundredth of the scale without
        it.
    exact
        Rows of `step` that are exact, whose noise is held there.
    """

    step: Callable[[Array, Array, dict[str, Array]], Array]
    unknown: Unknown
    outputs: Any
    states: Callable[[np.ndarray, np.ndarray], np.ndarray]
    scale: Sequence[float]
    parameters: Mapping[str, Prior] = dataclasses.field(default_factory=dict)
    noise: Sequence[float] | None = None
    exact: Sequence[int] = ()

    @in_double_precision
    def start(self, raw: Sequence[Series], scaler: Scaler) -> Start:
        """The model of series in the user's units once they are scaled, and the states to begin
        with.
        """
        size, unknown = len(self.scale), self.unknown
        scale = tuple(map(float, self.scale))
        inputs = tuple(
            (float(m), float(s)) for m, s in zip(scaler.input_mean, scaler.input_std, strict=True)
        )
        C = np.asarray(self.outputs, float)
        self._check(C, raw[0])
        at = np.asarray(unknown.at, float).reshape(len(unknown.at), -1)
        length = unknown.length or 0.2 * float(np.ptp(at, axis=0).max())
        inner = make_kernel(
            unknown.kernel, 1, at.shape[1], (unknown.size / scale[unknown.into]) ** 2, length
        )
        noise = (
            np.full(size, 0.01)
            if self.noise is None
            else np.asarray(self.noise, float) / np.asarray(scale)
        )
        mean = {
            name: jnp.asarray(getattr(prior, "mean", 0.0), float)
            for name, prior in self.parameters.items()
        }
        std = np.asarray(scaler.output_std)
        model = GPSSM.create(
            Feature(inner, unknown.feature, unknown.factor, unknown.into, scale, inputs),
            FeaturePoints(jnp.asarray(at)),
            PhysicsMean(self.step, mean, scale, inputs),
            Gaussian.build(
                jnp.asarray(C * np.asarray(scale) / std[:, None]),
                jnp.asarray(-np.asarray(scaler.output_mean) / std),
                jnp.full(len(C), 0.03),  # of the outputs' standard deviations
            ),
            jnp.asarray(noise),
        )
        lengths = [name for name in model.leaves() if name.endswith("log_lengthscale")]
        variances = [name for name in model.leaves() if name.endswith("log_variance")]
        values = model.leaves()
        priors: dict[str, Prior] = {name: Normal(values[name], 0.5) for name in lengths}
        priors |= {name: Normal(values[name], 1.0) for name in variances}
        priors |= {f"mean.parameters.{name}": prior for name, prior in self.parameters.items()}
        # Noise that is held is worth the rows; the rest is nearly free, but for its size.
        rows, held = sum(len(rows) for rows in raw), np.isin(np.arange(size), self.exact)
        shape = np.where(held, 0.5 * rows, 1.0)
        priors["log_process_std"] = InverseGamma(
            shape, shape * np.where(held, noise**2, np.minimum(noise**2, 1e-3))
        )
        model = model.with_priors(priors).with_roles(
            "fix", "basis.*", "likelihood.C", "likelihood.d"
        )
        paths = [
            np.asarray(self.states(interpolated(rows).y, rows.u), float) / np.asarray(scale)
            for rows in raw
        ]
        if [path.shape for path in paths] != [(len(rows) + 1, size) for rows in raw]:
            shapes = [(len(rows) + 1, size) for rows in raw]
            raise ValueError(
                f"states gives paths of the shapes {shapes}, x₀ first; got "
                f"{[path.shape for path in paths]}."
            )
        return Start(model, paths)

    def _check(self, C: Float[np.ndarray, "Dy Dx"], series: Series) -> None:
        size, unknown = len(self.scale), self.unknown
        if C.shape != (series.output_dim, size):
            raise ValueError(
                f"outputs is a matrix of shape {(series.output_dim, size)}, outputs by states; got "
                f"{C.shape}."
            )
        if not 0 <= unknown.into < size:
            raise ValueError(f"into is the number of a state, 0 to {size - 1}; got {unknown.into}.")
        x, u = jnp.zeros(size), jnp.zeros(series.input_dim)
        values = {name: jnp.zeros(()) for name in self.parameters}
        for name, function, expected in (
            ("step", lambda: self.step(x, u, values), (size,)),
            (
                "factor",
                lambda: jnp.zeros(()) if unknown.factor is None else unknown.factor(x, u),
                (),
            ),
        ):
            try:
                shape = jax.eval_shape(function).shape
            except (TypeError, KeyError, AttributeError, IndexError) as error:
                raise ValueError(
                    f"{name} could not be called with x of {size} and u of {u.size} numbers: "
                    f"{error}"
                ) from error
            if shape != expected:
                raise ValueError(f"{name} gives the shape {shape}; expected {expected}.")
