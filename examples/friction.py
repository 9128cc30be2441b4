"""Physics with one unknown function: the friction of a stage as a function of its speed.

    q_{t+1} = q_t + dt v_t                                position
    v_{t+1} = v_t + dt (k V_t − friction(v_t)) + noise    speed; V is the motor's voltage

The stage is the benchmark EMPS (datasets `emps` and `emps-pulses`: GPSSM_DATA, or a download). k is
a parameter to be learned and the friction a Gaussian process of the speed. The model is fitted to
one record and simulates the other from its voltages and first rows.

    python examples/friction.py [--out FILE] [--every 20] [--quick]
"""

import argparse
import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import gpssm

STEP = 1e-3  # seconds per row of the records
QUICK = {"num_chains": 1, "num_warmup": 20, "num_draws": 10}


def coarse(record: gpssm.Series, every: int) -> gpssm.Series:
    """Decimate the record, and average inputs.

    v_t is the mean speed over a row and responds to the voltages around its end.
    """
    rows = record.decimated(every)
    following = np.concatenate([rows.u[1:], rows.u[-1:]])
    return dataclasses.replace(rows, u=0.5 * (rows.u + following))


def stage(dt: float) -> gpssm.Physics:
    """The known equations of the stage: positions in m, speeds in m/s."""

    # --8<-- [start:physics]
    def step(x: Array, u: Array, p: dict[str, Array]) -> Array:
        position, speed = x
        return jnp.stack([position + dt * speed, speed + dt * p["gain"] * u[0]])

    def states(y: np.ndarray, u: np.ndarray) -> np.ndarray:
        positions = np.concatenate([y[:1], y])[:, 0]
        return np.stack([positions, np.append(np.diff(positions), 0.0) / dt], axis=1)

    return gpssm.Physics(
        step,
        gpssm.Unknown(
            feature=lambda x, u: x[1],  # friction depends on the speed,
            into=1,  # enters the speed's equation,
            factor=lambda x, u: -dt,  # and is subtracted
            at=np.linspace(-0.2, 0.2, 25),
            size=0.5,  # m/s²
            length=0.03,  # m/s
            kernel="matern32",  # there may be a kink at standstill
        ),
        outputs=[[1.0, 0.0]],
        states=states,
        scale=[0.1, 0.1],
        parameters={"gain": gpssm.priors.Normal(0.5, 0.5)},
        noise=[1e-5, 1e-3],
        exact=[0],
    )
    # --8<-- [end:physics]


def friction_of(posterior: gpssm.Posterior, speeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the learned friction at these speeds, in m/s²."""
    learned = gpssm.analysis.unknown(posterior, speeds)
    return learned.mean, learned.std


def main() -> None:
    """Fit one record, simulate the other, draw the friction."""
    parser = argparse.ArgumentParser(description="The friction of a stage.")
    parser.add_argument("--out", default="friction.png")
    parser.add_argument("--every", type=int, default=20, help="rows of 1 ms per row of the model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", default="free", help="free, small or a number")
    parser.add_argument("--quick", action="store_true", help="few draws and rows, for a smoke test")
    options = parser.parse_args()
    train, test = (coarse(record, options.every) for record in gpssm.datasets.load_records("emps"))
    train, test = (train[:80], test[:60]) if options.quick else (train, test)
    noise = options.noise if options.noise in ("free", "small") else float(options.noise)
    # --8<-- [start:fit]
    posterior = gpssm.fit(
        train,
        physics=stage(STEP * options.every),
        start="shooting",
        noise=noise,
        seed=options.seed,
        progress=False,
        **(QUICK if options.quick else {"num_chains": 2, "num_warmup": 300, "num_draws": 100}),
    )
    start = 2  # rows that determine the initial state
    simulation = posterior.simulate(test.u[start:], warmup=test[:start])
    # --8<-- [end:fit]
    rmse = 1e3 * np.sqrt(np.mean((simulation.mean - test.y[start:]) ** 2))
    low, high = simulation.interval(0.9)
    inside = np.mean((test.y[start:] >= low) & (test.y[start:] <= high))
    gain = float(_gain(posterior))
    interval = 1e3 * STEP * options.every
    print(f"{len(train)} rows of {interval:.0f} ms; gain {gain:.4f} m/s² per volt")
    print(f"simulation of the other record: RMSE {rmse:.2f} mm, 90 % intervals cover {inside:.0%}")
    speeds = np.linspace(-0.18, 0.18, 121)
    draw(speeds, *friction_of(posterior, speeds), options.out)


def _gain(posterior: gpssm.Posterior) -> np.ndarray:
    name = "mean.parameters.gain"
    return np.mean(np.asarray(posterior.draws.leaves.get(name, posterior.model.leaves()[name])))


def draw(speeds: np.ndarray, friction: np.ndarray, spread: np.ndarray, path: str) -> None:
    """Draw the learned friction with its 90 % band."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0, 3.0), layout="constrained")
    axes = figure.add_subplot(xlabel="speed (m/s)", ylabel="friction (m/s² of the stage)")
    axes.fill_between(
        speeds, friction - 1.645 * spread, friction + 1.645 * spread, alpha=0.3, lw=0, label="90 %"
    )
    axes.plot(speeds, friction, label="learned")
    axes.axhline(0.0, color="0.7", lw=0.7)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
