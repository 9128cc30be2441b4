"""The registry of mean functions: names for configuration files, classes for code."""

from gpssm.means.base import Mean
from gpssm.means.function import Function
from gpssm.means.identity import Identity
from gpssm.means.linear import LinearMap
from gpssm.means.lstm import LSTM
from gpssm.means.zero import Zero

MEANS: dict[str, type[Mean]] = {"identity": Identity, "zero": Zero, "linear": LinearMap, "function": Function}

__all__ = ["LSTM", "MEANS", "Function", "Identity", "LinearMap", "Mean", "Zero"]
