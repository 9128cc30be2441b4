"""Seconds of fits with few and with many chains on the device that JAX finds.

    GPSSM_DATA=... python benchmarks/gpu.py [--chains 4 64]

Furnace is fitted twice by `ffvd` from the start `em`, so that the second fit shows what is left
when nothing is compiled.
"""

import resource
import warnings

import jax
from common import Timer, command_line

import gpssm


def timed_fit(train: gpssm.Series, num_chains: int, seed: int) -> gpssm.Posterior:
    """Fit, and print the seconds and the peak memory in gigabytes."""
    with Timer() as timer:
        posterior = gpssm.fit(
            train, method="ffvd", start="em", num_chains=num_chains, seed=seed, progress=False
        )
    assert isinstance(posterior, gpssm.Posterior)
    seconds = posterior.seconds
    device = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e9
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{jax.default_backend()}, {len(train)} rows, {num_chains} chains: all {timer.wall:.1f} s: "
        f"setup {seconds.setup:.1f} compile {seconds.compile:.1f} run {seconds.run:.1f}; "
        f"device {device:.1f} GB, host {host:.1f} GB",
        flush=True,
    )
    return posterior


def main() -> None:
    """Print the table."""
    parser = command_line(__doc__)
    parser.add_argument("--chains", type=int, nargs="*", default=[4, 64])
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of convergence, which is not what is measured
    train, test = gpssm.datasets.load("furnace").split(0.5)
    for chains in options.chains:
        timed_fit(train, chains, seed=0)
        posterior = timed_fit(train, chains, seed=1)
        for _ in range(2):
            with Timer() as timer:
                posterior.forecast(len(test), test.u)
            print(f"forecast of {len(test)} rows: {timer.wall:.2f} s", flush=True)


if __name__ == "__main__":
    main()
