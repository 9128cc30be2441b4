"""What the model did not foresee."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special, stats

from gpssm.data.series import Series
from gpssm.evaluation.metrics import pit
from gpssm.plots.style import BLUE, GREY, LIGHT, VERMILION, extremes, house, panels, time_axis
from gpssm.posterior.conditioning import predict
from gpssm.posterior.posterior import Posterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LAGS = 20
INPUTS = 3  # controls shown at most: those with the largest correlations
SIGNIFICANT = 0.05


class Test(NamedTuple):
    """A portmanteau test: correlations at several lags, and the probability of as large ones if there are none."""

    correlations: Float[np.ndarray, " lags"]
    p_value: float


@house()
def plot_residuals(posterior: Posterior, index: int = 0, num_paths: int = 300, rows: int = 1000) -> "Figure":
    """One-step-ahead residuals of training series `index`, their auto-correlation and their correlation with controls.

        e_t = Φ⁻¹( P(Y_t ≤ y_t | y_1, …, y_{t−1}, u_1, …, u_t) )

    is standard normal and independent from step to step if the model is right, whatever its likelihood. The
    probabilities are over draws and filtered states, not smoothed ones, which have seen y_t. A correlation outside the
    shade (95 %) says that the past of the output (more states?), or of a control, holds more than the model took from
    it; correlation with controls to come (negative lags) says there was feedback. Parameters have seen all the data, so
    that good residuals here are no proof: see `plot_calibration` on test data.

    :param num_paths: from which the probabilities are found; residuals cannot exceed about Φ⁻¹(1 − 1/(2 num_paths)).
    :param rows: of the series that are looked at, from the first one on.
    """
    series = posterior.training_series(index)[:rows]
    found = standardised_residuals(posterior, series, num_paths)
    number = min(series.input_dim, INPUTS)
    figure, axes = panels(
        series.output_dim, 2 + number, height=1.9, width_ratios=(2.2, *(1.3,) * (1 + number)), sharex="col"
    )
    for row, values, output in zip(axes, found.T, series.outputs, strict=True):
        _draw_residuals(row[0], series, output, values)
        own = autocorrelation(values)
        _draw_correlations(row[1], np.arange(1, len(own.correlations) + 1), own, values)
        row[1].set_title(f"autocorrelation\n{_verdict(own, 'white', 'not white')}", pad=3)
        tests = {name: cross_correlation(values, u) for name, u in zip(series.inputs, series.u.T, strict=True)}
        chosen = sorted(tests, key=lambda name: -np.nanmax(np.abs(tests[name].correlations)))[:number]
        for panel, name in zip(row[2:], (name for name in tests if name in chosen), strict=True):
            half = len(tests[name].correlations) // 2
            _draw_correlations(panel, np.arange(-half, half + 1), tests[name], values)
            panel.set_title(f"correlation with {name}\n{_verdict(tests[name], 'none found', 'found')}", pad=3)
    for panel in axes[-1, 1:]:
        panel.set_xlabel("lag (steps)")
    axes[-1, 0].set_xlabel(time_axis(1, series.dt)[1])
    return figure


def standardised_residuals(
    posterior: Posterior, series: Series, num_paths: int = 300, seed: int = 0
) -> Float[np.ndarray, "T Dy"]:
    """e_t of `plot_residuals` along a series as a new experiment; NaN where the output is missing."""
    forecast = predict(posterior, series, steps=1, new_experiment=True, num_paths=num_paths, seed=seed)
    return special.ndtri(pit(forecast.paths, series.y))


def autocorrelation(values: Float[np.ndarray, " T"], lags: int = LAGS) -> Test:
    """Correlations at lags 1.. and Ljung and Box's test, n(n+2) Σ_k r_k²/(n_k) ~ χ²; entries may be missing."""
    centred, number = _centred(values)
    lags = min(lags, max(number // 4, 1))
    products = [centred[lag:] * centred[:-lag] for lag in range(1, lags + 1)]
    counts = np.array([np.isfinite(product).sum() for product in products])
    found = np.array([np.nansum(product) for product in products]) / number
    used = counts > 0
    statistic = number * (number + 2) * np.sum(found[used] ** 2 / counts[used])
    return Test(found, float(stats.chi2.sf(statistic, used.sum())))


def cross_correlation(values: Float[np.ndarray, " T"], u: Float[np.ndarray, " T"], lags: int = LAGS) -> Test:
    """Correlations of e_t with u_{t−k} at lags k = −lags..lags, and the regression of e on u_t, …, u_{t−lags}.

    Of white residuals it explains n R² ~ χ², with as many degrees of freedom as those controls are independent, and
    however smooth they are.
    """
    (centred, number), (control, _) = _centred(values), _centred(u)
    lags = min(lags, max(number // 4, 1))
    length = len(values)
    found = [
        np.nansum(centred[max(lag, 0) : length + min(lag, 0)] * control[max(-lag, 0) : length - max(lag, 0)]) / number
        for lag in range(-lags, lags + 1)
    ]
    past = np.stack([control[lags - lag : length - lag] for lag in range(lags + 1)], -1)
    rows = np.isfinite(centred[lags:])
    past, wanted = past[rows] - past[rows].mean(0), centred[lags:][rows] - centred[lags:][rows].mean()
    coefficients, _, rank, _ = np.linalg.lstsq(past, wanted, rcond=1e-6)
    share = wanted @ past @ coefficients / max(wanted @ wanted, np.finfo(float).tiny)
    return Test(np.array(found), float(stats.chi2.sf(len(wanted) * share, max(rank, 1))))


def _centred(values: Float[np.ndarray, " T"]) -> tuple[Float[np.ndarray, " T"], int]:
    """Values of mean 0 and variance 1, and how many there are; zeros where they do not vary."""
    centred = values - np.nanmean(values)
    spread = np.nanstd(centred)
    return centred / spread if spread > 0 else centred * 0.0, int(np.isfinite(values).sum())


def _verdict(test: Test, good: str, bad: str) -> str:
    return f"{good if test.p_value >= SIGNIFICANT else bad} (p = {test.p_value:.2g})"


def _draw_residuals(panel: "Axes", series: Series, output: str, values: Float[np.ndarray, " T"]) -> None:
    times, _ = time_axis(len(series), series.dt)
    kept = extremes(values)
    panel.axhspan(-1.96, 1.96, color=LIGHT, linewidth=0, zorder=0)
    panel.plot(times[kept], values[kept], ".", color=BLUE, markersize=3)
    share = np.mean(np.abs(values[np.isfinite(values)]) > 1.96)
    panel.set_title(f"one-step residuals\n{share:.1%} outside the 95 % band", pad=3)
    panel.set_ylabel(f"residual of {output}")
    panel.set_ylim(-max(3.5, 1.05 * np.nanmax(np.abs(values))), max(3.5, 1.05 * np.nanmax(np.abs(values))))


def _draw_correlations(panel: "Axes", lags: np.ndarray, test: Test, values: Float[np.ndarray, " T"]) -> None:
    band = 1.96 / np.sqrt(np.isfinite(values).sum())
    outside = np.abs(test.correlations) > band
    panel.axhspan(-band, band, color=LIGHT, linewidth=0, zorder=0)
    panel.axhline(0, color=GREY, linewidth=0.7)
    for chosen, colour, marker in ((~outside, BLUE, "o"), (outside, VERMILION, "D")):
        panel.vlines(lags[chosen], 0, test.correlations[chosen], color=colour, linewidth=1)
        panel.plot(lags[chosen], test.correlations[chosen], marker, color=colour, markersize=2.5)
    top = max(0.3, 1.15 * np.max(np.abs(test.correlations)))
    panel.set_ylim(-top, top)
