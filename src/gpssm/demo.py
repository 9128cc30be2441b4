"""The demonstration: a series with known truth, a run on it, and how well it forecasts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpssm.datasets import simulate
from gpssm.pipeline import execute
from gpssm.progress import Mode
from gpssm.runs import CONFIG, Run
from gpssm.settings import Settings

MODEL = {"state_dim": 2, "num_inducing": 20, "num_chains": 4}
EFFORT = {"num_warmup": 500, "num_draws": 250}


def run_demo(out: str | Path, seed: int = 0, *, progress: Mode = True, say: Callable[[str], None] = print) -> Run:
    """Simulate a driven Duffing oscillator, half of it to train on, and do a run on it.

    The data are written beside the folder, as `demo.csv` beside `demo`. A demonstration that is there is replaced, any
    other run or file is not.
    """
    out = Path(out)
    path = out.absolute().with_name(f"{out.name}.csv")
    series = replace(simulate("duffing", seed=seed).series, outputs=("position",), inputs=("force",))
    settings = Settings(
        (str(path),), series.outputs, series.inputs, train=0.5, dt=series.dt, seed=seed, fit=MODEL, own=EFFORT
    )
    again = (out / CONFIG).is_file() and Run(out).settings().files == settings.files
    if path.exists() and not again:
        raise FileExistsError(
            f"{path} is there already, and the data of the demonstration would replace it: name another --out"
        )
    say(f"Simulating a driven Duffing oscillator: {len(series)} rows, half of them to train on")
    Run(path.parent).write_series(path.name, series)
    return execute(settings, out, overwrite=again, progress=progress, say=say)
