"""What one-step errors still hold: residuals of a filter along the training data, and tests of
them.

    e_t = Φ⁻¹( P(Y_t ≤ y_t | y_1, …, y_{t−1}, u_1, …, u_t) )

is standard normal and independent from step to step if the model is right, whatever its likelihood.
The probabilities are over draws and filtered states, not smoothed ones, which have seen y_t.
Correlation with its own past says that the outputs hold more than the model took from them (more
states?), correlation with a control likewise. Parameters have seen all the data, so that good
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
SIGNIFICANT = 0.05


class Correlation(NamedTuple):
    """A portmanteau test: correlations at several lags, and the probability of as large ones if
    there are none.
    """

    correlations: Float[np.ndarray, " lags"]
    p_value: float

    @property
    def found(self) -> bool:
        """Whether there is correlation."""
        return self.p_value < SIGNIFICANT


class Residuals(NamedTuple):
    """Residuals (T, Dy) of a series, NaN where an output is missing, and the tests of each output.

    `own[j]` is that of output j with its past, `controls[j]` those with each control by name, whose
    probabilities are multiplied by the number of controls: one of many correlates by chance. Empty
    where too little was observed.
    """

    series: Series
    values: Float[np.ndarray, "T Dy"]
    own: tuple[Correlation | None, ...]
    controls: tuple[dict[str, Correlation], ...]

    def table(self) -> list[dict[str, Any]]:
        """A row for each output with its past, then one for each of its controls: the largest
        correlation, its lag, p.

        Lag k is e_t with e_{t−k}, or with u_{t−k}. p is the probability of correlations this large
        by chance.
        """
        rows = []
        for output, own, controls in zip(self.series.outputs, self.own, self.controls, strict=True):
            tests = {} if own is None else {"its past": (own, 1)}
            tests |= {name: (one, -(len(one.correlations) // 2)) for name, one in controls.items()}
            for name, (test, first) in tests.items():
                place = int(np.argmax(np.abs(test.correlations)))
                found = {
                    "correlation": float(test.correlations[place]),
                    "lag": place + first,
                    "p": test.p_value,
                }
                rows.append({"output": output, "with": name} | found)
        return rows


def find_residuals(
    posterior: Forecaster, index: int = -1, num_paths: int = 300, rows: int = 1000, seed: int = 0
) -> Residuals:
    """Residuals of the first `rows` rows of training series `index`, as a new experiment, and their
    tests.

    :param num_paths: from which the probabilities are found; residuals cannot exceed about Φ⁻¹(1 −
        1/(2 num_paths)).
    """
    check_whole("rows", rows, 1)
    series = posterior.dataset.experiment(index)[:rows]
    forecast = posterior.predict(series, 1, new_experiment=True, num_paths=num_paths, seed=seed)
    values = special.ndtri(pit(forecast.paths, series.y))
    own, controls = [], []
    for column in values.T:
        enough = np.isfinite(column).sum() >= FEWEST
        pairs = zip(series.inputs, series.u.T, strict=True) if enough else ()
        tests = {name: cross_correlation(column, u) for name, u in pairs}
        own.append(autocorrelation(column) if enough else None)
        controls.append(
            {
                name: test._replace(p_value=min(1.0, len(tests) * test.p_value))
                for name, test in tests.items()
            }
        )
    return Residuals(series, values, tuple(own), tuple(controls))


def autocorrelation(values: Float[np.ndarray, " T"], lags: int = LAGS) -> Correlation:
    """Correlations at lags 1.. and Ljung and Box's test, n(n+2) Σ_k r_k²/(n_k) ~ χ²; entries may be
    missing.
    """
    centred, number = _centred(values)
    lags = min(lags, max(number // 4, 1))
    products = [centred[lag:] * centred[:-lag] for lag in range(1, lags + 1)]
    counts = np.array([np.isfinite(product).sum() for product in products])
    found = np.array([np.nansum(product) for product in products]) / number
    used = counts > 0
    statistic = number * (number + 2) * np.sum(found[used] ** 2 / counts[used])
    return Correlation(found, float(stats.chi2.sf(statistic, used.sum())))


def cross_correlation(
    values: Float[np.ndarray, " T"], u: Float[np.ndarray, " T"], lags: int = LAGS
) -> Correlation:
    """Correlations of e_t with u_{t−k} at lags k = −lags..lags, and the regression of e on u_t, …,
    u_{t−lags}.

    Of white residuals it explains n R² ~ χ², with as many degrees of freedom as those controls are
    independent, and however smooth they are.
    """
    (centred, number), (control, _) = _centred(values), _centred(u)
    lags = min(lags, max(number // 4, 1))
    length = len(values)
    found = [
        np.nansum(
            centred[max(lag, 0) : length + min(lag, 0)]
            * control[max(-lag, 0) : length - max(lag, 0)]
        )
        / number
        for lag in range(-lags, lags + 1)
    ]
    past = np.stack([control[lags - lag : length - lag] for lag in range(lags + 1)], -1)
    rows = np.isfinite(centred[lags:])
    past, wanted = (
        past[rows] - past[rows].mean(0),
        centred[lags:][rows] - centred[lags:][rows].mean(),
    )
    coefficients, _, rank, _ = np.linalg.lstsq(past, wanted, rcond=1e-6)
    share = wanted @ past @ coefficients / max(wanted @ wanted, np.finfo(float).tiny)
    return Correlation(np.array(found), float(stats.chi2.sf(len(wanted) * share, max(rank, 1))))


def _centred(values: Float[np.ndarray, " T"]) -> tuple[Float[np.ndarray, " T"], int]:
    """Values of mean 0 and variance 1, and how many there are; zeros where they do not vary."""
    centred = values - np.nanmean(values)
    spread = np.nanstd(centred)
    return centred / spread if spread > 0 else centred * 0.0, int(np.isfinite(values).sum())
