"""Small models and series for all tests, which share their compiled programs."""

import jax.numpy as jnp
import numpy as np

from gpssm.data.series import Series
from gpssm.linear.state_space import LinearSSM
from gpssm.model.bases import Basis, Hilbert, InducingPoints, LinearFeatures, RandomFourier, Stacked
from gpssm.model.kernels import SquaredExponential
from gpssm.model.likelihoods import Gaussian
from gpssm.model.means import LinearMap
from gpssm.model.model import GPSSM

BASIS_NAMES = ("inducing", "hilbert", "fourier", "linear", "stacked")


def make_basis(name: str, state_dim: int, input_dim: int, num: int = 6) -> Basis:
    """One basis of each kind over [x; u]."""
    dim = state_dim + input_dim
    rng = np.random.default_rng(3)
    if name == "inducing":
        return InducingPoints(jnp.asarray(rng.normal(size=(num, dim))))
    if name == "hilbert":
        return Hilbert.build(jnp.full(dim, 0.1), jnp.full(dim, 4.0), num)
    if name == "fourier":
        return RandomFourier(jnp.asarray(rng.normal(size=(num // 2, dim))))
    if name == "linear":
        return LinearFeatures(jnp.asarray(rng.normal(size=(state_dim, dim + 1)) * 0.3 - 1.0))
    return Stacked(
        (
            make_basis("inducing", state_dim, input_dim, num),
            make_basis("linear", state_dim, input_dim),
        )
    )


def make_model(
    basis: str = "inducing",
    state_dim: int = 2,
    input_dim: int = 1,
    output_dim: int = 2,
    num: int = 6,
) -> GPSSM:
    """A model with unequal leaves, so that a mixed-up axis shows."""
    rng = np.random.default_rng(5)
    dim = state_dim + input_dim
    kernel = SquaredExponential(
        jnp.asarray(rng.normal(size=state_dim) * 0.3 - 0.5),
        jnp.asarray(rng.normal(size=(state_dim, dim)) * 0.2 + 0.5),
    )
    mean = LinearMap(
        jnp.asarray(0.5 * np.eye(state_dim) + 0.1 * rng.normal(size=(state_dim, state_dim))),
        jnp.asarray(rng.normal(size=(state_dim, input_dim)) * 0.3),
        jnp.asarray(rng.normal(size=state_dim) * 0.1),
    )
    likelihood = Gaussian.build(
        jnp.asarray(rng.normal(size=(output_dim, state_dim))),
        jnp.asarray(rng.normal(size=output_dim) * 0.2),
        jnp.asarray(0.3 + 0.2 * rng.random(output_dim)),
    )
    process_std = jnp.asarray(0.3 + 0.2 * rng.random(state_dim))
    return GPSSM.create(
        kernel, make_basis(basis, state_dim, input_dim, num), mean, likelihood, process_std
    )


def make_series(
    length: int = 7, input_dim: int = 1, output_dim: int = 2, missing: bool = False, seed: int = 0
) -> Series:
    """Random outputs and controls; `missing` removes a whole row and a single entry."""
    rng = np.random.default_rng(seed)
    y, u = rng.normal(size=(length, output_dim)), rng.normal(size=(length, input_dim))
    if missing:
        y[length // 2] = np.nan
        y[0, -1] = np.nan
    return Series(y, u)


def make_states(length: int, state_dim: int = 2, seed: int = 1) -> np.ndarray:
    """Random states x₀..x_T."""
    return np.random.default_rng(seed).normal(size=(length + 1, state_dim))


def linear_given(model: GPSSM, weights: np.ndarray) -> LinearSSM:
    """The "linear" model with two states as a linear-Gaussian model, given its weights."""
    change = np.exp(np.asarray(model.basis.log_scale)) * np.asarray(weights)
    return LinearSSM(
        model.mean.transition + change[:, :2],
        model.mean.input_map + change[:, 2:3],
        model.mean.offset + change[:, 3],
        model.likelihood.C,
        model.likelihood.d,
        jnp.diag(model.process_variance),
        jnp.exp(model.likelihood.log_std),
    )
