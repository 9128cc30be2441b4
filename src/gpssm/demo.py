"""The demonstration: a series with known truth, a model built from it, and its densities."""

import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from gpssm.build import build_model, linear_start
from gpssm.datasets import simulate
from gpssm.runtime import numerical
from gpssm.scaler import Scaler
from gpssm.target import log_collapsed, log_target, weights_given_states


@numerical
def run(seed: int = 0) -> None:
    """Simulate, build, evaluate, print."""
    console = Console()
    simulated = simulate("duffing", seed=seed)
    train, test = simulated.series.split(0.5)
    series = Scaler.fit(train).scale(train)
    console.print(f"Simulated a driven Duffing oscillator: {len(train)} steps to train on, {len(test)} to test on.")
    table = Table("state dimension", "log q*(v, x)", "log q*(x)", title="Log densities at the linear model's states")
    for state_dim in (1, 2, 3):
        start = linear_start(series, state_dim)
        model = build_model(series, state_dim=state_dim, num_inducing=20, start=start)
        states = jnp.asarray(start.states[0])
        weights = weights_given_states(model, states, series).mean
        joint, collapsed = log_target(model, states, weights, series), log_collapsed(model, states, series)
        table.add_row(str(state_dim), f"{joint:.2f}", f"{collapsed:.2f}")
    console.print(table)
