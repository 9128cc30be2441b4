"""Residuals of one-step predictions along the training data, and their tests.

    e_t = Φ⁻¹( P(Y_t ≤ y_t | y_1, …, y_{t−1}, u_1, …, u_t) )

is standard normal and independent over steps if the model is correct, for any likelihood. The
probabilities are over draws and filtered states, because smoothed states depend on y_t.
Autocorrelation, or correlation with an input, shows that the outputs contain structure that the
model has missed, perhaps because it has too few states. Parameters were learned from the same data,
so good residuals do not prove that the model is good: use rolling forecasts of held-out rows.
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
FEWEST = 8  # minimum number of observed entries of an output for a test
ROWS = 1000  # maximum number of rows of a series, from the first


class Correlation(NamedTuple):
    """A portmanteau test: correlations at several lags, and their p-value."""

    correlations: Float[np.ndarray, " lags"]
    p_value: float

    @property
    def found(self) -> bool:
        """Whether the correlation is significant."""
        return self.p_value < 0.05


class Residuals(NamedTuple):
    """Residuals of a series and their tests, empty if too few outputs were observed.

    Parameters
    ----------
    series
        The rows of the series, in the user's units.
    predicted
        E[y_t | y_1, …, y_{t−1}, u_1, …, u_t].
    values
        The residuals, NaN for missing outputs.
    own
        The autocorrelation test of each output.
    inputs
        The tests of correlation with each input, by name. Their p-values are multiplied by the
        number of inputs (Bonferroni).
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
    """Compute residuals of a training series, treated as a new experiment, and their tests.

    Parameters
    ----------
    posterior
        The fit.
    index
        Number of the training series.
    num_paths
        Number of paths for estimating the probabilities; residuals cannot exceed about Φ⁻¹(1 − 1/(2
        num_paths)).
    rows
        Largest number of rows, counted from the first.
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
    """Return the autocorrelations and the Ljung–Box test, n(n+2) Σ_k r_k²/(n_k) ~ χ².

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
    """Return the correlations of e_t with u_{t−k} and a test by regression on u_t, …, u_{t−lags}.

    Lags k run from −lags to lags. For white residuals, n R² ~ χ², with the rank of the regressors
    as degrees of freedom, however smooth the input.
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
    """Return values with mean 0 and variance 1, and their number; zeros if they do not vary."""
    centred = values - np.nanmean(values)
    spread = np.nanstd(centred)
    return centred / spread if spread > 0 else centred * 0.0, int(np.isfinite(values).sum())
