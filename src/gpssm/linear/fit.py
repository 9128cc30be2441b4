"""The linear fit that everything starts from: a linear-Gaussian model and its states.

Two routes lead to one. Expectation-maximisation from a subspace fit maximises the likelihood
(`linear_fit`); the output-error fit minimises the squared error of a simulation
(`output_error_fit`), and serves where an emission such as y = |η| has lost what a filter needs.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from gpssm.core.runtime import in_double_precision, on_host
from gpssm.data.padding import pad
from gpssm.data.series import Series, as_list, check_trainable
from gpssm.linear.identification import fit_linear
from gpssm.linear.output_error import Emission, fit_output_error, identity
from gpssm.linear.state_space import LinearFit, smoothed_moments
from gpssm.linear.wired import fit_wired, fit_wired_output_error
from gpssm.model.likelihoods import (
    Likelihood,
    LinkedGaussian,
    Wiener,
    make_likelihood,
)
from gpssm.model.wiring import make_wiring

if TYPE_CHECKING:
    from gpssm.methods.spec import Spec


@in_double_precision
@on_host()
def linear_fit(series: Any, spec: "Spec") -> LinearFit:
    """Fit a linear model to the outputs, on the scale of the likelihood's linear predictor.

    Where a link has lost what the predictor was, as y = |η| has, linear dynamics are fitted by
    their simulation instead, if there are inputs to drive it.

    Parameters
    ----------
    series
        One scaled series or several.
    spec
        Its `state_dim`, `likelihood` and `wiring` are used; the fit keeps the wiring.

    Returns
    -------
    The model, and its smoothed states for each series.
    """
    experiments = as_list(series)
    check_trainable(series)
    likelihood = uninformed_likelihood(spec.likelihood, experiments[0].output_dim)
    driven = experiments[0].input_dim > 0
    if driven and isinstance(likelihood, LinkedGaussian) and not likelihood.link.one_to_one:
        return output_error_fit(experiments, spec)
    if driven and isinstance(likelihood, Wiener) and spec.wiring is None:
        return output_error_fit(experiments, spec)
    pseudo = pseudo_series(experiments, likelihood)
    wiring = _wiring(spec, experiments)
    if wiring is not None:
        return fit_wired(pseudo, wiring, jax.random.key(0))
    model = fit_linear(pseudo, spec.state_dim)
    padded = [pad(item) for item in pseudo]
    ends = np.cumsum([len(item) + 1 for item in padded])[:-1]
    paths = np.split(np.asarray(smoothed_moments(model, padded)[0]), ends)
    states = [path[: len(item) + 1] for path, item in zip(paths, pseudo, strict=True)]
    return LinearFit.of(model, states, pseudo)


@in_double_precision
def output_error_fit(series: list[Series], spec: "Spec") -> LinearFit:
    """The linear model whose simulation, through the link, has the least squared error.

    A curve at the output (Wiener) is found together with the dynamics, since no filter sees
    through it.
    """
    likelihood = uninformed_likelihood(spec.likelihood, series[0].output_dim)
    if isinstance(likelihood, Wiener) and spec.wiring is None:
        curve = type(likelihood).curve
        return fit_output_error(
            series, spec.state_dim, curve, jax.random.key(0), likelihood.weights
        )
    linked = isinstance(likelihood, LinkedGaussian)
    outputs = series if linked else pseudo_series(series, likelihood)
    link: Emission = likelihood.link.forward if linked else identity
    wiring = _wiring(spec, series)
    if wiring is None:
        return fit_output_error(outputs, spec.state_dim, link, jax.random.key(0))
    return fit_wired_output_error(outputs, wiring, link, jax.random.key(0))


def uninformed_likelihood(likelihood: str | Likelihood, num_outputs: int) -> Likelihood:
    """A likelihood of the class that is asked for, with parameters of no meaning."""
    name = "gaussian" if isinstance(likelihood, str) and likelihood == "auto" else likelihood
    zeros = jnp.zeros(num_outputs)
    return make_likelihood(name, jnp.zeros((num_outputs, 1)), zeros, jnp.ones(num_outputs))


def pseudo_series(series: Sequence[Series], likelihood: Likelihood) -> list[Series]:
    """The series with outputs on the scale of the likelihood's linear predictor."""
    return [
        Series(np.asarray(likelihood.pseudo_outputs(jnp.asarray(item.y))), item.u)
        for item in series
    ]


def _wiring(spec: "Spec", series: Sequence[Series]) -> Any:
    return make_wiring(spec.wiring, spec.state_dim, series[0].input_dim, series[0].output_dim)
