"""Published figures of the benchmarks, in original units, to stand beside measured ones and never among them.

Sources, by the name in `Published.source`:

    FFVD    Fan, Bonilla, O'Kane, Sisson, ICML 2023: 30 steps from the last training state, mean ± sd over runs
    RGPSSM  its 2024 paper, an online extended Kalman filter in one pass
    EnVI    its 2024 paper, the whole second half from the last training state
    SIM     free runs through the test records of EMPS and Wiener–Hammerstein, as collected in the literature

The paper's "NMLL" is `nmll_paper` here, which is no log predictive density: see `gpssm.metrics.nmll_paper`.
"""

from typing import NamedTuple

DATASETS = ("actuator", "ballbeam", "drive", "dryer", "flutter", "furnace")


class Published(NamedTuple):
    """One figure of another paper's table; `sd` is None where none was printed."""

    source: str
    protocol: str
    metric: str
    method: str
    dataset: str
    mean: float
    sd: float | None


Figure = float | tuple[float, float] | None


def _rows(
    source: str, protocol: str, metric: str, table: dict[str, tuple[Figure, ...]], datasets: tuple[str, ...] = DATASETS
) -> list[Published]:
    """The figures of a table {method: one a data set}, each a mean or a pair (mean, sd)."""
    rows = []
    for method, figures in table.items():
        for dataset, figure in zip(datasets, figures, strict=True):
            if figure is not None:
                mean, sd = figure if isinstance(figure, tuple) else (figure, None)
                rows.append(Published(source, protocol, metric, method, dataset, mean, sd))
    return rows


_RMSE: dict[str, tuple[Figure, ...]] = {
    "LSTM": ((0.586, 0.411), (0.027, 0.023), (0.537, 0.108), (0.115, 0.029), (0.912, 0.562), (1.261, 0.610)),
    "VGPSSM": ((0.580, 0.274), (0.073, 0.011), (0.722, 0.087), (0.241, 0.023), (1.482, 0.218), (1.115, 0.358)),
    "PRSSM": ((0.497, 0.381), (0.059, 0.013), (0.813, 0.101), (0.017, 0.042), (1.371, 0.156), (1.243, 0.407)),
    "VCDT": ((0.239, 0.040), (0.011, 0.002), (0.585, 0.017), (0.142, 0.003), (1.782, 0.324), (1.166, 0.011)),
    "FFVD-M": ((0.358, 0.242), (0.019, 0.018), (0.673, 0.207), (0.205, 0.313), (0.280, 0.193), (0.571, 0.185)),
    "FFVD-C-M": ((0.259, 0.209), (0.009, 0.011), (0.775, 1.615), (0.065, 0.112), (0.663, 0.189), (0.548, 0.051)),
    "FFVD-P": ((0.388, 0.087), (0.199, 0.045), (0.342, 0.057), (0.317, 0.050), (0.562, 0.088), (0.669, 0.174)),
    "RRANK": (0.33, 0.11, 0.73, 1.35, 1.86, 9.66),
}
_NMLL: dict[str, tuple[Figure, ...]] = {
    "VGPSSM": (1.09, 0.92, -0.60, 0.46, 2.38, 2.40),
    "PRSSM": (0.29, 0.40, -1.14, 0.52, 0.51, 3.46),
    "VCDT": (-0.36, -0.65, 1.23, -0.02, 6.13, 7.49),
    "FFVD-M": (-0.03, 0.09, 1.66, -0.08, 0.48, -0.43),
}
_SIMULATED: dict[str, tuple[Figure, ...]] = {
    "dynoNet": (0.00264, 0.0012),
    "SUBNET, continuous time": (0.00461, None),
    "LSTM": (0.074, None),
    "GRU": (None, 0.00397),
    "NL-LFR": (None, 0.000294),
    "best linear model": (None, 0.044),
}

PUBLISHED: tuple[Published, ...] = (
    *_rows("FFVD", "p30", "rmse", _RMSE),
    *_rows("FFVD", "p30", "nmll_paper", _NMLL),
    *_rows("RGPSSM", "p30", "rmse", {"RGPSSM": (0.407, 0.047, 0.641, 0.094, None, 0.771)}),
    *_rows("RGPSSM", "full", "rmse", {"RGPSSM": (1.048, 0.046, 0.801, 0.103, None, 1.373)}),
    *_rows("EnVI", "full", "rmse", {"EnVI": (0.657, 0.055, 0.703, 0.125, None, 1.388)}),
    *_rows("SIM", "simulate", "rmse", _SIMULATED, ("emps", "wiener-hammerstein")),
)
