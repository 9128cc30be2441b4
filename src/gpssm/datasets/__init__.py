"""Benchmark series (`load`) and simulated ones whose truth is known (`simulate`)."""

from collections.abc import Callable
from typing import Any

from gpssm.datasets.base import Simulated
from gpssm.datasets.benchmarks import load, names
from gpssm.datasets.duffing import simulate_duffing
from gpssm.datasets.kink import simulate_kink
from gpssm.datasets.linear_gaussian import simulate_linear_gaussian
from gpssm.datasets.sparse_gp import simulate_sparse_gp

SIMULATORS: dict[str, Callable[..., Simulated]] = {
    "kink": simulate_kink,
    "sparse_gp": simulate_sparse_gp,
    "linear_gaussian": simulate_linear_gaussian,
    "duffing": simulate_duffing,
}


def simulate(name: str, **options: Any) -> Simulated:
    """Simulate the system of that name; all take `num_steps` and `seed`, see its own function for more.

    truth = simulate("kink", num_steps=100, seed=1, noise_std=0.1)
    truth.series, truth.states, truth.transition
    """
    if name not in SIMULATORS:
        raise ValueError(f"no simulator is called {name!r}; there are {', '.join(SIMULATORS)}")
    return SIMULATORS[name](**options)


__all__ = ["SIMULATORS", "Simulated", "load", "names", "simulate"]
