"""The posterior of a similar system, or of the same system in the past, as the prior of a fit.

The other posterior provides kernel, basis, output map and scaling, and in these coordinates the
distribution of its weights: over the draws of its best chain, a Gaussian with mean μ_d and
precision Λ_d instead of 0 and I,

    v_d ~ N(μ_d, Λ_d⁻¹)

For the strength s, the prior is a Gaussian with

    precision   P_d = I + s (Λ_d − I)
    mean        m_d = s P_d⁻¹ Λ_d μ_d

as if each row of the other system had weight s. It differs from the standard prior only by a mean
function and a factor of the basis: with F_d F_dᵀ = P_d⁻¹, v_d = m_d + F_d w_d and w_d ~ N(0, I),

    f_d(z) | w_d ~ N( m_d(z) + A_d(z) m_d + A_d(z) F_d w_d ,  B_d(z) )

where m_d(z) is the mean function (`means.Shifted`, `bases.Informed`). Kernel and basis are fixed,
since the weights have no meaning without them; states, weights and noise levels are learned.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gpssm.core.linalg import cholesky, gram, inverse_root, one_by_one
from gpssm.core.text import is_real
from gpssm.data.series import Series
from gpssm.inference.settings import MethodSettings
from gpssm.methods.spec import Spec, same
from gpssm.model.bases import Informed
from gpssm.model.means import Shifted
from gpssm.model.model import GPSSM
from gpssm.model.target import weights_given_states
from gpssm.model.types import Draw
from gpssm.posterior.draws import check_states, map_draws
from gpssm.posterior.learning import extend_states
from gpssm.posterior.posterior import Posterior
from gpssm.starts.build import Start


def inherit(prior: Posterior, series: Sequence[Series], strength: float, seed: int) -> Start:
    """Return a start whose model has another posterior as its prior.

    Parameters
    ----------
    prior
        The posterior of a similar system.
    series
        The series to fit, in the scaling of the prior.
    strength
        The weight s of each row of the prior's data.
    seed
        Seed of the filter that estimates the states.

    Returns
    -------
    Start
    """
    chain = int(np.argmax(np.mean(prior.info.log_target, 1)))
    base, mean, covariance = learned_weights(prior.thinned(chain=chain))
    centre, factor = temper(mean, covariance, strength)
    model = GPSSM.create(
        base.kernel,
        Informed(base.basis, factor),
        Shifted(base.mean, base.kernel, base.basis, centre, base.factorise()),
        base.likelihood,
        jnp.exp(base.log_process_std),
    )
    priors = {name: base.priors[name] for name in model.leaves() if name in base.priors}
    states = [extend_states(prior, chain, rows, True, seed, -1)[-1] for rows in series]
    return Start(model.with_priors(priors), states)


# Number of draws, evenly spaced over the chain, over which moments of the weights are averaged.
MAX_DRAWS = 100


def learned_weights(
    posterior: Posterior,
) -> tuple[GPSSM, Float[Array, "Dx M"], Float[Array, "Dx M M"]]:
    """Return one model for all draws, and the moments of its weights.

    Parameters
    ----------
    posterior
        The posterior, of one chain.

    Returns
    -------
    model : GPSSM
        The model at the means of its leaves over the draws.
    mean : array (Dx, M)
        μ_d: the mean over the draws of the means given their states.
    covariance : array (Dx, M, M)
        Λ_d⁻¹: the mean of the covariances, plus the covariance of the means.
    """
    fewer = posterior.thinned(MAX_DRAWS)
    leaves = {
        name: jnp.mean(jnp.asarray(leaf), (0, 1)) for name, leaf in fewer.draws.leaves.items()
    }
    model = fewer.model.with_leaves(leaves)
    dim, size = fewer.draws.weights.shape[2:]
    if fewer.learned is None:
        draws = fewer.draws._replace(leaves={})
        moments = map_draws(_moments, model, draws, list(fewer.dataset.scaled))
        moments = moments.reshape(-1, dim, size, size + 1)
        means, covariances = moments[..., 0], moments[..., 1:]
    else:
        weights = slice(model.state_dim, None)
        state = fewer.learned.state
        means = np.asarray(state.mean[..., weights]).reshape(-1, dim, size)
        joint = np.asarray(state.covariance[..., weights, weights])
        joint = joint.reshape(-1, dim, size, dim, size)
        covariances = np.stack([joint[:, d, :, d] for d in range(dim)], 1)
    gaps = means - means.mean(0)
    between = np.einsum("sdi,sdj->dij", gaps, gaps) / len(means)
    return model, jnp.asarray(means.mean(0)), jnp.asarray(covariances.mean(0) + between)


def _moments(model: GPSSM, draw: Draw, series: list[Series]) -> Float[Array, "Dx M M+1"]:
    """Return P⁻¹b and P⁻¹, the moments of the weights given the states of a draw, as columns."""
    weights = weights_given_states(model, list(draw.states), series)
    covariance = gram(inverse_root(weights.precision))
    return jnp.concatenate([weights.mean[:, :, None], covariance], -1)


def temper(
    mean: Float[Array, "Dx M"], covariance: Float[Array, "Dx M M"], strength: float
) -> tuple[Float[Array, "Dx M"], Float[Array, "Dx M M"]]:
    """Return the mean m_d and the lower factor F_d of the covariance for a strength.

    Directions whose variance exceeds that of the standard prior, as may happen over draws in
    different coordinates, are treated as unknown.

    Parameters
    ----------
    mean
        μ_d.
    covariance
        Λ_d⁻¹.
    strength
        s.

    Returns
    -------
    centre : array (Dx, M)
        m_d.
    factor : array (Dx, M, M)
        F_d.
    """

    def temper_dimension(moments: Float[Array, "M M+1"]) -> Float[Array, "M M+1"]:
        """Return m_d and F_d as columns, from μ_d and Λ_d⁻¹ as columns."""
        variances, directions = jnp.linalg.eigh(moments[:, 1:])
        excess = jnp.maximum(1 / jnp.maximum(variances, 1e-300) - 1, 0.0)  # of Λ_d − I
        precision = 1 + strength * excess
        centre = directions @ (strength * (1 + excess) / precision * (directions.T @ moments[:, 0]))
        factor = cholesky((directions / precision[None]) @ directions.T, jitter=1e-14)
        return jnp.concatenate([centre[:, None], factor], -1)

    tempered = one_by_one(temper_dimension, jnp.concatenate([mean[:, :, None], covariance], -1))
    return tempered[:, :, 0], tempered[:, :, 1:]


# Settings that are inherited from the prior, in whose coordinates the weights were learned.
INHERITED = (
    "state_dim",
    "num_inducing",
    "kernel",
    "mean",
    "likelihood",
    "basis",
    "wiring",
    "coupling",
    "rank",
    "delay",
)


def inherited_spec(spec: Spec) -> Spec:
    """Return the spec with the settings of its prior.

    Parameters
    ----------
    spec
        The settings of a fit with a prior.

    Returns
    -------
    Spec

    Raises
    ------
    ValueError
        If a setting that the prior determines has another value, or the method does not support a
        prior.
    """
    prior: Posterior = spec.prior
    standard = Spec()
    changed = [
        name
        for name in (*INHERITED, "start", "noise", "physics")
        if not same(getattr(spec, name), getattr(standard, name))
        and not (name in INHERITED and same(getattr(spec, name), getattr(prior.spec, name)))
    ]
    if changed:
        raise ValueError(f"{', '.join(changed)} are determined by prior: omit them")
    if spec.calibrate:
        raise ValueError(
            "calibrate=True is not supported with prior: call posterior.calibrate() afterwards"
        )
    if type(spec.settings).prepare is not MethodSettings.prepare:
        raise ValueError(f"{type(spec.settings).__name__} does not support a prior")
    return spec.replace(**{name: getattr(prior.spec, name) for name in INHERITED})


# Relative difference up to which two sampling times count as equal.
STEP = 0.01


def check_prior(prior: Any, strength: Any, series: Sequence[Series]) -> list[Series]:
    """Check that a posterior can be the prior of a fit to these series.

    Parameters
    ----------
    prior
        The posterior of a similar system.
    strength
        The weight of each of its rows.
    series
        The series to fit, in the user's units.

    Returns
    -------
    list of Series
        The series with the columns of the prior's data, in their order.

    Raises
    ------
    TypeError
        If `prior` is not a posterior.
    ValueError
        If it has no weights to pass on, or its sampling time differs.
    """
    if not isinstance(prior, Posterior):
        raise TypeError(f"prior must be a posterior from fit or load; got {prior!r}")
    check_states(prior, "a prior")
    if prior.model.basis.shared:
        raise ValueError(
            "prior must have separate weights for each state: fit it with coupling='none' or "
            "'shared'"
        )
    if not is_real(strength) or not 0 <= strength <= 1e6:
        raise ValueError(
            "prior_strength must be a number of at least 0, where 1 gives each row of the prior "
            f"full weight; got {strength!r}"
        )
    if not prior.learns:
        raise ValueError(
            f"prior must have learned a transition; {prior.method!r} has no weights. Fit it with "
            "another method"
        )
    other = prior.dataset.experiments[0]
    aligned = [prior.dataset.align(item) for item in series]
    for item in series:
        if item.dt and other.dt and abs(item.dt / other.dt - 1) > STEP:
            raise ValueError(
                f"the series has a sampling time of {item.dt:g}, the prior of {other.dt:g}: "
                "resample one of them first (series.decimated)"
            )
    return aligned
