"""Known physics with one unknown scalar function to be learned.

    x_{t+1} = step(x_t, u_t, θ) + e_into g(x_t, u_t) h(φ(x_t, u_t)) + noise,    h ~ GP(0, k)
    y_t = C x_{t+1} + noise

`step` is the known physics with parameters θ. h is the unknown function, such as friction as a
function of speed; φ is its argument, and g the known factor with which it enters transition `into`.
The transition is linear in the weights of h, so the collapsed target, the conditionals and the
samplers apply unchanged. All functions take states and inputs in the user's units and are written
in JAX.
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
        φ(x, u), a number or a vector.
    into
        The state whose transition h enters.
    at
        Values (N,) or (N, P) of the feature at which inducing points are placed; they should cover
        the data.
    factor
        g(x, u), the known factor of h; 1 by default.
    size
        Prior standard deviation of the values of h.
    length
        Lengthscale of h; by default a fifth of the range of `at`.
    kernel
        A stationary kernel by name; "matern32" allows kinks.
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
        (x, u, θ) → the next x, for one state (Dx,) and one input (Du,).
    unknown
        The unknown function, or None.
    outputs
        C (Dy, Dx), which maps states to outputs.
    states
        (y, u) → approximate starting states (T+1, Dx); missing outputs are interpolated beforehand.
    scale
        Scales of the states (Dx,): x₀ ~ N(0, scale²), and noise levels are relative to them.
    parameters
        Priors of the parameters θ by name; their means are the initial values.
    noise
        Initial standard deviation of the process noise (Dx,); by default a hundredth of the scale.
    exact
        Rows of `step` that are exact; their process noise is fixed.
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
        """Return the model of the scaled series, and the starting states."""
        C = np.asarray(self.outputs, float)
        self._check(C, raw[0])
        scale = np.asarray(self.scale, float)
        noise = np.full(len(scale), 0.01)
        if self.noise is not None:
            noise = np.asarray(self.noise, float) / scale
        model = self._model(C, noise, scaler)
        priors = self._priors(model, noise, sum(len(rows) for rows in raw))
        model = model.with_priors(priors).with_roles(
            "fix", "basis.*", "likelihood.C", "likelihood.d"
        )
        paths = [
            np.asarray(self.states(interpolated(rows).y, rows.u), float) / scale for rows in raw
        ]
        shapes = [(len(rows) + 1, len(scale)) for rows in raw]
        if [path.shape for path in paths] != shapes:
            raise ValueError(
                f"states must return paths of shapes {shapes}, x₀ first; got "
                f"{[path.shape for path in paths]}."
            )
        return Start(model, paths)

    def _model(
        self, C: Float[np.ndarray, "Dy Dx"], noise: Float[np.ndarray, " Dx"], scaler: Scaler
    ) -> GPSSM:
        """The model in scaled units, at the initial values."""
        unknown, scale = self.unknown, tuple(map(float, self.scale))
        inputs = tuple(
            (float(m), float(s)) for m, s in zip(scaler.input_mean, scaler.input_std, strict=True)
        )
        at = np.asarray(unknown.at, float).reshape(len(unknown.at), -1)
        length = unknown.length or 0.2 * float(np.ptp(at, axis=0).max())
        inner = make_kernel(
            unknown.kernel, 1, at.shape[1], (unknown.size / scale[unknown.into]) ** 2, length
        )
        mean = {
            name: jnp.asarray(getattr(prior, "mean", 0.0), float)
            for name, prior in self.parameters.items()
        }
        std = np.asarray(scaler.output_std)
        return GPSSM.create(
            Feature(inner, unknown.feature, unknown.factor, unknown.into, scale, inputs),
            FeaturePoints(jnp.asarray(at)),
            PhysicsMean(self.step, mean, scale, inputs),
            Gaussian.build(
                jnp.asarray(C * np.asarray(scale) / std[:, None]),
                jnp.asarray(-np.asarray(scaler.output_mean) / std),
                jnp.full(len(C), 0.03),  # relative to the standard deviations of the outputs
            ),
            jnp.asarray(noise),
        )

    def _priors(self, model: GPSSM, noise: Float[np.ndarray, " Dx"], rows: int) -> dict[str, Prior]:
        """The priors: of the kernel and of the noise around their initial values."""
        priors: dict[str, Prior] = {
            name: Normal(leaf, 0.5 if name.endswith("log_lengthscale") else 1.0)
            for name, leaf in model.leaves().items()
            if name.endswith(("log_lengthscale", "log_variance"))
        }
        priors |= {f"mean.parameters.{name}": prior for name, prior in self.parameters.items()}
        # Noise of exact rows is worth the data; the rest is nearly free, but for its size.
        exact = np.isin(np.arange(len(noise)), self.exact)
        shape = np.where(exact, 0.5 * rows, 1.0)
        scale = shape * np.where(exact, noise**2, np.minimum(noise**2, 1e-3))
        return priors | {"log_process_std": InverseGamma(shape, scale)}

    def _check(self, C: Float[np.ndarray, "Dy Dx"], series: Series) -> None:
        size, unknown = len(self.scale), self.unknown
        if C.shape != (series.output_dim, size):
            raise ValueError(
                f"outputs must be a matrix of shape {(series.output_dim, size)}, outputs by "
                f"states; got {C.shape}."
            )
        if not 0 <= unknown.into < size:
            raise ValueError(
                f"into must be the number of a state, 0 to {size - 1}; got {unknown.into}."
            )
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
                raise ValueError(f"{name} returns the shape {shape}; expected {expected}.")
