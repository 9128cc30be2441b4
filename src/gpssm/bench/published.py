"""Published results, which tables show next to measured ones without ranking them.

All are in original units. FFVD (Fan, Bonilla, O'Kane, Sisson, ICML 2023) reports 30 steps from the
last training state, mean ± sd over runs; RGPSSM (2024) one pass of an online extended Kalman
filter; EnVI (2024) the whole second half. The results for records are simulations from the
literature.
"""

from gpssm.bench.problems import SUITES

# By protocol and suite: RMSE of each method on each data set of the suite, as printed.
FIGURES: dict[tuple[str, str], dict[str, str]] = {
    ("six", "p30"): {
        "LSTM": ".586±.411 .027±.023 .537±.108 .115±.029 .912±.562 1.261±.610",
        "VGPSSM": ".580±.274 .073±.011 .722±.087 .241±.023 1.482±.218 1.115±.358",
        "PRSSM": ".497±.381 .059±.013 .813±.101 .017±.042 1.371±.156 1.243±.407",
        "VCDT": ".239±.040 .011±.002 .585±.017 .142±.003 1.782±.324 1.166±.011",
        "FFVD-M": ".358±.242 .019±.018 .673±.207 .205±.313 .280±.193 .571±.185",
        "FFVD-C-M": ".259±.209 .009±.011 .775±1.615 .065±.112 .663±.189 .548±.051",
        "FFVD-P": ".388±.087 .199±.045 .342±.057 .317±.050 .562±.088 .669±.174",
        "RRANK": ".33 .11 .73 1.35 1.86 9.66",
        "RGPSSM": ".407 .047 .641 .094 - .771",
    },
    ("six", "simulation"): {
        "RGPSSM": "1.048 .046 .801 .103 - 1.373",
        "EnVI": ".657 .055 .703 .125 - 1.388",
    },
    ("records", "simulation"): {
        "dynoNet": ".00264 .0012",
        "SUBNET, continuous time": ".00461 -",
        "LSTM": ".074 -",
        "GRU": "- .00397",
        "NL-LFR": "- .000294",
        "best linear model": "- .044",
    },
}


def published(suite: str, protocol: str, dataset: str) -> dict[str, tuple[float, float]]:
    """Return the RMSE of each method on a data set as (mean, sd), with NaN where no sd was
    printed.
    """
    rows = FIGURES.get((suite, protocol), {})
    places = {name: place for place, name in enumerate(SUITES[suite].datasets)}
    cells = {
        method: row.split()[places[dataset]] for method, row in rows.items() if dataset in places
    }
    pairs = {method: cell.partition("±")[::2] for method, cell in cells.items() if cell != "-"}
    return {method: (float(mean), float(sd or "nan")) for method, (mean, sd) in pairs.items()}
