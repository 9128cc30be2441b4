"""A failing sensor: fit a series with gaps, fill them, and check the intervals against the truth.

python examples/missing_data.py [--out FILE] [--quick]
"""

import argparse
import dataclasses

import numpy as np

import gpssm

QUICK = {"num_inducing": 8, "start": "em", "num_chains": 2, "num_warmup": 20, "num_draws": 10}


def remove_outputs(series: gpssm.Series, seed: int) -> gpssm.Series:
    """Remove a random fifth of the outputs, and twenty consecutive ones."""
    lost = np.random.default_rng(seed).random(len(series)) < 0.2
    lost[30:50] = True
    return dataclasses.replace(series, y=np.where(lost[:, None], np.nan, series.y))


def main() -> None:
    """Fit the remaining outputs and compare the imputed values with the removed ones."""
    parser = argparse.ArgumentParser(description="Missing outputs are filled in by the posterior.")
    parser.add_argument("--out", default="missing_data.png")
    parser.add_argument("--quick", action="store_true", help="few draws, for a smoke test")
    options = parser.parse_args()
    complete = gpssm.datasets.simulate("duffing", num_steps=100, seed=3).series
    series = remove_outputs(complete, seed=0)
    gaps = np.isnan(series.y)
    print(series)

    posterior = gpssm.fit(
        series, method="ffvd", state_dim=2, progress=False, **(QUICK if options.quick else {})
    )
    smoothed = posterior.smooth(noise=True)
    low, high = smoothed.interval(0.9)
    covered = (low <= complete.y) & (complete.y <= high)
    error = np.sqrt(np.mean((posterior.smooth().mean - complete.y)[gaps] ** 2))
    print(f"filled {gaps.sum()} gaps: RMSE {error:.3f}, output std {np.nanstd(series.y):.3f};")
    print(f"the 90 % intervals cover {covered[gaps].mean():.0%} of the removed outputs")
    posterior.plot().savefig(options.out, dpi=150)


if __name__ == "__main__":
    main()
