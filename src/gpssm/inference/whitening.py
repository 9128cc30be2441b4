"""Coordinates in which the collapsed posterior of the states is nearly standard normal.

Linearised at a path, the joint density of states and weights has an arrow-shaped precision:
block-tridiagonal Λ in the states, bordered by the weights. Integrating the weights out leaves
Λ − U Uᵀ, with U of low rank. With Λ = L Lᵀ,

    x = centre + L⁻ᵀ (I + V (S − I) Vᵀ) ξ

where V spans the directions that the weights soften (the leading left singular vectors of L⁻¹U),
and S is an inverse root of the curvature within that span. The directions W = L⁻ᵀV of the states
are computed occasionally (`whiten`); L and S are recomputed for the current noise levels
(`Whitening.at`), since a step size that suits one noise level is far too long for half of it. The
total cost is O(T).
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

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
from gpssm.core.loops import map_rows, sum_rows
from gpssm.data.padding import moves, real_states
from gpssm.data.series import Series
from gpssm.inference.settings import States
from gpssm.model.likelihoods import observed
from gpssm.model.model import GPSSM
from gpssm.model.target import transition_statistics, weights_given, weights_given_states

FLOOR = 1e-3  # least share of the curvature that remains when the weights are integrated out


class PathLinearisation(NamedTuple):
    """The dynamics and the emission linearised at a path c, with δ = x − c.

    δ_{t+1} = F_t δ_t − gap_t + N(0, Q),    error_t = slope_t δ_t + N(0, R)

    The rows of all series are concatenated. Entries from the last state of one series to the first
    state of the next are zero.

    Parameters
    ----------
    centre
        c.
    first
        1 for each x₀ and for padding states, to which no transition leads, otherwise 0.
    jacobian
        F = ∂f/∂x.
    gap
        c_{t+1} − f(c_t).
    slope
        The slope of the mean of the outputs.
    error
        The outputs minus their means; zero for missing outputs.
    present
        1 for observed outputs, otherwise 0.
    """

    centre: Float[Array, "N Dx"]
    first: Float[Array, " N"]
    jacobian: Float[Array, "N-1 Dx Dx"]
    gap: Float[Array, "N-1 Dx"]
    slope: Float[Array, "N Dy Dx"]
    error: Float[Array, "N Dy"]
    present: Float[Array, "N Dy"]

    def precision(self, model: GPSSM) -> BlockTridiagonal:
        """Return Λ at the noise levels of the model.

        Its diagonal blocks are Q⁻¹ (I for x₀) + FᵀQ⁻¹F + the Fisher information of the outputs; its
        lower blocks are −Q⁻¹F.
        """
        noise = 1 / model.process_variance
        identity = jnp.eye(model.state_dim, dtype=self.centre.dtype)
        first = self.first[:, None, None]
        arriving = first * identity[None] + (1 - first) * jnp.diag(noise)[None]
        arriving = arriving + jnp.einsum(
            "tji,tj,tjk->tik", self.slope, self.output_precision(model), self.slope
        )
        leaving = jnp.einsum("tji,j,tjk->tik", self.jacobian, noise, self.jacobian)
        return BlockTridiagonal(
            arriving.at[:-1].add(leaving), -noise[None, :, None] * self.jacobian
        )

    def gradient(self, model: GPSSM) -> Float[Array, "N Dx"]:
        """Return the gradient g of the log density at c: the mean of the states is c + Λ⁻¹ g."""
        scaled = self.gap / model.process_variance[None]
        emitted = jnp.einsum("tji,tj->ti", self.slope, self.output_precision(model) * self.error)
        total = emitted - self.first[:, None] * self.centre
        return (
            total.at[:-1].add(jnp.einsum("tji,tj->ti", self.jacobian, scaled)).at[1:].add(-scaled)
        )

    def output_precision(self, model: GPSSM) -> Float[Array, "N Dy"]:
        """Return 1/R for the observed outputs.

        A likelihood without known moments does not contribute to Λ.
        """
        try:
            return self.present / model.likelihood.moments(self.centre)[1]
        except TypeError:
            return jnp.zeros_like(self.present)


class Coordinates(NamedTuple):
    """The map ξ → x of the stacked states of all series.

    Parameters
    ----------
    centre
        The path where ξ = 0.
    factor
        L.
    directions
        Wᵀ, with each direction contiguous in memory for products with vectors.
    stretch, shrink
        h⁻ᵀ (S − I) h⁻¹ and h⁻ᵀ (S⁻¹ − I) h⁻¹.
    dense
        The whole map as a matrix, if one product is faster than a recursion; None otherwise.
    """

    centre: Float[Array, "N Dx"]
    factor: BlockCholesky
    directions: Float[Array, "r n"]
    stretch: Float[Array, "r r"]
    shrink: Float[Array, "r r"]
    dense: Float[Array, "n n"] | None

    def to_states(self, position: Float[Array, " n"]) -> Float[Array, "N Dx"]:
        """Return x = centre + L⁻ᵀ ξ + W h⁻ᵀ (S − I) h⁻¹ Wᵀ L ξ."""
        if self.dense is not None:
            return self.centre + jnp.matmul(self.dense, position).reshape(self.centre.shape)
        blocks = position.reshape(self.centre.shape)
        along = self._along(self.stretch, multiply_lower(self.factor, blocks))
        return self.centre + solve_upper(self.factor, blocks) + along

    def to_position(self, states: Float[Array, "N Dx"]) -> Float[Array, " n"]:
        """Return ξ = Lᵀ (δ + W h⁻ᵀ (S⁻¹ − I) h⁻¹ Wᵀ Λ δ) with δ = x − centre."""
        deviation = states - self.centre
        scaled = multiply_lower(self.factor, multiply_upper(self.factor, deviation))
        along = self._along(self.shrink, scaled)
        return jnp.ravel(multiply_upper(self.factor, deviation + along))

    def _along(
        self, matrix: Float[Array, "r r"], blocks: Float[Array, "N Dx"]
    ) -> Float[Array, "N Dx"]:
        """Return W · matrix · Wᵀ applied to these blocks."""
        inside = jnp.matmul(matrix, jnp.matmul(self.directions, jnp.ravel(blocks)))
        return jnp.matmul(inside, self.directions).reshape(blocks.shape)


class Whitening(NamedTuple):
    """The quantities from which the coordinates are computed for any noise levels.

    With D x = F x_t − x_{t+1} at each transition, the curvature of log q* along W is to first
    order, with fixed weights (K) and with weights integrated out (G),

        K = WᵀΛW = Σ_d (DW)_dᵀ(DW)_d / Q_d + W₀ᵀW₀ + (term of the outputs)
        G = K − Σ_d X_dᵀ (Q_d I + A_dᵀA_d)⁻¹ X_d / Q_d,    X_d = A_dᵀ (DW)_d

    Parameters
    ----------
    linear
        The linearisation at a path.
    directions
        Wᵀ, the soft directions.
    squares
        (DW)_dᵀ(DW)_d for each d, and W₀ᵀW₀ for the states to which no transition leads.
    gram
        AᵀA.
    cross
        X.
    """

    linear: PathLinearisation
    directions: Float[Array, "r n"]
    squares: Float[Array, "Dx+1 r r"]
    gram: Float[Array, "Dx M M"]
    cross: Float[Array, "Dx M r"]

    def at(self, model: GPSSM) -> Coordinates:
        """Return the coordinates at the noise levels of the model.

        With K = h hᵀ and G = g gᵀ the directions V = LᵀW h⁻ᵀ are orthonormal and S = hᵀ g⁻ᵀ. V is
        never computed: L⁻ᵀV is W h⁻ᵀ, and Vᵀ is h⁻¹WᵀL, which avoids products of matrices as long
        as the series and as wide as W.
        """
        factor = block_cholesky(self.linear.precision(model))
        stiff = self._stiffness(model)
        root = cholesky(stiff, jitter=0.0)
        variance = model.process_variance[:, None, None]
        identity = jnp.eye(self.gram.shape[-1], dtype=stiff.dtype)[None]
        if model.basis.shared:
            # One P for all dimensions, and the sum of their information about the shared weights.
            uncertain = inverse_root(identity + jnp.sum(self.gram / variance, 0, keepdims=True))
            together = jnp.sum(self.cross / variance, 0, keepdims=True)
            softened = gram(jnp.matmul(uncertain, together))
        else:
            uncertain = inverse_root(self.gram + variance * identity)
            softened = gram(jnp.matmul(uncertain, self.cross)) / variance
        # With very small noise, rounding errors may exceed the remaining curvature; the curvature
        # with fixed weights then replaces it.
        soft = cholesky((1 + FLOOR) * stiff - jnp.sum(softened, 0), jitter=0.0)
        soft = jnp.where(jnp.all(jnp.isfinite(soft)), soft, root)
        inverse = inverse_lower(root)
        stretch = jnp.matmul(inverse_lower(soft).T - inverse.T, inverse)
        excess = jnp.matmul(inverse.T, soft.T) - jnp.eye(len(root), dtype=root.dtype)
        shrink = jnp.matmul(excess, gram(inverse))
        dense = _dense(factor, self.directions, stretch)
        return Coordinates(self.linear.centre, factor, self.directions, stretch, shrink, dense)

    def _stiffness(self, model: GPSSM) -> Float[Array, "r r"]:
        """Return K at the noise levels of the model."""
        weighted = jnp.sqrt(self.linear.output_precision(model))[:, :, None] * self.linear.slope
        # Sums of products: a matrix product would have to transpose W.
        directions = self.directions.reshape(-1, len(weighted), 1, weighted.shape[-1])
        outputs = jnp.sum(weighted[None] * directions, -1)
        outputs = outputs.reshape(len(outputs), -1)
        noise = jnp.concatenate(
            [1 / model.process_variance, jnp.ones_like(model.process_variance, shape=1)]
        )
        return gram(outputs.T) + jnp.sum(noise[:, None, None] * self.squares, 0)


def unstack(states: Float[Array, "N Dx"], series: list[Series]) -> States:
    """Return the path of each series from concatenated states."""
    ends = itertools.accumulate((len(rows) + 1 for rows in series), initial=0)
    return tuple(states[start:end] for start, end in itertools.pairwise(ends))


def moving(states: Float[Array, "N Dx"], series: list[Series]) -> Float[Array, " n"]:
    """Return 1 for each coordinate of the stacked states, and 0 for those of padding states."""
    real = jnp.concatenate([real_states(rows, states.dtype) for rows in series])
    return jnp.repeat(real, states.shape[1])


def whiten(
    model: GPSSM, centre: Float[Array, "N Dx"], series: list[Series], rank: int
) -> Whitening:
    """Return the whitening linearised at a path.

    Parameters
    ----------
    model
        The model.
    centre
        The path: the stacked states of all series.
    series
        The scaled series.
    rank
        Number of soft directions.
    """
    model = model.prepared()
    statistics = transition_statistics(model, unstack(centre, series), series)
    weights = weights_given(statistics, model.process_variance, model.basis.shared)
    linear = first_order(model, weights.mean, centre, series)
    u = between([jnp.asarray(rows.u, centre.dtype) for rows in series])
    coupling = Coupling(model, (centre[:-1], u, 1 - linear.first[1:]), linear.jacobian)
    factor = block_cholesky(linear.precision(model))
    columns = _soft_directions(coupling, statistics.gram, factor, min(rank, centre.size))
    first = linear.first[:, None, None] * columns
    squares = jnp.concatenate(
        [coupling.squares(columns), gram(first.reshape(-1, columns.shape[-1]))[None]]
    )
    directions = columns.reshape(-1, columns.shape[-1]).T
    return Whitening(linear, directions, squares, statistics.gram, coupling.cross(columns))


def linearise(
    model: GPSSM, states: Float[Array, "N Dx"], series: list[Series]
) -> PathLinearisation:
    """Return the linearisation at a path, with weights at their posterior mean given the path."""
    weights = weights_given_states(model, unstack(states, series), series).mean
    return first_order(model, weights, states, series)


def first_order(
    model: GPSSM, weights: Float[Array, "Dx M"], states: Float[Array, "N Dx"], series: list[Series]
) -> PathLinearisation:
    """Return the linearisation at a path of the emission and of the dynamics with these weights."""
    paths = unstack(states, series)
    function = model.function(weights)

    def step(rows: tuple[Array, Array]) -> tuple[Float[Array, "T Dx"], Float[Array, "T Dx Dx"]]:
        x, u = rows
        return function(x, u), _slopes(lambda x: function(x, u), x)

    x = jnp.concatenate([path[:-1] for path in paths])
    following = jnp.concatenate([path[1:] for path in paths])
    u = jnp.concatenate([jnp.asarray(rows.u, states.dtype) for rows in series])
    y = jnp.concatenate([jnp.asarray(rows.y, states.dtype) for rows in series])
    mean, jacobian = map_rows(step, (x, u))
    ends = list(itertools.accumulate(len(rows) for rows in series))[:-1]
    # The first row is x₀, which has no output.
    slope, error, present = (
        jnp.concatenate([_pad_rows(rows, 1, 0) for rows in jnp.split(part, ends)])
        for part in _emission(model, following, y)
    )
    arrives = between([moves(rows, states.dtype) for rows in series])
    jacobian = arrives[:, None, None] * between(jnp.split(jacobian, ends))
    gap = arrives[:, None] * between(jnp.split(following - mean, ends))
    first = 1 - jnp.pad(arrives, (1, 0))
    return PathLinearisation(states, first, jacobian, gap, slope, error, present)


def between(parts: Sequence[Float[Array, "T ..."]]) -> Float[Array, "N-1 ..."]:
    """Return the values of the transitions of all series, concatenated.

    Zeros separate the series: there is no transition from one to the next.
    """
    return jnp.concatenate([_pad_rows(part, 0, 1) for part in parts])[:-1]


def _pad_rows(rows: Float[Array, "T ..."], before: int, after: int) -> Float[Array, "_ ..."]:
    return jnp.pad(rows, ((before, after), *((0, 0),) * (rows.ndim - 1)))


def _slopes(function: Callable[[Array], Array], x: Float[Array, "T Dx"]) -> Float[Array, "T D Dx"]:
    """Return ∂function/∂x for each row, for a function of rows."""

    def along(direction: Float[Array, " Dx"]) -> Float[Array, "T D"]:
        return jax.jvp(function, (x,), (jnp.broadcast_to(direction[None], x.shape),))[1]

    return jnp.moveaxis(one_by_one(along, jnp.eye(x.shape[1], dtype=x.dtype)), 0, -1)


def _emission(
    model: GPSSM, x: Float[Array, "T Dx"], outputs: Float[Array, "T Dy"]
) -> tuple[Float[Array, "T Dy Dx"], Float[Array, "T Dy"], Float[Array, "T Dy"]]:
    """Return the slope of the mean of the outputs, its error, and the mask of observed outputs."""
    y, present = observed(outputs)
    present = present.astype(x.dtype)
    try:
        mean = model.likelihood.moments(x)[0]
    except TypeError:
        return jnp.zeros((*y.shape, x.shape[1]), x.dtype), jnp.zeros_like(present), present
    slope = _slopes(lambda states: model.likelihood.moments(states)[0], x)
    return slope, present * (y - mean), present


class Coupling(NamedTuple):
    """The blocks of the precision between states and weights, ∓ DᵀA_d / Q_d.

    It multiplies by A and by D x = F x_t − x_{t+1} along a path without storing either.

    Parameters
    ----------
    model
        The model.
    rows
        The path without its last state (N−1, Dx), the inputs (N−1, Du), and a mask (N−1,): 0
        between two series and for padding, otherwise 1.
    jacobian
        F.
    """

    model: GPSSM
    rows: tuple[Array, Array, Array]
    jacobian: Float[Array, "N-1 Dx Dx"]

    def errors(self, columns: Float[Array, "N Dx r"]) -> Float[Array, "N-1 Dx r"]:
        """Return D of every column, zero where there is no transition."""
        change = jnp.einsum("tij,tjr->tir", self.jacobian, columns[:-1]) - columns[1:]
        return self.rows[2][:, None, None] * change

    def squares(self, columns: Float[Array, "N Dx r"]) -> Float[Array, "Dx r r"]:
        """Return (D C)_dᵀ(D C)_d for the columns C."""
        return sum_rows(lambda rows: gram(jnp.moveaxis(rows, 1, 0)), self.errors(columns))

    def cross(self, columns: Float[Array, "N Dx r"]) -> Float[Array, "Dx M r"]:
        """Return A_dᵀ (D C)_d for the columns C."""

        def add_up(rows: tuple[Array, ...]) -> Float[Array, "Dx M r"]:
            *inputs, errors = rows
            return jnp.einsum("dtm,tdr->dmr", self._gain(*inputs), errors)

        return sum_rows(add_up, (*self.rows, self.errors(columns)))

    def transposed(self, weights: Float[Array, "Dx M r"]) -> Float[Array, "N Dx r"]:
        """Return DᵀA of every column of weights."""

        def along(rows: tuple[Array, ...]) -> Float[Array, "T Dx r"]:
            return jnp.einsum("dtm,dmr->tdr", self._gain(*rows), weights)

        ahead = map_rows(along, self.rows)
        back = jnp.einsum("tij,tir->tjr", self.jacobian, ahead)
        return _pad_rows(back, 0, 1) - _pad_rows(ahead, 1, 0)

    def _gain(self, x: Array, u: Array, moves: Array) -> Float[Array, "Dx T M"]:
        return moves[None, :, None] * self.model.transition()(x, u).gain


def _soft_directions(
    coupling: Coupling, squares: Float[Array, "Dx M M"], factor: BlockCholesky, rank: int
) -> Float[Array, "N Dx r"]:
    """Return W = L⁻ᵀV, for V the leading left singular vectors of L⁻¹U.

    U Uᵀ = Λ_xv P⁻¹ Λ_vx with P = I + AᵀA/Q = L_P L_Pᵀ the weights' precision, and Λ_xv from A L_P⁻ᵀ
    / Q. The right singular vectors are those of UᵀΛ⁻¹U, which is small: U is applied to the weights
    of one dimension at a time and never stored as a whole. A power iteration would not converge,
    since the singular values differ only in their distance from 1.

    Parameters
    ----------
    coupling
        Products with Λ_xv.
    squares
        AᵀA.
    factor
        L.
    rank
        The number of vectors.
    """
    variance = coupling.model.process_variance[:, None, None]
    shared = coupling.model.basis.shared

    def of_weights(terms: Float[Array, "Dx M r"]) -> Float[Array, "Dx|1 M r"]:
        """Sum over the dimensions if they share their weights."""
        return jnp.sum(terms, 0, keepdims=True) if shared else terms

    information = of_weights(squares / variance)
    number, size, _ = information.shape
    identity = jnp.eye(size, dtype=information.dtype)
    root = inverse_root(identity[None] + information)

    def whitened_coupling(weights: Float[Array, "Dx|1 M r"]) -> Float[Array, "N Dx r"]:
        """Return L⁻¹U times some columns."""
        columns = jnp.matmul(root.mT, weights)
        columns = jnp.broadcast_to(columns, (*squares.shape[:2], weights.shape[-1]))
        return jax.vmap(lambda column: solve_lower(factor, column), 2, 2)(
            coupling.transposed(columns / variance)
        )

    def unwhiten(columns: Float[Array, "N Dx r"]) -> Float[Array, "N Dx r"]:
        return jax.vmap(lambda column: solve_upper(factor, column), 2, 2)(columns)

    def squared(index: Array) -> Float[Array, "Dx|1 M M"]:
        """Return UᵀΛ⁻¹U applied to the weights of one dimension."""
        units = jnp.zeros_like(information).at[index].set(identity)
        columns = coupling.cross(unwhiten(whitened_coupling(units))) / variance
        return jnp.matmul(root, of_weights(columns))

    whole = jnp.moveaxis(jax.lax.map(squared, jnp.arange(number)), 0, 2).reshape(number * size, -1)
    leading = jnp.linalg.eigh(whole)[1][:, -rank:].reshape(number, size, -1)
    columns = whitened_coupling(leading)
    orthonormal = jnp.linalg.qr(columns.reshape(-1, columns.shape[-1]))[0]
    return unwhiten(orthonormal.reshape(columns.shape))


def _dense(
    factor: BlockCholesky, directions: Float[Array, "r n"], stretch: Float[Array, "r r"]
) -> Array | None:
    """Return L⁻ᵀ + W h⁻ᵀ (S − I) h⁻¹ WᵀL on a GPU if it is not too large; None otherwise."""
    shape = factor.diagonal.shape[:2]
    if not fits_whole(directions.shape[1]):
        return None

    def rows(
        function: Callable[[BlockCholesky, Array], Array], vectors: Float[Array, "k n"]
    ) -> Float[Array, "k n"]:
        return jax.vmap(lambda vector: jnp.ravel(function(factor, vector.reshape(shape))))(vectors)

    whole = rows(solve_upper, jnp.eye(directions.shape[1], dtype=directions.dtype)).T
    return whole + jnp.matmul(jnp.matmul(directions.T, stretch), rows(multiply_upper, directions))
