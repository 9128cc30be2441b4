"""What another plant has taught, as the prior of a fit: a sister of this one, or itself last month.

The posterior of the other plant gives kernel, basis, output map and scaling, in whose coordinates it knows the weights
of its transition: over the draws of its best chain, with Λ the precision of that Gaussian in place of the prior's I,

    v_d ~ N(μ_d, Λ_d⁻¹),   and with the strength s:   precision I + s (Λ_d − I),   mean s (I + s (Λ_d − I))⁻¹ Λ_d μ_d

as if each of its rows had counted s times. That is another mean function and another gain, and nothing else: with
F_d F_dᵀ the covariance and m_d the mean, v_d = m_d + F_d w_d and w_d ~ N(0, I) in

    f_d(z) | w_d ~ N( m_d(z) + A_d(z) m_d + A_d(z) F_d w_d ,  B_d(z) )

(`means.Shifted`, `bases.Informed`). Kernel and basis stay as they are, for the weights mean nothing without them;
states, weights and noises are learned.
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
from gpssm.posterior.draws import map_draws
from gpssm.posterior.posterior import Posterior
from gpssm.posterior.update import extend_states
from gpssm.starts.build import Start

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
MAX_DRAWS = 100  # whose weights are averaged
STEP = 0.01  # relative difference of sampling intervals that is no difference


def inherit(prior: Posterior, series: Sequence[Series], strength: float, seed: int) -> Start:
    """The model with the posterior of another plant as its prior, and states to start from along scaled series."""
    chain = int(np.argmax(np.mean(prior.info.log_target, 1)))
    model, mean, covariance = learned_weights(prior.chain(chain))
    centre, factor = temper(mean, covariance, strength)
    told = GPSSM.create(
        model.kernel,
        Informed(model.basis, factor),
        Shifted(model.mean, model.kernel, model.basis, centre, model.factorise()),
        model.likelihood,
        jnp.exp(model.log_process_std),
    )
    told = told.with_priors(
        {name: model.priors[name] for name in told.leaves() if name in model.priors}
    )
    return Start(told, [extend_states(prior, chain, one, True, seed, -1)[-1] for one in series])


def learned_weights(
    posterior: Posterior,
) -> tuple[GPSSM, Float[Array, "Dx M"], Float[Array, "Dx M M"]]:
    """One model for all draws, at the mean of their parameters, and the moments of the weights under it."""
    fewer = posterior.thinned(MAX_DRAWS)
    means_of = {
        name: jnp.mean(jnp.asarray(leaf), (0, 1)) for name, leaf in fewer.draws.leaves.items()
    }
    model = fewer.model.with_leaves(means_of)
    dim, size = fewer.draws.weights.shape[2:]
    if fewer.learned is None:
        draws = fewer.draws._replace(leaves={})
        moments = map_draws(_moments, model, draws, list(fewer.dataset.scaled)).reshape(
            -1, dim, size, size + 1
        )
        means, covariances = moments[..., 0], moments[..., 1:]
    else:
        weights = slice(model.state_dim, None)
        state = fewer.learned.state
        means = np.asarray(state.mean[..., weights]).reshape(-1, dim, size)
        whole = np.asarray(state.covariance[..., weights, weights])
        whole = whole.reshape(-1, dim, size, dim, size)
        covariances = np.stack([whole[:, d, :, d] for d in range(dim)], 1)
    gaps = means - means.mean(0)
    between = np.einsum("sdi,sdj->dij", gaps, gaps) / len(means)
    return model, jnp.asarray(means.mean(0)), jnp.asarray(covariances.mean(0) + between)


def _moments(model: GPSSM, draw: Draw, series: list[Series]) -> Float[Array, "Dx M M+1"]:
    """P⁻¹b and P⁻¹ side by side."""
    found = weights_given_states(model, list(draw.states), series)
    covariance = gram(inverse_root(found.precision))
    return jnp.concatenate([found.mean[:, :, None], covariance], -1)


def temper(
    mean: Float[Array, "Dx M"], covariance: Float[Array, "Dx M M"], strength: float
) -> tuple[Float[Array, "Dx M"], Float[Array, "Dx M M"]]:
    """Mean and lower factor F of the covariance when each row counts `strength` times.

    What is less certain than it was before any data, as draws in different coordinates can be, counts as unknown.
    """

    def one(given: Array) -> Array:
        variances, directions = jnp.linalg.eigh(given[:, 1:])
        told = jnp.maximum(1 / jnp.maximum(variances, 1e-300) - 1, 0.0)
        precision = 1 + strength * told
        centre = directions @ (strength * (1 + told) / precision * (directions.T @ given[:, 0]))
        factor = cholesky((directions / precision[None]) @ directions.T, jitter=1e-14)
        return jnp.concatenate([centre[:, None], factor], -1)

    found = one_by_one(one, jnp.concatenate([mean[:, :, None], covariance], -1))
    return found[:, :, 0], found[:, :, 1:]


def inherited_spec(spec: Spec) -> Spec:
    """The spec with what a prior decides; what it decides may not be asked for otherwise."""
    prior: Posterior = spec.prior
    standard = Spec()
    changed = [
        name
        for name in (*INHERITED, "start", "noise", "physics")
        if not same(getattr(spec, name), getattr(standard, name))
        and not (name in INHERITED and same(getattr(spec, name), getattr(prior.spec, name)))
    ]
    if changed:
        raise ValueError(
            f"{', '.join(changed)} come with prior, in whose coordinates it was learned: leave out"
        )
    if spec.calibrate:
        raise ValueError(
            "calibrate=True measures on fits of the fit's own rows: call posterior.calibrate() afterwards"
        )
    if type(spec.settings).prepare is not MethodSettings.prepare:
        raise ValueError(
            f"{type(spec.settings).__name__} makes its model from the data alone, and takes no prior"
        )
    return spec.replace(**{name: getattr(prior.spec, name) for name in INHERITED})


def check_prior(prior: Any, strength: Any, series: Sequence[Series]) -> list[Series]:
    """The series with the columns of the prior's in their order, if it can be one of theirs."""
    if not isinstance(prior, Posterior):
        raise TypeError(f"prior must be a posterior, of fit or load; got {prior!r}")
    prior.check_states("a prior")
    if prior.model.basis.shared:
        raise ValueError(
            "prior must have weights of each state's own: fit it with coupling='none' or 'shared'"
        )
    if not is_real(strength) or not 0 <= strength <= 1e6:
        raise ValueError(
            f"prior_strength must be a number from 0 (nothing) on, 1 for all it knows; got {strength!r}"
        )
    if not prior.learns:
        raise ValueError(
            f"prior must have learned a transition; {prior.method!r} has no weights. Fit it with another method"
        )
    found, other = [prior.dataset.align(one) for one in series], prior.dataset.experiments[0]
    for given in series:
        if given.dt and other.dt and abs(given.dt / other.dt - 1) > STEP:
            raise ValueError(
                f"the series has a row every {given.dt:g}, the prior every {other.dt:g}, and what a step does depends "
                "on it: resample one of them first (series.decimated)"
            )
    return found
