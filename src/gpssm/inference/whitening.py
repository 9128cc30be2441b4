"""Coordinates in which the collapsed posterior of the states is nearly standard normal, whatever the noises.

Linearised at a path, the joint density of states and weights has an arrow-shaped precision: block-tridiagonal Λ in the
states, bordered by the weights. Integrating the weights out leaves Λ − U Uᵀ, with U of low rank. With Λ = L Lᵀ,

    x = centre + L⁻ᵀ (I + V (S − I) Vᵀ) ξ

where V spans the directions that the weights soften (the leading left singular vectors of L⁻¹U), and S is an inverse
root of the curvature within that span. The directions W = L⁻ᵀV of the states are found now and then (`whiten`); L and
S are made anew for the noises of the moment (`Whitening.at`), since a step that suits one noise is far too long for
half of it. All of it costs O(T).
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gpssm.core.chunks import map_rows, sum_rows
from gpssm.core.linalg import (
    BlockCholesky,
    BlockTridiagonal,
    block_cholesky,
    cholesky,
    fits_whole,
    gram,
    inverse_lower,
    inverse_root,
    multiply_lower,
    multiply_upper,
    one_by_one,
    solve_lower,
    solve_upper,
)
from gpssm.data.padding import moves, real_states
from gpssm.data.series import Series
from gpssm.inference.settings import States
from gpssm.model.likelihoods import observed
from gpssm.model.model import GPSSM
from gpssm.model.target import transition_statistics, weights_given, weights_given_states

FLOOR = 1e-3  # of the curvature with weights held, that is left of it when they are free


class PathLinearisation(NamedTuple):
    """Dynamics and emission to first order at a path c, with δ = x − c: what Gaussian the states have, but for noises.

        δ_{t+1} = F_t δ_t − gap_t + N(0, Q),    error_t = slope_t δ_t + N(0, R)

    Rows of all series follow each other. From the last state of one to the first of the next all is zero.
    """

    centre: Float[Array, "N Dx"]
    first: Float[
        Array, " N"
    ]  # 1 at each x₀ and at states that pad, to which no transition leads, else 0
    jacobian: Float[Array, "N-1 Dx Dx"]  # F = ∂f/∂x
    gap: Float[Array, "N-1 Dx"]  # c_{t+1} − f(c_t)
    slope: Float[Array, "N Dy Dx"]  # of the outputs' means
    error: Float[Array, "N Dy"]  # y − its mean; zero where nothing was observed
    present: Float[Array, "N Dy"]

    def precision(self, model: GPSSM) -> BlockTridiagonal:
        """Λ at the model's noises: diagonal blocks Q⁻¹ (I for x₀) + FᵀQ⁻¹F + Fisher's information of the outputs,
        lower blocks −Q⁻¹F."""
        noise, identity = (
            1 / model.process_variance,
            jnp.eye(model.state_dim, dtype=self.centre.dtype),
        )
        first = self.first[:, None, None]
        arriving = first * identity[None] + (1 - first) * jnp.diag(noise)[None]
        arriving = arriving + jnp.einsum(
            "tji,tj,tjk->tik", self.slope, self.weight(model), self.slope
        )
        leaving = jnp.einsum("tji,j,tjk->tik", self.jacobian, noise, self.jacobian)
        return BlockTridiagonal(
            arriving.at[:-1].add(leaving), -noise[None, :, None] * self.jacobian
        )

    def pull(self, model: GPSSM) -> Float[Array, "N Dx"]:
        """The gradient of the log density at c, so that the mean of the states is c + Λ⁻¹ pull."""
        scaled = self.gap / model.process_variance[None]
        emitted = jnp.einsum("tji,tj->ti", self.slope, self.weight(model) * self.error)
        total = emitted - self.first[:, None] * self.centre
        return (
            total.at[:-1].add(jnp.einsum("tji,tj->ti", self.jacobian, scaled)).at[1:].add(-scaled)
        )

    def weight(self, model: GPSSM) -> Float[Array, "N Dy"]:
        """1/R of the outputs that were observed. A likelihood that cannot tell its moments has no part in Λ."""
        try:
            return self.present / model.likelihood.moments(self.centre)[1]
        except TypeError:
            return jnp.zeros_like(self.present)


class Coordinates(NamedTuple):
    """The map ξ → x of the stacked states of all series."""

    centre: Float[Array, "N Dx"]
    factor: BlockCholesky
    directions: Float[
        Array, "r n"
    ]  # Wᵀ: each in one piece of memory, which is what a product with a vector reads
    stretch: Float[Array, "r r"]  # h⁻ᵀ (S − I) h⁻¹
    shrink: Float[Array, "r r"]  # h⁻ᵀ (S⁻¹ − I) h⁻¹
    dense: Float[Array, "n n"] | None  # the whole map, where one product is faster than a recursion

    def to_states(self, position: Float[Array, " n"]) -> Float[Array, "N Dx"]:
        """x = centre + L⁻ᵀ ξ + W h⁻ᵀ (S − I) h⁻¹ Wᵀ L ξ."""
        if self.dense is not None:
            return self.centre + jnp.matmul(self.dense, position).reshape(self.centre.shape)
        blocks = position.reshape(self.centre.shape)
        along = self._along(self.stretch, multiply_lower(self.factor, blocks))
        return self.centre + solve_upper(self.factor, blocks) + along

    def to_position(self, states: Float[Array, "N Dx"]) -> Float[Array, " n"]:
        """ξ = Lᵀ (δ + W h⁻ᵀ (S⁻¹ − I) h⁻¹ Wᵀ Λ δ) with δ = x − centre."""
        away = states - self.centre
        along = self._along(
            self.shrink, multiply_lower(self.factor, multiply_upper(self.factor, away))
        )
        return jnp.ravel(multiply_upper(self.factor, away + along))

    def _along(
        self, matrix: Float[Array, "r r"], blocks: Float[Array, "N Dx"]
    ) -> Float[Array, "N Dx"]:
        """W times the matrix times Wᵀ of these blocks."""
        inside = jnp.matmul(matrix, jnp.matmul(self.directions, jnp.ravel(blocks)))
        return jnp.matmul(inside, self.directions).reshape(blocks.shape)


class Whitening(NamedTuple):
    """What the coordinates are made of, at any noises: a path, the first order there, and the soft directions W.

    With D x = F x_t − x_{t+1} at each transition, the curvature of log q* along W is to first order, with weights held
    and with weights free,

        K = WᵀΛW = Σ_d (DW)_dᵀ(DW)_d / Q_d + W₀ᵀW₀ + (outputs' share)
        G = K − Σ_d X_dᵀ (Q_d I + A_dᵀA_d)⁻¹ X_d / Q_d,    X_d = A_dᵀ (DW)_d
    """

    linear: PathLinearisation
    directions: Float[Array, "r n"]  # Wᵀ
    squares: Float[
        Array, "Dx+1 r r"
    ]  # (DW)_dᵀ(DW)_d, and W₀ᵀW₀ of the states to which no transition leads
    gram: Float[Array, "Dx M M"]  # AᵀA
    cross: Float[Array, "Dx M r"]  # X

    def at(self, model: GPSSM) -> Coordinates:
        """The coordinates at the model's noises.

        With K = h hᵀ and G = g gᵀ the directions V = LᵀW h⁻ᵀ are orthonormal and S = hᵀ g⁻ᵀ. V is not made: L⁻ᵀV is
        W h⁻ᵀ, and Vᵀ is h⁻¹WᵀL, so that nothing that is as long as the series and as wide as W is multiplied.
        """
        factor = block_cholesky(self.linear.precision(model))
        stiff = self._stiffness(model)
        root = cholesky(stiff, jitter=0.0)
        variance = model.process_variance[:, None, None]
        one = jnp.eye(self.gram.shape[-1], dtype=stiff.dtype)[None]
        if (
            model.basis.shared
        ):  # one P for all dimensions, and what they say of its weights together
            uncertain = inverse_root(one + jnp.sum(self.gram / variance, 0, keepdims=True))
            together = jnp.sum(self.cross / variance, 0, keepdims=True)
            softened = gram(jnp.matmul(uncertain, together))
        else:
            uncertain = inverse_root(self.gram + variance * one)
            softened = gram(jnp.matmul(uncertain, self.cross)) / variance
        # Rounding may eat what is left of the curvature where noises are very small: it is then taken as it was.
        soft = cholesky((1 + FLOOR) * stiff - jnp.sum(softened, 0), jitter=0.0)
        soft = jnp.where(jnp.all(jnp.isfinite(soft)), soft, root)
        inverse = inverse_lower(root)
        stretch = jnp.matmul(inverse_lower(soft).T - inverse.T, inverse)
        shrink = jnp.matmul(
            jnp.matmul(inverse.T, soft.T) - jnp.eye(len(root), dtype=root.dtype), gram(inverse)
        )
        return Coordinates(
            self.linear.centre,
            factor,
            self.directions,
            stretch,
            shrink,
            _dense(factor, self.directions, stretch),
        )

    def _stiffness(self, model: GPSSM) -> Float[Array, "r r"]:
        """K at the model's noises."""
        weighted = jnp.sqrt(self.linear.weight(model))[:, :, None] * self.linear.slope
        # Sums of products, not a product of matrices, for which W would have to be turned round.
        seen = jnp.sum(
            weighted[None] * self.directions.reshape(-1, len(weighted), 1, weighted.shape[-1]), -1
        )
        seen = seen.reshape(len(seen), -1)
        noise = jnp.concatenate(
            [1 / model.process_variance, jnp.ones_like(model.process_variance, shape=1)]
        )
        return gram(seen.T) + jnp.sum(noise[:, None, None] * self.squares, 0)


def stack(paths: States) -> Float[Array, "N Dx"]:
    """The states of all series, one after the other."""
    return jnp.concatenate(paths)


def unstack(states: Float[Array, "N Dx"], series: list[Series]) -> States:
    """A path for each series again."""
    ends = itertools.accumulate((len(one) + 1 for one in series), initial=0)
    return tuple(states[start:end] for start, end in itertools.pairwise(ends))


def moving(states: Float[Array, "N Dx"], series: list[Series]) -> Float[Array, " n"]:
    """1 for each coordinate of the stacked states, 0 for those of states that pad."""
    return jnp.repeat(
        jnp.concatenate([real_states(one, states.dtype) for one in series]), states.shape[1]
    )


def whiten(
    model: GPSSM, centre: Float[Array, "N Dx"], series: list[Series], rank: int
) -> Whitening:
    """The whitening linearised at `centre`, with so many soft directions."""
    model = model.prepared()
    statistics = transition_statistics(model, unstack(centre, series), series)
    weights = weights_given(statistics, model.process_variance, model.basis.shared)
    linear = first_order(model, weights.mean, centre, series)
    u = between([jnp.asarray(one.u, centre.dtype) for one in series])
    border = Border(model, centre, u, linear.jacobian, 1 - linear.first[1:])
    factor = block_cholesky(linear.precision(model))
    columns = _soft_directions(border, statistics.gram, factor, min(rank, centre.size))
    first = linear.first[:, None, None] * columns
    squares = jnp.concatenate(
        [border.squares(columns), gram(first.reshape(-1, columns.shape[-1]))[None]]
    )
    directions = columns.reshape(-1, columns.shape[-1]).T
    return Whitening(linear, directions, squares, statistics.gram, border.cross(columns))


def linearise(
    model: GPSSM, states: Float[Array, "N Dx"], series: list[Series]
) -> PathLinearisation:
    """The first order at a path, the weights at their posterior mean given it."""
    return first_order(
        model, weights_given_states(model, unstack(states, series), series).mean, states, series
    )


def first_order(
    model: GPSSM, weights: Float[Array, "Dx M"], states: Float[Array, "N Dx"], series: list[Series]
) -> PathLinearisation:
    """Dynamics of these weights, and the emission, to first order at a path."""
    paths, function = unstack(states, series), model.function(weights)

    def step(rows: tuple[Array, Array]) -> tuple[Float[Array, "T Dx"], Float[Array, "T Dx Dx"]]:
        x, u = rows
        return function(x, u), _slopes(lambda x: function(x, u), x)

    inputs = [
        (path[:-1], jnp.asarray(one.u, path.dtype)) for path, one in zip(paths, series, strict=True)
    ]
    mean, jacobian = map_rows(step, tuple(map(jnp.concatenate, zip(*inputs, strict=True))))
    ends = list(itertools.accumulate(len(one) for one in series))[:-1]
    gap = stack(tuple(path[1:] for path in paths)) - mean
    seen = jnp.concatenate([jnp.asarray(one.y, states.dtype) for one in series])
    emitted = _emission(model, stack(tuple(path[1:] for path in paths)), seen)
    # A first row without output is that of x₀.
    slope, error, present = (
        jnp.concatenate(
            [jnp.pad(one, ((1, 0), *((0, 0),) * (one.ndim - 1))) for one in jnp.split(part, ends)]
        )
        for part in emitted
    )
    arrives = between([moves(one, states.dtype) for one in series])
    jacobian = arrives[:, None, None] * between(jnp.split(jacobian, ends))
    gap = arrives[:, None] * between(jnp.split(gap, ends))
    first = 1 - jnp.pad(arrives, (1, 0))
    return PathLinearisation(states, first, jacobian, gap, slope, error, present)


def between(parts: Sequence[Float[Array, "T ..."]]) -> Float[Array, "N-1 ..."]:
    """What belongs to the transitions of each series; zeros from the last state of one to the first of the next."""
    padded = [jnp.pad(part, ((0, 1), *((0, 0),) * (part.ndim - 1))) for part in parts]
    return jnp.concatenate(padded)[:-1]


def _slopes(function: Callable[[Array], Array], x: Float[Array, "T Dx"]) -> Float[Array, "T D Dx"]:
    """∂function/∂x of every row, for a function of rows."""

    def along(direction: Float[Array, " Dx"]) -> Float[Array, "T D"]:
        return jax.jvp(function, (x,), (jnp.broadcast_to(direction[None], x.shape),))[1]

    return jnp.moveaxis(one_by_one(along, jnp.eye(x.shape[1], dtype=x.dtype)), 0, -1)


def _emission(
    model: GPSSM, x: Float[Array, "T Dx"], outputs: Float[Array, "T Dy"]
) -> tuple[Float[Array, "T Dy Dx"], Float[Array, "T Dy"], Float[Array, "T Dy"]]:
    """The slope of the outputs' mean, what it misses of them, and which were observed."""
    y, present = observed(outputs)
    present = present.astype(x.dtype)
    try:
        mean = model.likelihood.moments(x)[0]
    except TypeError:
        return jnp.zeros((*y.shape, x.shape[1]), x.dtype), jnp.zeros_like(present), present
    return (
        _slopes(lambda states: model.likelihood.moments(states)[0], x),
        present * (y - mean),
        present,
    )


class Border(NamedTuple):
    """What ties states to weights, where their precision is bordered: products with A along a path, never A itself.

    A change of the states pulls at each transition by F x_t − x_{t+1}, and so at the weights.
    """

    model: GPSSM
    centre: Float[Array, "N Dx"]
    u: Float[Array, "N-1 Du"]
    jacobian: Float[Array, "N-1 Dx Dx"]
    moves: Float[Array, " N-1"]  # 0 between two series and to states that pad, else 1

    def pulled(self, columns: Float[Array, "N Dx r"]) -> Float[Array, "N-1 Dx r"]:
        """F x_t − x_{t+1} of every column, zero where nothing moves."""
        return self.moves[:, None, None] * (
            jnp.einsum("tij,tjr->tir", self.jacobian, columns[:-1]) - columns[1:]
        )

    def squares(self, columns: Float[Array, "N Dx r"]) -> Float[Array, "Dx r r"]:
        """Of each dimension, the products of what the columns pull at it with each other."""
        return sum_rows(lambda rows: gram(jnp.moveaxis(rows, 1, 0)), self.pulled(columns))

    def cross(self, columns: Float[Array, "N Dx r"]) -> Float[Array, "Dx M r"]:
        """A_dᵀ (F x_t − x_{t+1})_d of every column."""

        def add_up(rows: Any) -> Float[Array, "Dx M r"]:
            *inputs, pulled = rows
            return jnp.einsum("dtm,tdr->dmr", self._gain(*inputs), pulled)

        return sum_rows(add_up, (*self._rows, self.pulled(columns)))

    def push(self, weights: Float[Array, "Dx M r"]) -> Float[Array, "N Dx r"]:
        """The transpose: how a change of the weights pulls at each state."""

        def along(rows: Any) -> Float[Array, "T Dx r"]:
            return jnp.einsum("dtm,dmr->tdr", self._gain(*rows), weights)

        push = map_rows(along, self._rows)
        back = jnp.einsum("tij,tir->tjr", self.jacobian, push)
        none = jnp.zeros_like(push[:1])
        return jnp.concatenate([back, none]) - jnp.concatenate([none, push])

    @property
    def _rows(self) -> tuple[Array, ...]:
        return self.centre[:-1], self.u, self.moves

    def _gain(self, x: Array, u: Array, moves: Array) -> Float[Array, "Dx T M"]:
        return moves[None, :, None] * self.model.transition()(x, u).gain


def _soft_directions(
    border: Border, squares: Float[Array, "Dx M M"], factor: BlockCholesky, rank: int
) -> Float[Array, "N Dx r"]:
    """W = L⁻ᵀV, for V the leading left singular vectors of L⁻¹U.

    U Uᵀ = Λ_xv P⁻¹ Λ_vx with P = I + AᵀA/Q = L_P L_Pᵀ the weights' precision, and Λ_xv from A L_P⁻ᵀ / Q. The right
    singular vectors are those of UᵀΛ⁻¹U, which is small: U is multiplied by the weights of one dimension at a time, and
    never whole. An iteration would not do: what tells directions apart is how near to 1 their singular values are.
    """
    variance = border.model.process_variance[:, None, None]
    told = squares / variance
    told = (
        jnp.sum(told, 0, keepdims=True) if border.model.basis.shared else told
    )  # a weight pulls at all dimensions
    number, size, _ = told.shape
    root = inverse_root(jnp.eye(size, dtype=told.dtype)[None] + told)

    def tie(weights: Float[Array, "Dx|1 M r"]) -> Float[Array, "N Dx r"]:
        """L⁻¹U times some columns."""
        pulls = jnp.broadcast_to(
            jnp.matmul(root.mT, weights), (*squares.shape[:2], weights.shape[-1])
        )
        return jax.vmap(lambda column: solve_lower(factor, column), 2, 2)(
            border.push(pulls / variance)
        )

    def unwhiten(columns: Float[Array, "N Dx r"]) -> Float[Array, "N Dx r"]:
        return jax.vmap(lambda column: solve_upper(factor, column), 2, 2)(columns)

    def squared(index: Array) -> Float[Array, "Dx|1 M M"]:
        """UᵀΛ⁻¹U times the weights of one dimension."""
        units = jnp.zeros_like(told).at[index].set(jnp.eye(size, dtype=told.dtype))
        tied = border.cross(unwhiten(tie(units))) / variance
        return jnp.matmul(
            root, jnp.sum(tied, 0, keepdims=True) if border.model.basis.shared else tied
        )

    whole = jnp.moveaxis(jax.lax.map(squared, jnp.arange(number)), 0, 2).reshape(number * size, -1)
    leading = jnp.linalg.eigh(whole)[1][:, -rank:].reshape(number, size, -1)
    columns = tie(leading)
    orthonormal = jnp.linalg.qr(columns.reshape(-1, columns.shape[-1]))[0]
    return unwhiten(orthonormal.reshape(columns.shape))


def _dense(
    factor: BlockCholesky, directions: Float[Array, "r n"], stretch: Float[Array, "r r"]
) -> Array | None:
    """L⁻ᵀ + W h⁻ᵀ (S − I) h⁻¹ WᵀL, on a GPU and where it is not too large."""
    shape = factor.diagonal.shape[:2]
    if not fits_whole(directions.shape[1]):
        return None

    def rows(
        function: Callable[[BlockCholesky, Array], Array], vectors: Float[Array, "k n"]
    ) -> Float[Array, "k n"]:
        return jax.vmap(lambda vector: jnp.ravel(function(factor, vector.reshape(shape))))(vectors)

    whole = rows(solve_upper, jnp.eye(directions.shape[1], dtype=directions.dtype)).T
    return whole + jnp.matmul(jnp.matmul(directions.T, stretch), rows(multiply_upper, directions))
