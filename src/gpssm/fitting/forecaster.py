# sktime sets attributes and signatures at run time that a type checker cannot follow.
# pyright: reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false
# pyright: reportOptionalSubscript=false
"""A forecaster for sktime: `fit`, `predict` and `update` by its conventions.

Row t of a series is the time t of sktime's index, and the forecasting horizon counts rows after the
cutoff, the last row seen:

    step h ≥ 1   y_{T+h} | y_≤T           paths of `Posterior.forecast`
    step h ≤ 0   y_{T+h} | y_<T+h         one-step predictions of `Posterior.predict`
"""

import dataclasses
import inspect
from typing import Any, Self

import numpy as np
import pandas as pd
from jaxtyping import Float

from gpssm.core.text import check_installed, check_whole
from gpssm.data.series import Series
from gpssm.fitting.fit import fit
from gpssm.inference.runner import Runtime
from gpssm.methods.spec import METHOD_NUMBERS, Spec

check_installed("gpssm.sktime", "sktime")
from sktime.forecasting.base import BaseForecaster, ForecastingHorizon  # noqa: E402

FIT_SETTINGS: dict[str, Any] = {
    **{field.name: field.default for kind in (Spec, Runtime) for field in dataclasses.fields(kind)},
    **dict.fromkeys(METHOD_NUMBERS),
    "progress": False,
}
SETTINGS = {**FIT_SETTINGS, "num_paths": 1000}


class GPSSMForecaster(BaseForecaster):
    """A Gaussian process state-space model as an sktime forecaster.

    X contains the inputs, which must be known up to the end of the horizon. y may have several
    columns and missing values. `update` processes new rows: with update_params=False it updates the
    state (`Posterior.condition`), with True also the function (`Posterior.learn`); methods that
    cannot learn are fitted again to all rows.

    Parameters
    ----------
    num_paths
        Number of paths of each forecast.
    **settings
        Fields of `gpssm.Spec` and `gpssm.Runtime` by name, and num_warmup, num_draws, thin and
        precision, as in `gpssm.fit`. `progress` is False by default.

    Attributes
    ----------
    posterior_ : Posterior
        The current posterior, including updates.

    Examples
    --------
    >>> from gpssm.sktime import GPSSMForecaster
    >>> from sktime.datasets import load_airline
    >>> forecaster = GPSSMForecaster(method="arx")
    >>> forecaster.fit(load_airline(), fh=[1, 2, 3])
    GPSSMForecaster(...)
    >>> forecaster.predict_interval(coverage=0.9).shape
    (3, 2)
    """

    _tags = {  # noqa: RUF012
        "authors": "the gpssm developers",
        "maintainers": "the gpssm developers",
        "y_inner_mtype": "pd.DataFrame",
        "X_inner_mtype": "pd.DataFrame",
        "capability:multivariate": True,
        "capability:exogenous": True,
        "capability:missing_values": True,
        "capability:categorical_in_X": False,
        "capability:non_contiguous_X": False,
        "capability:insample": True,
        "capability:pred_int": True,
        "capability:pred_int:insample": True,
        "capability:update": True,
        "requires-fh-in-fit": False,
    }
    # The rows are stored in `_rows`, so that sktime need not store them too.
    _config = {"remember_data": False}  # noqa: RUF012
    _y = None
    _X = None

    def __init__(self, **settings: Any) -> None:
        bound = inspect.signature(type(self)).bind(**settings)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            setattr(self, name, value)
        super().__init__()

    def _fit(self, y: pd.DataFrame, X: pd.DataFrame | None, fh: Any) -> Self:
        check_whole("num_paths", self.num_paths, 1)
        self._rows = (y, X)
        settings = {name: getattr(self, name) for name in FIT_SETTINGS}
        self.posterior_ = fit(_as_series(y, X), **settings)
        return self

    def _update(
        self, y: pd.DataFrame, X: pd.DataFrame | None = None, update_params: bool = True
    ) -> Self:
        y_seen, X_seen = self._rows
        y = y.loc[y.index > y_seen.index[-1]]
        if len(y) == 0:
            return self
        X = None if X is None else X.reindex(y.index)
        rows = self.posterior_.dataset.align(_as_series(y, X))
        self._rows = (
            pd.concat([y_seen, y]),
            None if X is None or X_seen is None else pd.concat([X_seen, X]),
        )
        if update_params and not self.posterior_.learns:
            return self._fit(*self._rows, fh=None)
        follow = self.posterior_.learn if update_params else self.posterior_.condition
        self.posterior_ = follow(rows)
        return self

    def _predict(self, fh: ForecastingHorizon, X: pd.DataFrame | None) -> pd.DataFrame:
        return self._table(fh, self._paths(fh, X).mean(0))

    def _predict_var(
        self, fh: ForecastingHorizon, X: pd.DataFrame | None = None, cov: bool = False
    ) -> pd.DataFrame:
        return self._table(fh, self._paths(fh, X).var(0))

    def _predict_quantiles(
        self, fh: ForecastingHorizon, X: pd.DataFrame | None, alpha: list[float]
    ) -> pd.DataFrame:
        quantiles = np.quantile(self._paths(fh, X), alpha, axis=0, method="weibull")
        columns = pd.MultiIndex.from_product([self._get_varnames(), alpha])
        # (alpha, step, output) → one row per step, the probabilities of each output as columns
        values = quantiles.transpose(1, 2, 0).reshape(quantiles.shape[1], -1)
        return pd.DataFrame(values, fh.to_absolute_index(self.cutoff), columns)

    def _table(self, fh: ForecastingHorizon, values: Float[np.ndarray, "H Dy"]) -> pd.DataFrame:
        index = fh.to_absolute_index(self.cutoff)
        return pd.DataFrame(values, index, self._get_varnames())

    def _paths(self, fh: ForecastingHorizon, X: pd.DataFrame | None) -> Float[np.ndarray, "S H Dy"]:
        """Return paths of the outputs at the steps of a horizon."""
        y_seen, _ = self._rows
        origin = int((y_seen.index <= self.cutoff[0]).sum())
        steps = np.asarray(fh.to_relative(self.cutoff).to_numpy(), dtype=int)
        if steps.min() <= -origin:
            raise ValueError(
                f"the horizon begins {-steps.min()} steps before the cutoff, and only {origin} "
                "rows have been seen: omit steps before the first row"
            )
        options = {"num_paths": self.num_paths, "seed": self.seed}
        paths = np.empty((self.num_paths, len(steps), y_seen.shape[1]))
        ahead = steps > 0
        if ahead.any():
            posterior = self.posterior_
            if origin < len(y_seen):  # sktime has moved the cutoff back
                rows = _as_series(*self._rows)[:origin]
                posterior = posterior.condition(rows, new_experiment=True)
            forecast = posterior.forecast(*self._inputs(steps.max(), X), **options)
            paths[:, ahead] = forecast.paths[:, steps[ahead] - 1]
        if not ahead.all():
            prediction = self.posterior_.predict(
                _as_series(*self._rows), new_experiment=True, **options
            )
            paths[:, ~ahead] = prediction.paths[:, origin - 1 + steps[~ahead]]
        return paths

    def _inputs(
        self, horizon: int, X: pd.DataFrame | None
    ) -> tuple[int, Float[np.ndarray, "K Du"] | None]:
        """Return the number of steps ahead, and the rows of X at these steps, as far as X has
        them.
        """
        if X is None or not self.posterior_.dataset.inputs:
            return horizon, None
        index = ForecastingHorizon(np.arange(1, horizon + 1)).to_absolute_index(self.cutoff)
        last = np.flatnonzero(index.isin(X.index)).max(initial=-1)
        return horizon, X.reindex(index[: last + 1]).to_numpy()

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Return settings for the tests of sktime: naive models, which are fast to fit."""
        small = {"num_chains": 1, "num_draws": 5, "num_paths": 20}
        return [{"method": "last", **small}, {"method": "mean", "seed": 1, **small}]


def _as_series(y: pd.DataFrame, X: pd.DataFrame | None) -> Series:
    """Return the rows of sktime as a series, at the start of periods if the index has periods."""
    frames = (
        frame.to_timestamp()
        if frame is not None and isinstance(frame.index, pd.PeriodIndex)
        else frame
        for frame in (y, X)
    )
    return Series(*frames)


GPSSMForecaster.__init__.__signature__ = inspect.Signature(
    [
        inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value)
            for name, value in SETTINGS.items()
        ),
    ]
)
