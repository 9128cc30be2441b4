"""Model predictive control: a pump keeps a tank close to its rim without overflowing.

The level of a tank with an outlet follows dh = a·pump − b·√h with noise and is measured with noise.
A model learns these dynamics from a record. Then, in closed loop, `condition` processes each
measurement, the next pump rates are optimised over the paths of the forecast (`rollout`), and the
first rate is applied.

    minimise over u   mean over paths and steps of (level − target)² + .02 (change of u)²
    such that         P(level ≤ limit) ≥ 0.9 at each step, 0 ≤ u ≤ 2

The probability is that over paths: a 90 % quantile of the paths above the limit has a high cost.

    python examples/mpc.py [--quick] [--out figure.png]
"""

import argparse
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import gpssm
from gpssm.posterior.control import Rollout, StateEnsemble

DT, NOISE, SENSOR = 1.0, 0.03, 0.05
TARGET, LIMIT, SURE = 2.9, 3.0, 0.9
LOWEST, HIGHEST = 0.0, 2.0
HORIZON, SEARCH = 10, 25  # steps ahead, and gradient steps of each search
QUICK = {"num_inducing": 10, "num_chains": 1, "num_warmup": 60, "num_draws": 20}


def flow(level: float, pump: float, rng: np.random.Generator) -> float:
    """One step of the true system, which the controller does not know."""
    return max(
        level + DT * (0.5 * pump - 0.3 * np.sqrt(max(level, 0.0))) + NOISE * rng.normal(), 0.0
    )


def record(rows: int, rng: np.random.Generator) -> gpssm.Series:
    """An experiment in which the pump rate changes every few rows."""
    level = 1.0
    levels = []
    pumps = np.repeat(rng.uniform(LOWEST, HIGHEST, rows // 8 + 1), 8)[:rows]
    for pump in pumps:
        level = flow(level, pump, rng)
        levels.append(level + SENSOR * rng.normal())
    return gpssm.Series(np.array(levels), pumps, outputs="level", inputs="pump", dt=DT)


# --8<-- [start:planner]
def make_planner(rollout: Rollout) -> Callable[[StateEnsemble, jax.Array, jax.Array], jax.Array]:
    """Return a compiled function from the current state and the last plan to the next plan."""

    def cost(free: jax.Array, start: StateEnsemble, before: jax.Array) -> jax.Array:
        u = LOWEST + (HIGHEST - LOWEST) * jax.nn.sigmoid(free)
        levels = rollout(start, u[:, None])[:, :, 0]
        beyond = jnp.maximum(jnp.quantile(levels, SURE, axis=0) - LIMIT, 0.0)
        changes = jnp.diff(u, prepend=before)
        return (
            jnp.mean((levels - TARGET) ** 2)
            + 0.02 * jnp.mean(changes**2)
            + 100 * jnp.mean(beyond**2)
        )

    @jax.jit
    def plan(start: StateEnsemble, guess: jax.Array, before: jax.Array) -> jax.Array:
        def improve(carry: tuple[jax.Array, ...], _: None) -> tuple[tuple[jax.Array, ...], None]:
            free, speed, size = carry
            slope = jax.grad(cost)(free, start, before)
            speed, size = 0.8 * speed + 0.2 * slope, 0.9 * size + 0.1 * slope**2
            return (free - 0.3 * speed / (jnp.sqrt(size) + 1e-6), speed, size), None

        zeros = jnp.zeros_like(guess)
        (free, _, _), _ = jax.lax.scan(improve, (guess, zeros, zeros), None, SEARCH)
        return free

    return plan


# --8<-- [end:planner]


def control(
    posterior: gpssm.Posterior, rows: int, num_paths: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Run the closed loop; return levels, pump rates, and seconds per row of filter and search."""
    history = posterior.dataset.experiments[-1]
    level = float(history.y[-1, 0])
    levels = []
    pumps = []
    seconds = []
    with jax.enable_x64(True):
        rollout = posterior.rollout(num_paths)
        plan = make_planner(rollout)
        free = jnp.zeros(HORIZON)
        before = jnp.asarray(history.u[-1, 0])
        for _ in range(rows):
            start = time.perf_counter()
            free = plan(rollout.states_of(posterior), free, before)
            before = LOWEST + (HIGHEST - LOWEST) * jax.nn.sigmoid(free[0])
            pump = float(before)
            planned = time.perf_counter()
            level = flow(level, pump, rng)
            measured = [[level + SENSOR * rng.normal()]]
            row = gpssm.Series(measured, [[pump]], outputs="level", inputs="pump")
            posterior = posterior.condition(row)
            seconds.append((time.perf_counter() - planned, planned - start))
            levels.append(level)
            pumps.append(pump)
            # The next search starts from the rest of the plan.
            free = jnp.append(free[1:], free[-1])
    return np.array(levels), np.array(pumps), np.array(seconds)


def main() -> None:
    """Fit, then control."""
    parser = argparse.ArgumentParser(
        description="Receding-horizon control with a chance constraint."
    )
    parser.add_argument("--quick", action="store_true", help="few rows and draws, for a smoke test")
    parser.add_argument("--out", help="a figure of the closed loop")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    train = record(100 if options.quick else 300, rng)
    settings = {"method": "ffvd", "start": "em", "state_dim": 1, "progress": False}
    posterior = gpssm.fit(train, **settings, **(QUICK if options.quick else {}))
    levels, pumps, seconds = control(posterior.thinned(50), 25 if options.quick else 100, 100, rng)
    settled = levels[10:]
    print(
        f"{len(levels)} rows: level {settled.mean():.3f} on average after the first ten, "
        f"target {TARGET}"
    )
    print(
        f"above {LIMIT} in {np.mean(settled > LIMIT):.0%} of the rows, "
        f"with {1 - SURE:.0%} allowed at each step"
    )
    filtering, searching = 1e3 * np.median(seconds[2:], axis=0)
    print(
        f"{filtering:.0f} ms per row for the filter, "
        f"{searching:.0f} ms for {SEARCH} gradients of 100 paths"
    )
    if options.out:
        from gpssm.plots.style import in_house_style, panels

        with in_house_style():
            figure, axes = panels(2, sharex=True)
            axes[0, 0].plot(levels, label="level")
            axes[0, 0].axhline(LIMIT, linestyle=":", label="limit")
            axes[0, 0].legend()
            axes[1, 0].step(np.arange(len(pumps)), pumps, where="post")
            axes[0, 0].set_ylabel("level")
            axes[1, 0].set(ylabel="pump", xlabel="row")
        figure.savefig(options.out)


if __name__ == "__main__":
    main()
