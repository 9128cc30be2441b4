"""Linear models that keep a wiring: zero coefficients, known rows, states that are outputs.

    x_{t+1} = A x_t + B u_t + b + N(0, Q),   y_t = C x_{t+1} + d + N(0, diag(σ²))

A and B have zeros where nothing enters, rows of integrators and delays, and Q is diagonal; C has a
one for a state that is an output. Subspace identification and its rotations know nothing of this,
so coefficients are found by descent: the free run's squared error from many random starts
(`output_error.py`), where there are controls, and from the best of them the likelihood. In the end
states are shifted and scaled one by one, which keeps every zero.
"""

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.core.runtime import in_double_precision, jit, on_host
from gpssm.data.series import Series
from gpssm.linear.output_error import PROCESS_STD, fit_from_starts, identity
from gpssm.linear.search import minimise
from gpssm.linear.state_space import (
    PROCESS_FLOOR,
    LinearFit,
    LinearSSM,
    log_marginal,
    noise_floor,
    smoothed_moments,
)
from gpssm.model.wiring import Wiring

EXACT_STD = 0.003  # √Q of a row that is known, for states of unit scale


class WiredModel(eqx.Module):
    """The coefficients that a wiring leaves free, unconstrained; what it forbids has no effect."""

    coefficients: Float[Array, "Dx Dz+1"]
    log_sums: Float[Array, " integrators"]  # log c
    emission: Float[Array, "Dy Dx+1"]
    log_process_std: Float[Array, " Dx"]
    log_noise_std: Float[Array, " Dy"]
    start: Float[Array, "num_series Dx"]
    wiring: Wiring = eqx.field(static=True)
    weights: ClassVar[None] = None  # of a curve at the output, which there is not

    @classmethod
    def random(
        cls, key: PRNGKeyArray, wiring: Wiring, num_outputs: int, num_series: int
    ) -> "WiredModel":
        """States that decay at their own pace, and are pushed in any direction."""
        keys, states = jax.random.split(key, 4), wiring.state_dim
        pace = jax.random.uniform(keys[0], (states,), minval=0.5, maxval=0.99)
        coefficients = 0.1 * jax.random.normal(keys[1], (states, states + wiring.input_dim + 1))
        return cls(
            coefficients.at[:, :states].add(jnp.diag(pace)).at[:, -1].set(0.0),
            jnp.log(
                jax.random.uniform(keys[2], (len(wiring.integrators),), minval=0.02, maxval=0.5)
            ),
            0.5 * jax.random.normal(keys[3], (num_outputs, states + 1)),
            jnp.full(states, jnp.log(PROCESS_STD)),
            jnp.full(num_outputs, jnp.log(0.3)),
            jnp.zeros((num_series, states)),
            wiring,
        )

    def rows(self) -> Float[Array, "Dx Dz+1"]:
        """[A B b]."""
        wiring = self.wiring
        free = jnp.asarray([(*row, any(row)) for row in wiring.mask])
        rows = jnp.where(free, self.coefficients, 0.0)
        for (row, column), log_sum in zip(wiring.integrators, self.log_sums, strict=True):
            rows = rows.at[row, row].set(1.0).at[row, column].set(jnp.exp(log_sum))
            rows = rows.at[row, -1].set(self.coefficients[row, -1])
        for row, column in wiring.delays:
            rows = rows.at[row, column].set(1.0)
        return rows

    def transition(self) -> Float[Array, "Dx Dx"]:
        """A."""
        return self.rows()[:, : self.wiring.state_dim]

    def pushes(self, u: Float[Array, "T Du"]) -> Float[Array, "T Dx"]:
        """B u + b."""
        rest = self.rows()[:, self.wiring.state_dim :]
        return u @ rest[:, :-1].T + rest[:, -1][None]

    def outputs(self) -> Float[Array, "Dy Dx+1"]:
        """[C d]."""
        emission = self.emission
        for state, output in self.wiring.measured:
            emission = emission.at[output].set(0.0).at[output, state].set(1.0)
        return emission

    @property
    def C(self) -> Float[Array, "Dy Dx"]:
        """The output map."""
        return self.outputs()[:, :-1]

    @property
    def d(self) -> Float[Array, " Dy"]:
        """Its offset."""
        return self.outputs()[:, -1]

    def linear(self) -> LinearSSM:
        """The state-space model of these coefficients."""
        rows, states = self.rows(), self.wiring.state_dim
        noise = jnp.where(
            jnp.asarray(self.wiring.learned), jnp.exp(2 * self.log_process_std), EXACT_STD**2
        )
        parts = (rows[:, :states], rows[:, states:-1], rows[:, -1], self.C, self.d)
        return LinearSSM(*parts, jnp.diag(noise + PROCESS_FLOOR), jnp.exp(self.log_noise_std))


@in_double_precision
@on_host()
def fit_wired(series: list[Series], wiring: Wiring, key: PRNGKeyArray) -> LinearFit:
    """The most likely linear model that keeps the wiring, and its smoothed states."""
    outputs = series[0].output_dim
    if wiring.input_dim:
        starts = [_free_runs(series, wiring, identity, key)[1]]
    else:
        starts = [
            WiredModel.random(item, wiring, outputs, len(series))
            for item in jax.random.split(key, 6)
        ]
    arrays = [jax.tree.map(jnp.asarray, item) for item in series]
    floor = noise_floor(np.concatenate([item.y for item in series]))
    fits = [
        minimise(_loss_and_gradient, start, arrays, floor, num_steps=200, maxcor=30)
        for start in starts
    ]
    linear = min(fits, key=lambda fit: fit[0])[1].linear()
    linear = linear._replace(noise_std=jnp.maximum(linear.noise_std, floor))
    states, spread = map(np.asarray, smoothed_moments(linear, arrays))
    ends = np.cumsum([len(item) + 1 for item in series])[:-1]
    uncertainty = np.diagonal(spread, axis1=1, axis2=2).mean(0)
    return _in_unit_scale(linear, np.split(states, ends), wiring, uncertainty, series)


@in_double_precision
@on_host()
def fit_wired_output_error(
    series: list[Series], wiring: Wiring, emission: Callable[[Array], Array], key: PRNGKeyArray
) -> LinearFit:
    """The model that keeps the wiring with the least squared error of its simulation."""
    noise, model, paths = _free_runs(series, wiring, emission, key)
    result = _in_unit_scale(model.linear(), paths, wiring, np.zeros(wiring.state_dim), series)
    process_cov = jnp.diag(jnp.where(jnp.asarray(wiring.learned), PROCESS_STD, EXACT_STD) ** 2)
    return result._replace(
        model=result.model._replace(noise_std=jnp.asarray(noise), process_cov=process_cov)
    )


def _free_runs(
    series: list[Series], wiring: Wiring, emission: Callable[[Array], Array], key: PRNGKeyArray
) -> tuple[np.ndarray, WiredModel, list[np.ndarray]]:
    """The noise, the model and the states of the best free run."""

    def begin(key: PRNGKeyArray, num_series: int) -> WiredModel:
        return WiredModel.random(key, wiring, series[0].output_dim, num_series)

    noise, model, paths = fit_from_starts(series, begin, emission, key)
    assert isinstance(model, WiredModel)
    return (
        noise,
        eqx.tree_at(lambda item: item.log_noise_std, model, jnp.log(jnp.asarray(noise))),
        paths,
    )


@jit
@jax.value_and_grad
def _loss_and_gradient(
    vector: Float[Array, " p"],
    like: WiredModel,
    series: list[Series],
    floor: Float[Array, " Dy"],
    doublings: int = 8,
) -> Float[Array, ""]:
    """−log p(y), a weak prior that keeps coefficients near one, and what an unstable A costs.

    A^n with n = 2^`doublings` may grow ten times a step: an integrator does, an unstable mode goes
    beyond.
    """
    linear = ravel_pytree(like)[1](vector).linear()
    linear = linear._replace(noise_std=jnp.sqrt(linear.noise_std**2 + floor**2))
    power = linear.transition
    for _ in range(doublings):
        power = power @ power
    size = 0.5 * jnp.log(jnp.sum(power**2) + 1e-12)
    excess = jnp.maximum(size - jnp.log(10.0 * 2.0**doublings), 0.0)
    return -log_marginal(linear, series) + 0.5 * 1e-2 * jnp.sum(vector**2) + 100 * excess**2


def _in_unit_scale(
    linear: LinearSSM,
    states: list[np.ndarray],
    wiring: Wiring,
    uncertainty: Float[np.ndarray, " Dx"],
    series: list[Series],
) -> LinearFit:
    """The same model with x' = (x − m) / s, so that states have mean 0 and variance 1, one by one.

    A state that is an output stays as it is, as does one that holds a control, and one that holds
    another state has that one's m and s.
    """
    everything = np.concatenate(states)
    middle, scale = everything.mean(0), np.sqrt(everything.var(0) + uncertainty)
    scale = np.where(scale > 1e-6, scale, 1.0)
    held = dict(wiring.delays)
    fixed = {state for state, _ in wiring.measured}
    for row in range(wiring.state_dim):
        source = row
        while source in held and source not in fixed:
            source = held[source]
        free = source < wiring.state_dim and source not in fixed
        middle[row], scale[row] = (middle[source], scale[source]) if free else (0.0, 1.0)
    A, B, b = (np.asarray(part) for part in (linear.transition, linear.control, linear.offset))
    variance = np.maximum(np.diag(np.asarray(linear.process_cov)) / scale**2, PROCESS_FLOOR)
    moved = linear._replace(
        transition=A * scale[None] / scale[:, None],
        control=B / scale[:, None],
        offset=(A @ middle + b - middle) / scale,
        C=np.asarray(linear.C) * scale[None],
        d=np.asarray(linear.d) + np.asarray(linear.C) @ middle,
        process_cov=np.diag(np.where(wiring.learned, variance, EXACT_STD**2)),
    )
    paths = [(path - middle) / scale for path in states]
    return LinearFit.of(LinearSSM(*map(jnp.asarray, moved)), paths, series)
