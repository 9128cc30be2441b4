"""The demonstration: a series with known truth, a fit of it, and how well it forecasts."""

import numpy as np
from rich.console import Console

from gpssm.datasets import simulate
from gpssm.examination import forecast_mean
from gpssm.fit import fit
from gpssm.initialise import fit_linear
from gpssm.linalg import selected_inverse
from gpssm.linear_ssm import forecast_linear, smooth
from gpssm.posterior import Posterior
from gpssm.runtime import numerical
from gpssm.series import Series

STATE_DIM, HORIZON = 2, 30


@numerical
def run(seed: int = 0) -> None:
    """Simulate a driven Duffing oscillator, sample its posterior, print diagnostics and forecast errors."""
    console = Console()
    simulated = simulate("duffing", seed=seed)
    train, test = simulated.series.split(0.5)
    console.print(f"Simulated a driven Duffing oscillator: {len(train)} steps to train on, {len(test)} to test on.")
    posterior = fit(train, state_dim=STATE_DIM, num_inducing=20, num_chains=2, num_draws=150, seed=seed)
    console.print(str(posterior.diagnostics()))
    paths = forecast_mean(posterior, test.u[:HORIZON])
    low, high = np.quantile(paths, [0.05, 0.95], axis=(0, 1))
    mean = paths.mean((0, 1))
    console.print(f"\nThe next {HORIZON} steps, mean path with its 90 % band, every fifth step:")
    for step in range(4, HORIZON, 5):
        console.print(
            f"  step {step + 1:2d}: {mean[step, 0]:7.3f}  [{low[step, 0]:7.3f}, {high[step, 0]:7.3f}]"
            f"   observed {test.y[step, 0]:7.3f}"
        )
    ours, linear = (_rmse(values, test) for values in (mean, _linear_forecast(posterior, test)))
    console.print(
        f"\nRoot mean square error over {HORIZON} steps: {ours:.3f}; a linear state-space model: {linear:.3f}; "
        f"noise of the outputs: {simulated.noise_std[0]:.3f}."
    )


def _linear_forecast(posterior: Posterior, test: Series) -> np.ndarray:
    """The forecast of the linear-Gaussian model that the fit was started from."""
    series, scaler = posterior.series[0], posterior.scaler
    linear = fit_linear(series, STATE_DIM)
    smoothed = smooth(linear, series)
    last = selected_inverse(smoothed.factor).diagonal[-1]
    means, _ = forecast_linear(linear, smoothed.mean[-1], last, scaler.scale_inputs(test.u[:HORIZON]))
    return scaler.unscale_mean(np.asarray(means))


def _rmse(mean: np.ndarray, test: Series) -> float:
    return float(np.sqrt(np.mean((mean - test.y[:HORIZON]) ** 2)))
