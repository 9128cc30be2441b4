"""Simulated systems on which intervals are judged: each is hard to model in a way of its own.

A system is a simulator and the number of its training rows. The first five change their law, have
a discontinuous one, or leave the region of the training inputs. The others are ordinary systems
whose records are damaged or unusual.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpssm.data.series import Series

ROWS = 350
Random = np.random.Generator
Damage = Callable[[np.ndarray, Random], None]


@dataclass(frozen=True)
class System:
    """A system whose records can be simulated from a seed.

    Parameters
    ----------
    simulate
        Returns a series of T rows from a number of training rows, T and a random generator.
    rows
        Number of training rows.
    damage
        Changes the training outputs, an array (rows, Dy), in place.
    settings
        Settings of the fit.
    """

    simulate: Callable[[int, int, Random], Series]
    rows: int = ROWS
    damage: Damage | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def records(self, seed: int, test_rows: int) -> tuple[Series, Series]:
        """Return the training series and the following test series."""
        rng = np.random.default_rng(seed)
        series = self.simulate(self.rows, self.rows + test_rows, rng)
        y = series.y.copy()
        if self.damage is not None:
            self.damage(y[: self.rows], rng)
        return Series(y, series.u if series.inputs else None).split(self.rows)


def levels(total: int, hold: int, rng: Random, columns: int = 1) -> np.ndarray:
    """Return inputs (T, columns), uniform in [-1, 1] and held for some rows."""
    return np.repeat(rng.uniform(-1, 1, (total // hold + 1, columns)), hold, axis=0)[:total]


def drift(rows: int, total: int, rng: Random) -> Series:
    """Simulate a gain that doubles over the training rows and goes on growing.

    y_{t+1} = (.8 - .2 t/N) y_t + .5 (1 + t/N) u_t
    """
    u = levels(total, 3, rng)
    y = np.zeros(total + 1)
    for t in range(total):
        y[t + 1] = (0.8 - 0.2 * t / rows) * y[t] + 0.5 * (1 + t / rows) * u[t, 0]
    return Series(y[1:] + 0.03 * rng.normal(size=total), u)


def friction(rows: int, total: int, rng: Random) -> Series:
    """Simulate the position p of a mass on a spring that sticks until the force exceeds 0.5.

    p'' = 2 u - p - .3 p' - .5 sign(p')
    """
    u = levels(total, 8, rng)
    step = 0.01
    position = 0.0
    velocity = 0.0
    y = np.empty(total)
    for t in range(total):
        for _ in range(20):
            force = 2 * u[t, 0] - position
            if velocity == 0 and abs(force) <= 0.5:
                break
            direction = np.sign(velocity) if velocity else np.sign(force)
            following = velocity + step * (force - 0.3 * velocity - 0.5 * direction)
            velocity = 0.0 if following * direction < 0 else following
            position += step * velocity
        y[t] = position
    return Series(y + 0.01 * rng.normal(size=total), u)


def relay(rows: int, total: int, rng: Random) -> Series:
    """Simulate a temperature whose heating turns on below -0.4 and off above 0.4.

    y_{t+1} = .95 y_t + .1 s_t + .05 u_t,    s_t = ±1 the state of the relay
    """
    u = levels(total, 10, rng)
    y = np.zeros(total + 1)
    heating = 1.0
    for t in range(total):
        if abs(y[t]) > 0.4:
            heating = -np.sign(y[t])
        y[t + 1] = 0.95 * y[t] + 0.1 * heating + 0.05 * u[t, 0] + 0.005 * rng.normal()
    return Series(y[1:] + 0.01 * rng.normal(size=total), u)


def pendulum(rows: int, total: int, rng: Random) -> Series:
    """Simulate the angle of a driven pendulum with large swings.

    θ'' = 0.8 u - sin θ - .3 θ'
    """
    u = levels(total, 10, rng)
    step = 0.02
    angle = 0.0
    speed = 0.0
    y = np.empty(total)
    for t in range(total):
        for _ in range(10):
            speed += step * (0.8 * u[t, 0] - np.sin(angle) - 0.3 * speed)
            angle += step * speed
        y[t] = angle
    return Series(y + 0.02 * rng.normal(size=total), u)


def step(rows: int, total: int, rng: Random) -> Series:
    """Simulate a saturating system whose test inputs lie outside of the training range.

    y_{t+1} = .8 y_t + tanh(u_t),    u_t doubled and shifted by 1 in the test rows
    """
    u = levels(total, 4, rng)
    u[rows:] = 2 * u[rows:] + 1
    return _tank(u, rng)


def tank(rows: int, total: int, rng: Random) -> Series:
    """Simulate one tank; see `_tank`."""
    return _tank(levels(total, 4, rng, 1) * 2, rng)


def five_by_five(rows: int, total: int, rng: Random) -> Series:
    """Simulate five tanks with five inputs."""
    return _tank(levels(total, 4, rng, 5) * 2, rng, outputs=5)


def one_step(rows: int, total: int, rng: Random) -> Series:
    """Simulate a tank whose input has a single step, in the middle of the training rows."""
    return _tank((np.arange(total) > rows // 2).astype(float)[:, None], rng)


def collinear(rows: int, total: int, rng: Random) -> Series:
    """Simulate a tank with two proportional inputs."""
    series = tank(rows, total, rng)
    return Series(series.y, np.hstack([series.u, 2 * series.u]))


def two_tanks(rows: int, total: int, rng: Random) -> Series:
    """Simulate two outputs with one input."""
    return _tank(levels(total, 4, rng) * 2, rng, outputs=2)


def regimes(rows: int, total: int, rng: Random) -> Series:
    """Simulate a tank whose gain doubles in the middle of the training rows."""
    series = tank(rows, total, rng)
    gain = np.where(np.arange(total) < rows // 2, 1.0, 2.0)
    return Series(series.y * gain[:, None], series.u)


def scaled(factor: float) -> Callable[[int, int, Random], Series]:
    """Return the simulator of a tank with its outputs in another unit."""

    def simulate(rows: int, total: int, rng: Random) -> Series:
        series = tank(rows, total, rng)
        return Series(factor * series.y, series.u)

    return simulate


def growing(rows: int, total: int, rng: Random) -> Series:
    """Simulate an output that grows steadily."""
    return Series(np.cumsum(0.5 + 0.1 * rng.normal(size=total)))


def integrating(rows: int, total: int, rng: Random) -> Series:
    """Simulate a random walk with an input: y_{t+1} = y_t + .3 u_t + N(0, .05²)."""
    u = levels(total, 5, rng)
    return Series(np.cumsum(0.3 * np.r_[0, u[:-1, 0]] + 0.05 * rng.normal(size=total)), u)


def periodic(rows: int, total: int, rng: Random) -> Series:
    """Simulate a sine with noise."""
    return Series(np.sin(0.3 * np.arange(total)) + 0.1 * rng.normal(size=total))


def square_wave(rows: int, total: int, rng: Random) -> Series:
    """Simulate a square wave with noise."""
    return Series(np.sign(np.sin(0.25 * np.arange(total))) + 0.05 * rng.normal(size=total))


def independent(rows: int, total: int, rng: Random) -> Series:
    """Simulate white noise that does not depend on the input."""
    return Series(rng.normal(size=total), rng.normal(size=total))


def _tank(u: np.ndarray, rng: Random, outputs: int = 1) -> Series:
    """Simulate y_{t+1} = .8 y_t + tanh(W u_t) with noise of .1 and random W of unit rows."""
    mixing = rng.normal(size=(u.shape[1], outputs))
    mixing /= np.linalg.norm(mixing, axis=0)
    y = np.zeros((len(u) + 1, outputs))
    for t, inputs in enumerate(u):
        y[t + 1] = 0.8 * y[t] + np.tanh(inputs @ mixing)
    return Series(y[1:] + 0.1 * rng.normal(size=(len(u), outputs)), u)


def outlier(row: int) -> Damage:
    """Return the damage of one output that is 50 standard deviations away."""

    def damage(y: np.ndarray, rng: Random) -> None:
        y[row] += 50 * y.std()

    return damage


def mostly_missing(y: np.ndarray, rng: Random) -> None:
    """Remove nine outputs in ten."""
    y[rng.permutation(len(y))[: len(y) * 9 // 10]] = np.nan


def beginning_missing(y: np.ndarray, rng: Random) -> None:
    """Remove the first two thirds of the outputs."""
    y[: len(y) * 2 // 3] = np.nan


def second_missing(y: np.ndarray, rng: Random) -> None:
    """Remove the second output."""
    y[:, 1] = np.nan


def constant_stretch(y: np.ndarray, rng: Random) -> None:
    """Repeat one value for a quarter of the rows."""
    quarter = len(y) // 4
    y[quarter : 2 * quarter] = y[quarter]


def quantised(y: np.ndarray, rng: Random) -> None:
    """Round the outputs to whole numbers."""
    np.round(y, out=y)


SYSTEMS: dict[str, System] = {
    "drift": System(drift),
    "friction": System(friction),
    "relay": System(relay),
    "pendulum": System(pendulum),
    "step": System(step),
    "tank": System(tank, 120),
    "outputs of scale 1e-9": System(scaled(1e-9), 120),
    "outputs of scale 1e9": System(scaled(1e9), 120),
    "ten rows": System(tank, 10),
    "one step of the input": System(one_step, 120),
    "collinear inputs": System(collinear, 120),
    "output independent of input": System(independent, 120),
    "growing": System(growing, 120),
    "integrating": System(integrating, 120),
    "periodic": System(periodic, 120),
    "square wave": System(square_wave, 120),
    "two regimes": System(regimes, 120),
    "90 % missing": System(tank, 120, mostly_missing),
    "first two thirds missing": System(tank, 120, beginning_missing),
    "an output never observed": System(two_tanks, 120, second_missing),
    "outlier in the middle": System(tank, 120, outlier(60)),
    "outlier in the last row": System(tank, 120, outlier(-1)),
    "a constant stretch": System(tank, 120, constant_stretch),
    "quantised": System(tank, 120, quantised),
    "one state": System(tank, 120, settings={"state_dim": 1}),
    "ten states": System(tank, 120, settings={"state_dim": 10}),
    "five by five": System(five_by_five, 120),
    "more states than rows": System(tank, 12, settings={"state_dim": 14}),
    "more points than rows": System(tank, 20, settings={"num_inducing": 60}),
    "20 000 rows": System(tank, 20_000),
}
