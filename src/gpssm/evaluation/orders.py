"""Compare linear models of a series to find the number of states it needs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from gpssm.core.table import card
from gpssm.core.text import check_whole
from gpssm.data.dataset import Dataset
from gpssm.data.delays import Rows
from gpssm.data.series import as_list
from gpssm.linear.council import HORIZON, MAX_ORDER, Horizon, Scores, council
from gpssm.methods.spec import Spec

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class LinearComparison:
    """Linear models and their scores on held-out windows of a series, best first.

    Parameters
    ----------
    table : DataFrame
        One row per model with the mean of each score over the windows, in standard deviations of
        the outputs: `crps`, `log_score` and `rmse` of forecasts, and the RMSE of a `simulation`;
        and the `loss` by which models are ranked, with its `standard_error`. State-space models are
        named `ss-1`, `ss-2`, ….
    orders : tuple of int
        The order that `state_dim="auto"` uses and, if there is one, a smaller order that may be
        equally good.
    horizon : int or "simulation"
        The horizon at which models are compared.
    """

    table: pd.DataFrame
    orders: tuple[int, ...]
    horizon: Horizon

    @property
    def best(self) -> str:
        """The name of the best model."""
        return str(self.table.index[0])

    @property
    def protocol(self) -> str:
        """Description of the loss."""
        if self.horizon == "simulation":
            return "RMSE of simulations"
        return f"CRPS of forecasts {self.horizon} steps ahead"

    def plot(self) -> "Figure":
        """Plot the loss of state-space models over their order, and of the other models."""
        from gpssm.plots.forecasts import plot_orders

        return plot_orders(self)

    def __repr__(self) -> str:
        return f"LinearComparison(best {self.best}, order {self.orders[0]}, by the {self.protocol})"

    def __str__(self) -> str:
        return self.table.to_string(float_format=lambda value: f"{value:.4g}")

    def _repr_html_(self) -> str:
        return card(repr(self), tables={"best first": self.table})


def linear_models(
    series: Any,
    horizon: Horizon = HORIZON,
    *,
    max_order: int = MAX_ORDER,
    delay: Rows | Literal["auto"] = 0,
) -> LinearComparison:
    """Compare linear models on held-out windows of the training rows, in about a second.

        print(gpssm.linear_models(train))
        gpssm.linear_models(train, horizon="simulation").plot()

    Parameters
    ----------
    series
        The training data, as for `fit`.
    horizon
        Steps ahead at which forecasts are compared; "simulation" for simulations of a window.
    max_order
        The largest order of a state-space model.
    delay
        As for `fit`.

    Returns
    -------
    LinearComparison
    """
    spec = Spec(horizon=horizon, likelihood="gaussian")
    check_whole("max_order", max_order, 1)
    dataset = Dataset.of(as_list(series), delay=delay)
    results = council(spec.scale(dataset.experiments)[1], horizon, max_order)
    rows = {}
    for name in results.models:
        losses = results.losses(name)
        scores = dict(
            zip(Scores._fields, map(float, map(_mean, results.scores[name])), strict=True)
        )
        error = losses.std(ddof=1) / len(losses) ** 0.5 if len(losses) > 1 else float("nan")
        rows[name] = {"loss": _mean(losses), "standard_error": error} | scores
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("model")
    return LinearComparison(table, results.orders, horizon)


def _mean(values: Any) -> float:
    return float(values.mean()) if len(values) else float("nan")
