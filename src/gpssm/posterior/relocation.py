"""Inducing points that follow the data: one is added where they go, and the one that is missed least is dropped.

The outputs at the points Z are linear in the weights, f(Z) = m(Z) + L v, and that at another input z is linear in the
same weights and one more number: f(z) = m(z) + A(z) v + √B(z) ε. So with Z' = Z but for z in the place of point j,

    v' = L'⁻¹ (f(Z') − m(Z')) = T v + t ε,   [T, t] = L'⁻¹ [L, 0] with row j replaced by [A(z), √B(z)]

changes the basis of a Gaussian belief: Cov(v') = T Cov(v) Tᵀ + t tᵀ. What is known of f at the points that stay, and at
z, is what it was; nothing is known of f at point j any more but what the others say.

How much of f's prior variance is open at a new input is B(z)/k(z, z). How little would be lost with a point is what the
others leave open at it, 1/[k(Z, Z)⁻¹]_jj, as a share of k too. A point is moved where the first is much the larger.
"""

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.core.linalg import inverse_lower
from gpssm.core.runtime import jit
from gpssm.model.bases import JITTER, InducingPoints, parts_of
from gpssm.model.kernels import Kernel
from gpssm.model.model import GPSSM
from gpssm.posterior.rollout import Members

if TYPE_CHECKING:
    from gpssm.posterior.posterior import Posterior

LEAST = 0.1  # share of the prior variance that must be open at a new input
TIMES = 3.0  # how much larger it must be than what is lost
EVERY = 5  # rows for each point that is moved at most


class InducingLocations(NamedTuple):
    """Where the inducing points of a model are: the leaf's name, and the first of their weights."""

    name: str
    first: int


def find_points(model: GPSSM) -> InducingLocations:
    """The inducing points of a basis that has some."""
    first = 0
    for part in parts_of(model.basis):
        if isinstance(part, InducingPoints):
            return InducingLocations(
                next(name for name, leaf in model.leaves().items() if leaf is part.locations), first
            )
        first += part.size
    raise ValueError(
        "move_points=True needs inducing points, and this model's basis has none: leave it out"
    )


def check_points(posterior: "Posterior") -> InducingLocations:
    """The inducing points of a posterior, if its draws share them."""
    place = find_points(posterior.model)
    if place.name in posterior.draws.leaves:
        raise ValueError(
            "move_points=True needs draws that share their inducing points, and here chains have their own: take one, "
            "posterior.chain(0)"
        )
    return place


class Move(NamedTuple):
    """Point `drop` goes to `z`."""

    drop: int
    z: Float[np.ndarray, " Dz"]


def choose_moves(
    members: Members, place: InducingLocations, inputs: Float[np.ndarray, "N Dz"]
) -> list[Move]:
    """The moves that recent inputs ask for, one after the other, by the kernel of the first draw."""
    model = members.model.with_leaves({name: leaf[0] for name, leaf in members.leaves.items()})
    locations, moves = np.array(model.leaves()[place.name]), []
    for _ in range(-(-len(inputs) // EVERY)):
        open_, lost = (
            np.asarray(part)
            for part in _shares(model.kernel, jnp.asarray(locations), jnp.asarray(inputs))
        )
        best = int(np.argmax(open_))
        drop = int(np.argmin(lost[best]))
        if open_[best] < max(LEAST, TIMES * lost[best, drop]):
            break
        moves.append(Move(drop, inputs[best]))
        locations[drop] = inputs[best]
    return moves


@jit
def _shares(
    kernel: Kernel, locations: Float[Array, "M Dz"], z: Float[Array, "N Dz"]
) -> tuple[Float[Array, " N"], Float[Array, "N M"]]:
    """The share of f's variance that is open at each input, and at each point once that input is a point too."""
    whiten = InducingPoints(locations).factorise(kernel)
    gain = jnp.matmul(kernel(z, locations), whiten)
    prior = kernel.diagonal(z)
    residual = jnp.maximum(prior - jnp.sum(gain**2, -1), JITTER * prior)
    # The inverse of k with one more row is [K⁻¹ + aaᵀ/B, ...] with a = K⁻¹ k(Z, z) = L⁻ᵀ A.
    old = jnp.sum(whiten**2, -1)
    added = jnp.matmul(gain, whiten.mT) ** 2 / residual[:, :, None]
    alone = 1 / (old[:, None] + added) / kernel.diagonal(locations)[:, None]
    return jnp.mean(residual / prior, 0), jnp.mean(alone, 0)


@jit
def change_basis(
    members: Members, place: InducingLocations, drop: Array, z: Float[Array, " Dz"], new: GPSSM
) -> tuple[Float[Array, "S N N"], Float[Array, "S N N"]]:
    """T of v' = T v + t ε of each draw, and t tᵀ, over all weights; `new` is the model with the point moved."""
    state_dim, size = members.weights.shape[1:]

    def one(leaves: dict[str, Array]) -> tuple[Array, Array]:
        old, now = members.model.with_leaves(leaves), new.with_leaves(leaves)
        points, moved = (InducingPoints(model.leaves()[place.name]) for model in (old, now))
        count = points.size
        gain, residual = points.projector(old.kernel)(z[None])
        rows = jnp.concatenate(
            [inverse_lower(points.factorise(old.kernel).mT), jnp.zeros((state_dim, count, 1))], -1
        )
        row = jnp.concatenate([gain[:, 0], jnp.sqrt(jnp.maximum(residual, 0.0))], -1)
        rows = rows.at[:, drop].set(row)
        found = jnp.matmul(moved.factorise(now.kernel).mT, rows)
        whole = jnp.broadcast_to(jnp.eye(size), (state_dim, size, size))
        block = slice(place.first, place.first + count)
        whole = whole.at[:, block, block].set(found[:, :, :-1])
        noise = jnp.zeros((state_dim, size)).at[:, block].set(found[:, :, -1])
        at = jnp.arange(state_dim)
        spread = jnp.zeros((state_dim, size, state_dim, size))
        matrix = spread.at[at, :, at, :].set(whole).reshape(state_dim * size, -1)
        return matrix, spread.at[at, :, at, :].set(noise[:, :, None] * noise[:, None]).reshape(
            matrix.shape
        )

    if members.leaves:
        return jax.lax.map(one, members.leaves)
    return jax.tree.map(lambda part: part[None], one({}))
