"""A basis turns a kernel into a transition that is linear in whitened Gaussian weights:

    f_d(z) | v_d ~ N( m_d(z) + A_d(z)·v_d , B_d(z) ),   v_d ~ N(0, I)

`gain` is A and `residual` is B. Everything that does not depend on z is worked out once by `projector`, so
that scans over time and chains of gradients only multiply matrices.
"""

import abc
import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.kernels import Kernel


class Projection(NamedTuple):
    """f_d(z_n) | v_d ~ N(m_d + gain_dn · v_d, residual_dn) at N inputs."""

    gain: Float[Array, "Dx N M"]
    residual: Float[Array, "Dx N"]


Projector = Callable[[Float[Array, "N Dz"]], Projection]


class Basis(eqx.Module):
    """What turns (kernel, z) into (A, B)."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """M, the number of weights a state dimension."""

    @abc.abstractmethod
    def projector(self, kernel: Kernel) -> Projector:
        """The function z → (A(z), B(z)) with all factorisations done."""


class Stacked(Basis):
    """Independent parts side by side: gains are concatenated, residuals add up."""

    parts: tuple[Basis, ...]

    @property
    def size(self) -> int:
        """The sum of the parts' sizes."""
        return sum(part.size for part in self.parts)

    def projector(self, kernel: Kernel) -> Projector:
        """A = [A₁, A₂, ...],  B = ΣB_i."""
        projectors = [part.projector(kernel) for part in self.parts]

        def project(z: Float[Array, "N Dz"]) -> Projection:
            gains, residuals = zip(*(one(z) for one in projectors), strict=True)
            return Projection(jnp.concatenate(gains, -1), functools.reduce(jnp.add, residuals))

        return project


def parts_of(basis: Basis) -> list[Basis]:
    """What a basis is made of, side by side, however it was stacked; itself if it is one piece."""
    return [one for part in basis.parts for one in parts_of(part)] if isinstance(basis, Stacked) else [basis]
