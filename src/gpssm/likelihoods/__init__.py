"""The registry of likelihoods: names for configuration files, classes for code."""

from collections.abc import Callable
from functools import partial

from jaxtyping import Array, Float

from gpssm.likelihoods.base import GaussianNoise, Likelihood, LinearPredictor, Observed, observed
from gpssm.likelihoods.bernoulli import Bernoulli
from gpssm.likelihoods.custom import Custom
from gpssm.likelihoods.function_gaussian import FunctionGaussian
from gpssm.likelihoods.gaussian import Gaussian
from gpssm.likelihoods.linked_gaussian import LINKS, Link, LinkedGaussian
from gpssm.likelihoods.poisson import Poisson
from gpssm.likelihoods.student_t import StudentT

# Each is built from an output map C, an offset d and noise standard deviations, as a linear fit gives them.
LIKELIHOODS: dict[str, Callable[..., Likelihood]] = {
    "gaussian": Gaussian.build,
    "student-t": StudentT.build,
    "poisson": Poisson.build,
    "bernoulli": Bernoulli.build,
    **{name: partial(LinkedGaussian.build, link=link) for name, link in LINKS.items()},
}


def make_likelihood(
    spec: str | Likelihood, C: Float[Array, "Dy Dx"], d: Float[Array, " Dy"], std: Float[Array, " Dy"]
) -> Likelihood:
    """A likelihood from its registry name; likelihoods pass through."""
    if isinstance(spec, Likelihood):
        return spec
    if spec not in LIKELIHOODS:
        raise KeyError(f"Unknown likelihood {spec!r}. Known: {', '.join(LIKELIHOODS)}; or pass a Likelihood.")
    return LIKELIHOODS[spec](C, d, std)


__all__ = [
    "LIKELIHOODS",
    "LINKS",
    "Bernoulli",
    "Custom",
    "FunctionGaussian",
    "Gaussian",
    "GaussianNoise",
    "Likelihood",
    "LinearPredictor",
    "Link",
    "LinkedGaussian",
    "Observed",
    "Poisson",
    "StudentT",
    "make_likelihood",
    "observed",
]
