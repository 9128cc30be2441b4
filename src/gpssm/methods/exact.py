"""`exact`: HMC on the posterior of the states under the Gaussian process itself, without inducing
points.

    log p(x | y) = log p(x₀) + Σ_t log p(y_t | x_{t+1})
                   + Σ_d log N(x_{1:T,d}; m_d(z), K_d(z, z) + Q_d I) + const

over the transitions z of all series together, which share the function. Linear weights in the basis
are integrated out as well: K_d(z, z') = k_d(z, z') + σ_d² ∘ [z; 1]·[z'; 1]. Each gradient costs
O(N³ Dx) for N transitions. The method is a reference for the sparse methods on series of up to a
few hundred rows.

**Draws.** A dense Gaussian process is a sparse one whose inducing locations are the inputs of the
path itself, where B = 0. A draw therefore stores its inputs as `locations`, and v | x is exact.
Away from these inputs, forecasts draw the residual B(z) independently at each step, as with other
inducing points.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gpssm.core.linalg import log_gaussian_integral
from gpssm.data.series import Series
from gpssm.inference.noise_moves import ChainState
from gpssm.inference.parameters import Density, ParameterMoves, Parameters
from gpssm.inference.settings import States
from gpssm.inference.whitening import unstack
from gpssm.linear.fit import linear_fit
from gpssm.methods.ffvd import FFVD, Carry, FFVDSampler
from gpssm.model.bases import InducingPoints, parts_of
from gpssm.model.model import GPSSM
from gpssm.model.target import log_boundary
from gpssm.model.types import Draw, Method
from gpssm.starts.build import Start, build

if TYPE_CHECKING:
    from gpssm.methods.spec import Spec


MOST_ROWS = 500


class ExactMoves(ParameterMoves):
    """The updates of the parameters, with the inputs of the path as inducing locations.

    Then v = L⁻¹(f − m) with f | x ~ N(m + K(K + Q)⁻¹r, K − K(K + Q)⁻¹K), and the linear weights
    with it; Q | x, f is exact since f is known at every input.
    """

    def density(self, states: States, series: list[Series]) -> Density:
        """Return log p(x, y) as a function of the model, the function integrated out."""
        return lambda model: log_exact(model, states, series)

    def model_at(self, parameters: Parameters, states: States, series: list[Series]) -> GPSSM:
        """Return the model with these parameters and the inputs of these states."""
        return at_own_inputs(self.apply(parameters), states, series)


class ExactSampler(FFVDSampler):
    """The iterations of `ffvd` with another density.

    Weights are values of the function at the inputs of the path and change with it.
    """

    move_type = ExactMoves

    def metric(self, model: GPSSM, states: States, series: list[Series]) -> GPSSM:
        """Return the sparse model with the inputs of the path as inducing locations."""
        return at_own_inputs(model, states, series)

    def update(
        self,
        parameter_key: PRNGKeyArray,
        round_key: PRNGKeyArray,
        carry: Carry,
        state: ChainState,
        series: list[Series],
    ) -> ChainState:
        """Update the parameters given the states."""
        paths = unstack(state.states, series)
        parameters = self.moves.update(
            parameter_key, state.parameters, paths, carry.iteration, series
        )
        return state._replace(parameters=parameters)

    def draw(self, key: PRNGKeyArray, carry: Carry, series: list[Series]) -> Draw:
        """Return the current states, a draw of the weights, and the parameters with the inputs."""
        paths = unstack(carry.states, series)
        weights = self.moves.draw_weights(key, carry.parameters, paths, series)
        name = _locations_name(self.model)
        return Draw(paths, weights, carry.parameters.leaves | {name: inputs(paths, series)})


@dataclass(frozen=True)
class Exact(FFVD):
    """Settings of `exact`: those of `ffvd`, but with fewer draws, since each has one weight per
    transition.
    """

    sampler = ExactSampler
    supports: ClassVar[Mapping[str, Any]] = {"basis": "inducing"}
    pads: ClassVar[bool] = False  # a draw has a weight for each transition

    num_warmup: int = 300
    num_draws: int = 100

    def prepare(self, series: list[Series], spec: "Spec", key: PRNGKeyArray) -> Start:
        """Return the model with an inducing location for each transition; `num_inducing` is
        ignored.
        """
        self.check_support(spec)
        # A gradient takes a tenth of a second for 500 rows, and grows with the cube of the rows.
        if (count := sum(map(len, series))) > MOST_ROWS:
            raise ValueError(
                "`exact` factorises a matrix with a row for each transition at every gradient and "
                f"supports at most {MOST_ROWS} rows over all series, got {count}. Use fewer rows, "
                "or method='ffvd'."
            )
        linear = linear_fit(series, spec)
        start = build(spec.replace(basis=InducingPoints(jnp.asarray(linear.z))), linear, key)
        return start._replace(model=start.model.with_roles("fix", _locations_name(start.model)))

    def build(self, model: GPSSM, states: States) -> Method:
        """Return the method for a model from `prepare`, started at these states."""
        name = _locations_name(model)
        count = sum(len(path) - 1 for path in states)
        rows = len(model.leaves()[name])
        if rows != count or dict(model.roles)[name] != "fix":
            raise ValueError(
                f"`exact` stores its {count} inputs in the leaf {name}, which must have as many "
                f"rows and the role 'fix': it has {rows} rows and the role "
                f"{dict(model.roles)[name]!r}. Build the model by `Exact.prepare`, and again after "
                "adding rows."
            )
        return super().build(model, states)


def log_exact(model: GPSSM, states: States, series: list[Series]) -> Float[Array, ""]:
    """Return log p(x, y), with r = x' − m(z).

    It is log p(x₀) + Σ_t log p(y_t | x_{t+1}) + Σ_d log N(r_d; 0, K_d(z, z) + Q_d I).
    """
    z, following = inputs(states, series), jnp.concatenate([path[1:] for path in states])
    x, u = z[:, : model.state_dim], z[:, model.state_dim :]
    noise = model.process_variance[:, None, None] * jnp.eye(len(z), dtype=z.dtype)[None]
    covariance = prior_covariance(model, z) + noise
    return log_boundary(model, states, series) + jnp.sum(
        log_dense_normal(covariance, (following - model.mean(x, u)).T)
    )


def prior_covariance(model: GPSSM, z: Float[Array, "N Dz"]) -> Float[Array, "Dx N N"]:
    """Return Cov(f_d(z_n), f_d(z_m)): k_d for inducing points, plus A_d Aᵀ_d for other parts of the
    basis.
    """
    total = model.kernel(z, z)
    for part in parts_of(model.basis):
        if not isinstance(part, InducingPoints):
            gain = part.projector(model.kernel)(z).gain
            total = total + jnp.matmul(gain, gain.mT)
    return total


def log_dense_normal(
    covariance: Float[Array, "D N N"], error: Float[Array, "D N"]
) -> Float[Array, " D"]:
    """Return log N(r; 0, S) for each row."""
    constant = 0.5 * error.shape[1] * jnp.log(2 * jnp.pi)
    return log_gaussian_integral(covariance, error, -1.0) - constant


def inputs(states: States, series: list[Series]) -> Float[Array, "N Dz"]:
    """Return [x_t; u_t] for all transitions of all series."""
    rows = [
        jnp.concatenate([path[:-1], jnp.asarray(experiment.u, path.dtype)], -1)
        for path, experiment in zip(states, series, strict=True)
    ]
    return jnp.concatenate(rows)


def at_own_inputs(model: GPSSM, states: States, series: list[Series]) -> GPSSM:
    """Return the model whose inducing locations are the inputs of the path, where B = 0 and the
    sparse posterior is exact.
    """
    return model.with_leaves({_locations_name(model): inputs(states, series)})


def _locations_name(model: GPSSM) -> str:
    """Return the name of the leaf with the inducing locations."""
    points = [part for part in parts_of(model.basis) if isinstance(part, InducingPoints)]
    if len(points) != 1:
        raise ValueError(
            "`exact` needs a model with inducing points, which its inputs replace: use "
            "basis='inducing'."
        )
    return next(name for name, leaf in model.leaves().items() if leaf is points[0].locations)
