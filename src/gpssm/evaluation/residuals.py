"""What one-step errors still hold: residuals of a filter along the training data, and their tests.

    e_t = Φ⁻¹( P(Y_t ≤ y_t | y_1, …, y_{t−1}, u_1, …, u_t) )

is standard normal and independent from step to step if the model is right, whatever its likelihood.
The probabilities are over draws and filtered states, not smoothed ones, which have seen y_t.
Correlation with its own past says that the outputs hold more than the model took from them (more
states?), correlation with an input likewise. Parameters have seen all the data, so that good
residuals are no proof: see rolling forecasts of rows held out.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special, stats

from gpssm.core.metrics import pit
from gpssm.core.text import check_whole
from gpssm.data.series import Series
from gpssm.posterior.stack import Forecaster

LAGS = 20
FEWEST = 8  # observed entries of an output below which nothing can be said of it
ROWS = 1000  # of a series that are looked at, the first ones


class Correlation(NamedTuple):
    """A portmanteau test: correlations at several lags, and the probability of such by chance."""

    correlations: Float[np.ndarray, " lags"]
    p_value: float

    @property
    def found(self) -> bool:
        """Whether there is correlation."""
        return self.p_value < 0.05


class Residuals(NamedTuple):
    """Residuals of a series and their tests, empty where too little was observed.

    Parameters
    ----------
    series
        The rows of the series, in the user's units.
    predicted
        E[y_t | y_1, …, y_{t−1}, u_1, …, u_t].
    values
        The residuals, NaN where an output is missing.
    own
        The test of each output with its past.
    inputs
        Those with each input by name. Their probabilities are multiplied by the number of inputs:
        one of many correlates by chance.
    """

    series: Series
    predicted: Float[np.ndarray, "T Dy"]
    values: Float[np.ndarray, "T Dy"]
    own: tuple[Correlation | None, ...]
    inputs: tuple[dict[str, Correlation], ...]

    def table(self) -> list[dict[str, Any]]:
        """The largest correlation of each test, its lag, and p, by output.

        Lag k is e_t with e_{t−k}, or with u_{t−k}. p is the probability of correlations this large
        by chance.
        """
        rows = []
        for output, autocorrelation, inputs in zip(
            self.series.outputs, self.own, self.inputs, strict=True
        ):
            tests = {} if autocorrelation is None else {"its past": (autocorrelation, 1)}
            tests |= {name: (test, -(len(test.correlations) // 2)) for name, test in inputs.items()}
            for name, (test, first) in tests.items():
                place = int(np.argmax(np.abs(test.correlations)))
                correlation = float(test.correlations[place])
                figures = {"correlation": correlation, "lag": place + first, "p": test.p_value}
                rows.append({"output": output, "with": name} | figures)
        return rows


def find_residuals(
    posterior: Forecaster, index: int = -1, num_paths: int = 300, rows: int = ROWS, seed: int = 0
) -> Residuals:
    """Residuals of the first rows of a training series, as a new experiment, and their tests.

    Parameters
    ----------
    posterior
        The fit.
    index
        Number of the training series.
    num_paths
        Paths from which the probabilities are found; residuals cannot exceed about
        Φ⁻¹(1 − 1/(2 num_paths)).
    rows
        Number of rows, at most.
    seed
        Seed of the paths.
    """
    check_whole("rows", rows, 1)
    series = posterior.dataset.experiment(index)[:rows]
    forecast = posterior.predict(series, 1, new_experiment=True, num_paths=num_paths, seed=seed)
    values = special.ndtri(pit(forecast.paths, series.y))
    past: list[Correlation | None] = []
    inputs = []
    for column in values.T:
        enough = np.isfinite(column).sum() >= FEWEST
        pairs = zip(series.inputs, series.u.T, strict=True) if enough else ()
        tests = {name: cross_correlation(column, u) for name, u in pairs}
        past.append(autocorrelation(column) if enough else None)
        inputs.append(
            {
                name: test._replace(p_value=min(1.0, len(tests) * test.p_value))
                for name, test in tests.items()
            }
        )
    return Residuals(series, forecast.mean, values, tuple(past), tuple(inputs))


def autocorrelation(values: Float[np.ndarray, " T"], lags: int = LAGS) -> Correlation:
    """Correlations at lags 1.. and Ljung and Box's test, n(n+2) Σ_k r_k²/(n_k) ~ χ².

    Entries may be missing.
    """
    centred, number = _centred(values)
    lags = min(lags, max(number // 4, 1))
    products = [centred[lag:] * centred[:-lag] for lag in range(1, lags + 1)]
    counts = np.array([np.isfinite(product).sum() for product in products])
    correlations = np.array([np.nansum(product) for product in products]) / number
    used = counts > 0
    statistic = number * (number + 2) * np.sum(correlations[used] ** 2 / counts[used])
    return Correlation(correlations, float(stats.chi2.sf(statistic, used.sum())))


def cross_correlation(
    values: Float[np.ndarray, " T"], u: Float[np.ndarray, " T"], lags: int = LAGS
) -> Correlation:
    """Correlations of e_t with u_{t−k}, k = −lags..lags, and the regression on u_t, …, u_{t−lags}.

    Of white residuals it explains n R² ~ χ², with as many degrees of freedom as those inputs are
    independent, and however smooth they are.
    """
    centred, number = _centred(values)
    driving, _ = _centred(u)
    lags = min(lags, max(number // 4, 1))
    length = len(values)
    correlations = []
    for lag in range(-lags, lags + 1):
        later = centred[max(lag, 0) : length + min(lag, 0)]
        earlier = driving[max(-lag, 0) : length - max(lag, 0)]
        correlations.append(np.nansum(later * earlier) / number)
    past = np.stack([driving[lags - lag : length - lag] for lag in range(lags + 1)], -1)
    rows = np.isfinite(centred[lags:])
    past = past[rows] - past[rows].mean(0)
    target = centred[lags:][rows]
    target = target - target.mean()
    coefficients, _, rank, _ = np.linalg.lstsq(past, target, rcond=1e-6)
    share = target @ past @ coefficients / max(target @ target, np.finfo(float).tiny)
    p_value = stats.chi2.sf(len(target) * share, max(rank, 1))
    return Correlation(np.array(correlations), float(p_value))


def _centred(values: Float[np.ndarray, " T"]) -> tuple[Float[np.ndarray, " T"], int]:
    """Values of mean 0 and variance 1, and how many there are; zeros where they do not vary."""
    centred = values - np.nanmean(values)
    spread = np.nanstd(centred)
    return centred / spread if spread > 0 else centred * 0.0, int(np.isfinite(values).sum())
