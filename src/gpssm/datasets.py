"""Benchmark series (`load`) and simulated series whose truth is known (`simulate`)."""

from gpssm.data.datasets import (
    RECORDS,
    REGISTRY,
    SIMULATORS,
    Benchmark,
    Simulated,
    load,
    load_records,
    simulate,
    simulate_duffing,
    simulate_kink,
    simulate_linear_gaussian,
    simulate_model,
)

__all__ = [
    "RECORDS",
    "REGISTRY",
    "SIMULATORS",
    "Benchmark",
    "Simulated",
    "load",
    "load_records",
    "simulate",
    "simulate_duffing",
    "simulate_kink",
    "simulate_linear_gaussian",
    "simulate_model",
]
