"""The registry of kernels: names for configuration files, classes for code."""

from collections.abc import Callable

from jaxtyping import ArrayLike

from gpssm.kernels.base import Active, DotProduct, Kernel, Product, Stationary, Sum
from gpssm.kernels.linear import Linear
from gpssm.kernels.matern import Matern, Matern12, Matern32, Matern52
from gpssm.kernels.neural_network import NeuralNetwork
from gpssm.kernels.periodic import Periodic
from gpssm.kernels.polynomial import Polynomial
from gpssm.kernels.rational_quadratic import RationalQuadratic
from gpssm.kernels.squared_exponential import SquaredExponential

KERNELS: dict[str, Callable[..., Kernel]] = {
    "se": SquaredExponential.build,
    "matern12": Matern12.build,
    "matern32": Matern32.build,
    "matern52": Matern52.build,
    "rq": RationalQuadratic.build,
    "periodic": Periodic.build,
    "linear": Linear.build,
    "polynomial": Polynomial.build,
    "neural-network": NeuralNetwork.build,
}


def make_kernel(
    spec: str | Kernel, state_dim: int, dim: int, variance: ArrayLike = 1.0, lengthscale: ArrayLike = 1.0
) -> Kernel:
    """A kernel from its registry name, or from names joined by `+` and `*`: "se+linear*periodic".

    `*` binds before `+`; every part starts from the same variance and lengthscale; kernels pass through.
    """
    if isinstance(spec, Kernel):
        return spec
    for operator, combine in (("+", Sum), ("*", Product)):
        left, found, right = spec.partition(operator)
        if found:
            parts = [make_kernel(side, state_dim, dim, variance, lengthscale) for side in (left, right)]
            return combine(*parts)
    if spec.strip() not in KERNELS:
        raise KeyError(
            f"Unknown kernel {spec.strip()!r}. Known: {', '.join(KERNELS)}; combine with + and *, or pass a Kernel."
        )
    return KERNELS[spec.strip()](state_dim, dim, variance=variance, lengthscale=lengthscale)


__all__ = [
    "KERNELS",
    "Active",
    "DotProduct",
    "Kernel",
    "Linear",
    "Matern",
    "Matern12",
    "Matern32",
    "Matern52",
    "NeuralNetwork",
    "Periodic",
    "Polynomial",
    "Product",
    "RationalQuadratic",
    "SquaredExponential",
    "Stationary",
    "Sum",
    "make_kernel",
]
