"""Residuals of one-step predictions along the training data, and their tests.

    e_t = Φ⁻¹( P(Y_t ≤ y_t | y_1, …, y_{t−1}, u_1, …, u_t) )

is standard normal and independent over steps if the model is correct, for any likelihood. The
probabilities are over draws and filtered states, because smoothed states depend on y_t.
Autocorrelation, or correlation with an input, shows that the outputs contain structure that the
model has missed, perhaps because it has too few states. Parameters were learned from the same data,
so good residuals do not prove that the model is good: use rolling forecasts of held-out rows.

**Drift.** Whether the system changes along the record is tested by a regression of these errors,

    e_t = (a + b τ_t)·z_t + ε_t,  z_t = [1, y_{t−1}, u_t, u_{t−1}],  −1 ≤ τ_t ≤ 1 along the record

If the model is valid throughout, b = 0. If a coefficient of the system drifts, errors grow with the
regressors towards both ends of the record, with opposite signs: b ≠ 0. A model that is wrong in the
same way everywhere has a ≠ 0 and b = 0, and is not mistaken for a drift. A drift is reported only
if the F-test of b = 0 is significant and b explains enough of the errors' variance, because in long
records the test detects effects that are too small to matter.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special, stats

from gpssm.core.arguments import checked
from gpssm.core.metrics import pit
from gpssm.data.series import Series
from gpssm.posterior.stack import Forecaster

LAGS = 20
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


@checked
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
    series = posterior.dataset.experiment(index)[:rows]
    forecast = posterior.predict(series, 1, new_experiment=True, num_paths=num_paths, seed=seed)
    values = special.ndtri(pit(forecast.paths, series.y))
    past: list[Correlation | None] = []
    inputs = []
    for column in values.T:
        enough = np.isfinite(column).sum() >= 8
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


class Drift(NamedTuple):
    """The test of one output: the p-value of b = 0, and the share of the variance that b
    explains."""

    p_value: float
    share: float

    @property
    def found(self) -> bool:
        """Whether the drift is significant and explains more than a tenth of the variance."""
        return self.p_value < 0.001 and self.share > 0.1


def find_drift(residuals: Residuals) -> list[Drift]:
    """Test each output; no drift is reported if too few rows were observed.

    Parameters
    ----------
    residuals
        One-step errors along a training series.
    """
    series = residuals.series
    drivers = np.hstack([_previous(series.y), series.u, _previous(series.u)])
    spread = np.nanstd(drivers, 0)
    drivers = (drivers - np.nanmean(drivers, 0)) / np.where(spread > 0, spread, 1.0)
    regressors = np.hstack([np.ones((len(series), 1)), drivers])
    late = np.linspace(-1, 1, len(series))[:, None]
    tests = []
    for errors in residuals.values.T:
        rows = np.isfinite(errors) & np.isfinite(regressors).all(1)
        constant, rank = _least_squares(regressors[rows], errors[rows])
        changing, larger_rank = _least_squares(
            np.hstack([regressors, late * regressors])[rows], errors[rows]
        )
        tests.append(_f_test(constant, changing, larger_rank - rank, int(rows.sum()) - larger_rank))
    return tests


def _previous(values: Float[np.ndarray, "T D"]) -> Float[np.ndarray, "T D"]:
    """Return the values of the previous row, NaN for the first row."""
    return np.vstack([np.full((1, values.shape[1]), np.nan), values[:-1]])


def _least_squares(
    regressors: Float[np.ndarray, "N K"], errors: Float[np.ndarray, " N"]
) -> tuple[float, int]:
    """Return the sum of squared residuals and the rank of a regression."""
    coefficients, _, rank, _ = np.linalg.lstsq(regressors, errors, rcond=1e-6)
    return float(np.sum((errors - regressors @ coefficients) ** 2)), int(rank)


def _f_test(constant: float, changing: float, added: int, freedom: int) -> Drift:
    """Return the F-test of additional coefficients, from both sums of squares."""
    gain = constant - changing
    if added < 1 or freedom < 1 or gain <= 0:
        return Drift(1.0, 0.0)
    statistic = gain / added / (changing / freedom)
    return Drift(float(stats.f.sf(statistic, added, freedom)), gain / constant)
