"""Learning row by row: the recursive filter of `rgpssm` beside `Posterior.learn` and `condition`.

    GPSSM_DATA=... python benchmarks/online.py [dryer] [--rows 300]

The training half is fitted with four states and 50 inducing points, by `rgpssm` and by `quick`. The
rows of the test half then come one at a time:

    rgpssm            the filter of the method, which adds and removes inducing points
    rgpssm, learn     `learn` continues from its posterior
    quick, learn      `learn` continues from the posterior of `quick`
    quick, condition  only the state is filtered, the function stays

From every tenth row 30 steps are forecast, with 1000 paths. Figures are means over the origins; ms
is the median CPU time of a row, without the forecasts and once everything is compiled.
"""

import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from common import Timer, command_line

import gpssm
from gpssm.methods import rgpssm
from gpssm.posterior.forecast import Forecast

HORIZON = 30
STEP = 10  # rows between origins
PATHS = 1000
DRAWS = 100
SCORES = ("rmse", "crps", "coverage_90")
# CPU seconds of a row, and the forecast from it if it is an origin.
Rows = Iterator[tuple[float, Forecast | None]]


def recursive(posterior: gpssm.Posterior, test: gpssm.Series, budget: int) -> Rows:
    """Yield the seconds and forecasts of the filter of `rgpssm`.

    Parameters
    ----------
    posterior
        A posterior of `rgpssm`.
    test
        The rows that follow.
    budget
        Largest number of inducing points.
    """
    dynamics, locations = rgpssm.as_dynamics(posterior.model)
    points = rgpssm.PointSet.of(dynamics, locations, budget + 1)
    scaler = posterior.dataset.scaler
    belief, points, _ = rgpssm.run(dynamics, posterior.dataset.scaled, points)
    template = posterior.forecast(HORIZON, test.u[:HORIZON], num_paths=PATHS)
    scaled = scaler.scale(test)
    novelty = gpssm.methods.RecursiveGPSSM().novelty
    for row, (u, y) in enumerate(zip(scaled.u, scaled.y, strict=True)):
        forecast = None
        if row % STEP == 0:
            ahead = scaled.u[row : row + HORIZON]
            paths = simulate(dynamics, belief, points, ahead, np.random.default_rng(row))
            forecast = replace(
                template, paths=scaler.unscale_mean(paths), moments=None, moments_ahead=None
            )
        with Timer() as timer:
            belief, points, _ = rgpssm.advance(dynamics, belief, points, u, y, novelty)
        yield timer.cpu, forecast


def simulate(
    dynamics: rgpssm.Dynamics,
    belief: rgpssm.Belief,
    points: rgpssm.PointSet,
    inputs: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Simulate paths of the outputs, each with a draw of (x, v) from the belief."""
    state_dim = dynamics.state_dim
    linear = dynamics.linear
    values, vectors = np.linalg.eigh(belief.covariance)
    normal = rng.standard_normal((PATHS, len(values))) * np.sqrt(np.maximum(values, 0.0))
    draws = belief.mean + normal @ vectors.T
    x = draws[:, :state_dim]
    weights = draws[:, state_dim:].reshape(PATHS, state_dim, -1)
    outputs = []
    for u in inputs:
        z = np.hstack([x, np.broadcast_to(u, (PATHS, len(u)))])
        gain = points.gain(dynamics, z)
        std = np.sqrt(gain.residual + dynamics.process_variance)
        mean = dynamics.mean(z) + np.sum(gain.value * weights, -1)
        x = mean + std * rng.standard_normal(x.shape)
        noise = linear.noise_std * rng.standard_normal((PATHS, len(linear.d)))
        outputs.append(x @ linear.C.T + linear.d + noise)
    return np.stack(outputs, 1)


def extended(posterior: gpssm.Posterior, test: gpssm.Series, relearn: str | None) -> Rows:
    """Yield the seconds and forecasts of `Posterior.extend`, row by row."""
    posterior = posterior.thinned(DRAWS)
    for row in range(len(test)):
        forecast = None
        if row % STEP == 0:
            ahead = test.u[row : row + HORIZON]
            forecast = posterior.forecast(len(ahead), ahead, num_paths=PATHS, seed=row)
        with Timer() as timer:
            posterior = posterior.extend(test[row : row + 1], relearn=relearn)
        yield timer.cpu, forecast


def main() -> None:
    """Fit, and follow the test rows with each method."""
    warnings.simplefilter("ignore")
    parser = command_line(__doc__)
    parser.add_argument("dataset", nargs="?", default="dryer")
    parser.add_argument("--rows", type=int, default=300, help="rows of the test half")
    parser.add_argument("--points", type=int, default=50)
    options = parser.parse_args()
    train, test = gpssm.datasets.load(options.dataset).split(0.5)
    test = test[: options.rows]
    fits = {}
    for method in ("rgpssm", "quick"):
        settings = {"state_dim": 4, "num_inducing": options.points, "progress": False}
        with Timer() as timer:
            fits[method] = gpssm.fit(train, method=method, **settings)
        print(f"{options.dataset}: {method} took {timer.cpu:.0f} CPU s")
    filters = {
        "rgpssm": recursive(fits["rgpssm"], test, options.points),
        "rgpssm, learn": extended(fits["rgpssm"], test, "weights"),
        "quick, learn": extended(fits["quick"], test, "weights"),
        "quick, condition": extended(fits["quick"], test, None),
    }
    print(f"{'':<18}" + "".join(f"{name:>12}" for name in (*SCORES, "ms")))
    for name, rows in filters.items():
        seconds, forecasts = zip(*rows, strict=True)
        scores = [
            forecast.score(test[origin : origin + HORIZON])
            for origin, forecast in enumerate(forecasts)
            if forecast is not None and origin + HORIZON <= len(test)
        ]
        means = [np.mean([score[column] for score in scores]) for column in SCORES]
        means.append(1000 * np.median(seconds))
        print(f"{name:<18}" + "".join(f"{mean:>12.4g}" for mean in means), flush=True)


if __name__ == "__main__":
    main()
