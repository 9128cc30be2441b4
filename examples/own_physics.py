"""Known physics plus a Gaussian process: a tank that is filled by a pump and drains by itself.

    level_{t+1} = level_t + dt · pump_t + f(level_t) + noise        y_t = level_{t+1} + noise

The inflow is known; the outflow f is not. It depends on the level alone, so the level is the only
argument of the Gaussian process. The true function is f = −.4 dt √level.

    python examples/own_physics.py [--out FILE] [--quick]
"""

import argparse
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import gpssm
from gpssm.starts.build import Start

DT = 0.5
OUTFLOW = 0.4
QUICK = {"num_chains": 2, "num_warmup": 30, "num_draws": 20}


def simulate(num_steps: int, seed: int = 0) -> gpssm.Series:
    """A tank whose pump changes every ten steps."""
    rng = np.random.default_rng(seed)
    pump = np.repeat(rng.uniform(0.1, 0.8, num_steps // 10 + 1), 10)[:num_steps]
    level = np.ones(num_steps + 1)
    for t in range(num_steps):
        change = DT * (pump[t] - OUTFLOW * np.sqrt(level[t]))
        level[t + 1] = max(level[t] + change + 0.01 * rng.normal(), 0.0)
    y = level[1:] + 0.03 * rng.normal(size=num_steps)
    return gpssm.Series(y, pump, outputs=["level"], inputs=["pump"], dt=DT, name="tank")


# --8<-- [start:method]
@dataclass(frozen=True)
class TankMethod(gpssm.methods.FFVD):
    """The sampler `ffvd` with a custom model and custom starting states."""

    input_mean: float = 0.0
    input_std: float = 1.0

    def inflow(self, x: Float[Array, " 1"], u: Float[Array, " 1"]) -> Float[Array, " 1"]:
        """The physics, m(x, u) = level + dt · pump. Inputs are scaled: convert them first."""
        return x + DT * (self.input_mean + self.input_std * u)

    def prepare(self, series: list[gpssm.Series], spec: gpssm.Spec, key: PRNGKeyArray) -> Start:
        """Return the model, and starting states at the measured levels."""
        states = [np.concatenate([rows.y[:1], rows.y]) for rows in series]
        levels = np.linspace(0.0, 1.2 * np.max(np.concatenate(states)), 12)
        # f depends on the level alone, so the pump's coordinate of the locations has no effect.
        inner = gpssm.kernels.SquaredExponential.build(1, 1, variance=0.05, lengthscale=1.0)
        model = gpssm.GPSSM.create(
            kernel=gpssm.kernels.Active(inner, dims=(0,)),
            basis=gpssm.bases.InducingPoints(jnp.asarray(np.stack([levels, np.zeros(12)], axis=1))),
            mean=gpssm.means.Function(self.inflow),
            likelihood=spec.likelihood,
            process_std=jnp.array([0.02]),
        )
        return Start(model, states)


# --8<-- [end:method]


def fit(train: gpssm.Series, **settings: int) -> gpssm.Posterior:
    """Return the posterior of the tank."""
    # --8<-- [start:fit]
    scaler = gpssm.Scaler.fit(train)
    method = TankMethod(input_mean=scaler.input_mean[0], input_std=scaler.input_std[0])
    # The state is the level itself, in the data's units: this likelihood leaves outputs unscaled.
    level = gpssm.likelihoods.FunctionGaussian(
        log_std=jnp.log(jnp.array([0.05])), function=lambda x: x
    )
    posterior = gpssm.fit(
        train, method=method, likelihood=level, fixed=["basis.*"], progress=False, **settings
    )
    # --8<-- [end:fit]
    return posterior


def main() -> None:
    """Fit, compare with models without physics, and draw the learned outflow."""
    parser = argparse.ArgumentParser(description="A custom mean function.")
    parser.add_argument("--out", default="own_physics.png")
    parser.add_argument("--quick", action="store_true", help="few draws, for a smoke test")
    options = parser.parse_args()
    train, test = simulate(200).split(0.5)
    posterior = fit(train, **(QUICK if options.quick else {}))
    print(posterior.diagnostics())
    print(gpssm.compare({"tank": posterior}, test, baselines=["arx", "lgssm"]))

    levels = np.linspace(0.1, float(np.max(train.y)), 50)
    # With the pump off, f is the drop in level.
    learned = posterior.transition(levels[:, None], np.zeros((50, 1)))
    outflow, spread = levels - learned.mean[:, 0], learned.std[:, 0]
    truth = DT * OUTFLOW * np.sqrt(levels)
    print(
        f"outflow: largest error {np.max(np.abs(outflow - truth)):.3f} of at most {truth.max():.3f}"
    )
    draw(levels, outflow, spread, truth, options.out)


def draw(
    levels: np.ndarray, outflow: np.ndarray, spread: np.ndarray, truth: np.ndarray, path: str
) -> None:
    """Draw the learned outflow with its 90 % band, and the true outflow."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0, 3.0), layout="constrained")
    axes = figure.add_subplot(xlabel="level", ylabel="outflow in one step")
    axes.fill_between(
        levels, outflow - 1.645 * spread, outflow + 1.645 * spread, alpha=0.3, lw=0, label="90 %"
    )
    axes.plot(levels, outflow, label="learned")
    axes.plot(levels, truth, "k--", label="truth")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
