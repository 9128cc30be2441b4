"""Learning row by row: the recursive filter of `rgpssm` compared with `Posterior.learn` and
`condition`.

    OPENBLAS_NUM_THREADS=1 GPSSM_DATA=... python benchmarks/online.py [dryer] [--rows 300]

The training half is fitted with four states and 50 inducing points, by `rgpssm` and by `quick`. The
rows of the test half then come one at a time:

    rgpssm            its filter continues, and continues to add and remove inducing points
    rgpssm, learn     `learn` continues from its posterior
    quick, learn      the same from the posterior of `quick`
    quick, condition  only the state is filtered, with a fixed function

From every tenth row, 30 steps are forecast with 1000 paths. Scores are means over origins; ms is
the median CPU time per row without forecasts and compilation.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import argparse
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

import gpssm
from gpssm.methods import rgpssm
from gpssm.posterior.forecast import Forecast

HORIZON, STEP, PATHS, DRAWS = 30, 10, 1000, 100
FIGURES = ("rmse", "crps", "coverage_90")


def recursive(
    posterior: gpssm.Posterior, test: gpssm.Series, budget: int
) -> Iterator[tuple[float, Forecast | None]]:
    """CPU seconds of each row of the filter of `rgpssm`, and the forecast before it at an origin."""
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
        began = time.process_time()
        belief, points, _ = rgpssm.advance(dynamics, belief, points, u, y, novelty)
        yield time.process_time() - began, forecast


def simulate(
    dynamics: rgpssm.Dynamics,
    belief: rgpssm.Belief,
    points: rgpssm.PointSet,
    inputs: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Paths of the outputs, each with a draw of (x, v) from the belief."""
    width, linear = dynamics.state_dim, dynamics.linear
    values, vectors = np.linalg.eigh(belief.covariance)
    normal = rng.standard_normal((PATHS, len(values))) * np.sqrt(np.maximum(values, 0.0))
    draws = belief.mean + normal @ vectors.T
    x, weights = draws[:, :width], draws[:, width:].reshape(PATHS, width, -1)
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


def extended(
    posterior: gpssm.Posterior, test: gpssm.Series, relearn: str | None
) -> Iterator[tuple[float, Forecast | None]]:
    """CPU seconds of each row of `extend`, and the forecast before it at an origin."""
    posterior = posterior.thinned(DRAWS)
    for row in range(len(test)):
        forecast = None
        if row % STEP == 0:
            ahead = test.u[row : row + HORIZON]
            forecast = posterior.forecast(len(ahead), ahead, num_paths=PATHS, seed=row)
        began = time.process_time()
        posterior = posterior.extend(test[row : row + 1], relearn=relearn)
        yield time.process_time() - began, forecast


def main() -> None:
    """Fit, and go along the test rows in each way."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description="Learning row by row.")
    parser.add_argument("dataset", nargs="?", default="dryer")
    parser.add_argument("--rows", type=int, default=300, help="rows of the test half")
    parser.add_argument("--points", type=int, default=50)
    options = parser.parse_args()
    train, test = gpssm.datasets.load(options.dataset).split(0.5)
    test = test[: options.rows]
    fits = {}
    for method in ("rgpssm", "quick"):
        began = time.process_time()
        settings = {"state_dim": 4, "num_inducing": options.points, "progress": False}
        fits[method] = gpssm.fit(train, method=method, **settings)
        print(f"{options.dataset}: {method} took {time.process_time() - began:.0f} CPU s")
    ways = {
        "rgpssm": recursive(fits["rgpssm"], test, options.points),
        "rgpssm, learn": extended(fits["rgpssm"], test, "weights"),
        "quick, learn": extended(fits["quick"], test, "weights"),
        "quick, condition": extended(fits["quick"], test, None),
    }
    print(f"{'':<18}" + "".join(f"{figure:>12}" for figure in (*FIGURES, "ms")))
    for name, rows in ways.items():
        seconds, forecasts = zip(*rows, strict=True)
        scores = [
            forecast.score(test[origin : origin + HORIZON])
            for origin, forecast in enumerate(forecasts)
            if forecast is not None and origin + HORIZON <= len(test)
        ]
        means = [np.mean([score[figure] for score in scores]) for figure in FIGURES]
        means.append(1000 * np.median(seconds))
        print(f"{name:<18}" + "".join(f"{mean:>12.4g}" for mean in means), flush=True)


if __name__ == "__main__":
    main()
