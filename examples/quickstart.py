"""From a CSV file to a forecast with intervals: read, fit, look, forecast, compare, save, draw.

    python examples/quickstart.py [--csv FILE --output COLUMN --input COLUMN] [--out FOLDER]

Without a file, it simulates a driven oscillator and writes one.
"""

import argparse
from pathlib import Path

import numpy as np

import gpssm

HORIZON = 30
QUICK = {"num_inducing": 8, "start": "em", "num_chains": 2, "num_warmup": 20, "num_draws": 10}


def write_csv(path: Path, num_steps: int) -> None:
    """Write a file with a header and the columns force and position, one row per time step."""
    series = gpssm.datasets.simulate("duffing", num_steps=num_steps, seed=0).series
    np.savetxt(
        path, np.hstack([series.u, series.y]), delimiter=",", header="force,position", comments=""
    )


def main() -> None:
    """Run all steps."""
    parser = argparse.ArgumentParser(description="From a CSV file to a forecast.")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--output", default="position")
    parser.add_argument("--input", default="force")
    parser.add_argument("--out", type=Path, default=Path("quickstart"))
    parser.add_argument(
        "--quick", action="store_true", help="a short series and few draws, for a smoke test"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.csv or options.out / "oscillator.csv"
    if options.csv is None:
        write_csv(path, 120 if options.quick else 400)

    series = gpssm.read(path, outputs=options.output, inputs=options.input)
    train, test = series.split(0.5)
    print(series)

    posterior = gpssm.fit(
        train, method="ffvd", state_dim=2, progress=False, **(QUICK if options.quick else {})
    )
    print(posterior.diagnostics())

    forecast = posterior.forecast(HORIZON, test.u[:HORIZON])
    print(forecast)
    print(gpssm.compare({"gpssm": posterior}, test, horizon=HORIZON, baselines=["arx", "last"]))

    posterior.save(options.out / "posterior.nc", overwrite=True)
    again = gpssm.load(options.out / "posterior.nc")
    assert np.array_equal(again.forecast(HORIZON, test.u[:HORIZON]).paths, forecast.paths)

    forecast.to_dataframe().to_csv(options.out / "forecast.csv")
    forecast.plot(actual=test, history=train).savefig(options.out / "forecast.png", dpi=150)
    print(f"wrote posterior.nc, forecast.csv and forecast.png to {options.out}")


if __name__ == "__main__":
    main()
