"""`gpssm fit` and `gpssm demo`: from data to a run folder."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpssm.cli.shell import Answer, Screen, check_paths, register, usage
from gpssm.cli.tables import UNJUDGED, finished, forecast_tables, score_lines, score_tables

if TYPE_CHECKING:
    from gpssm.cli.settings import Settings

Files = Annotated[
    list[Path] | None, typer.Argument(help="Data files, an experiment each.", show_default=False)
]
Names = list[str] | None


def _option(
    *names: str,
    help: str,
    default: str | None = None,
    panel: str | None = None,
    metavar: str | None = None,
) -> Any:
    """An option whose default is that of `gpssm.fit`, or of the method, written out: what was not given is None."""
    shown = help if default is None else f"{help} (default: {default})"
    return typer.Option(
        *names, help=shown, rich_help_panel=panel, metavar=metavar, show_default=False
    )


MODEL, SAMPLING = "Model", "Sampling"


def fit(
    screen: Screen,
    data: Files = None,
    y: Annotated[
        Names, _option("-y", "--output", help="Output column, by name or number; repeat for more.")
    ] = None,
    u: Annotated[Names, _option("-u", "--input", help="Control column; repeat for more.")] = None,
    train: Annotated[
        str | None,
        _option(
            help="Rows of the (last) file to train on: 0.5, 200, those before a date, or all.",
            default="all",
        ),
    ] = None,
    dt: Annotated[
        float | None, _option(help="Sampling time, where there is no column of times.")
    ] = None,
    time: Annotated[
        str | None,
        _option(
            metavar="NAME", help="Column of times, auto, or none: rows are counted.", default="auto"
        ),
    ] = None,
    regrid: Annotated[
        bool | None,
        _option("--regrid", help="Put rows on a regular grid, missing ones as missing outputs."),
    ] = None,
    controls: Annotated[
        str | None,
        _option(
            metavar="RULE", help="Controls of missing rows: hold or interpolate.", default="hold"
        ),
    ] = None,
    unit: Annotated[
        Names, _option(metavar="NAME=UNIT", help="Unit of a column; repeat for more.")
    ] = None,
    out: Annotated[
        Path | None, _option("--out", "-o", help="Run folder.", default="runs/DATA-METHOD")
    ] = None,
    config: Annotated[
        Path | None, _option(help="Settings in TOML; options given here come first.")
    ] = None,
    resume: Annotated[bool, _option("--resume", help="Go on with an interrupted run.")] = False,
    overwrite: Annotated[bool, _option("--overwrite", help="Replace a run that is there.")] = False,
    no_report: Annotated[
        bool, _option("--no-report", help="No figures and no report: scores and forecasts.")
    ] = False,
    method: Annotated[
        str | None,
        _option("--method", "-m", help="See `gpssm methods`.", default="ffvd", panel=MODEL),
    ] = None,
    state_dim: Annotated[
        str | None,
        _option(
            metavar="N|auto", help="Number of states; auto chooses it.", default="4", panel=MODEL
        ),
    ] = None,
    inducing: Annotated[
        str | None,
        _option(
            metavar="N|auto",
            help="Number of inducing points; auto goes by the rows.",
            default="50",
            panel=MODEL,
        ),
    ] = None,
    kernel: Annotated[
        str | None,
        _option(help="See `gpssm kernels`; join with + and *.", default="se", panel=MODEL),
    ] = None,
    mean: Annotated[
        str | None,
        _option(help="linear, linear-fixed, identity or zero.", default="linear", panel=MODEL),
    ] = None,
    likelihood: Annotated[
        str | None, _option(help="See `gpssm likelihoods`.", default="auto", panel=MODEL)
    ] = None,
    basis: Annotated[
        str | None,
        _option(help="inducing, hilbert, fourier or linear.", default="inducing", panel=MODEL),
    ] = None,
    wiring: Annotated[
        str | None,
        _option(
            metavar="NAME",
            help="What enters what: cascade, chain, second-order, delay-3, sparse.",
            panel=MODEL,
        ),
    ] = None,
    coupling: Annotated[
        str | None,
        _option(
            help="Transition functions: none, shared (one kernel), lmc (mixed), hammerstein, hammerstein-monotone.",
            default="none",
            panel=MODEL,
        ),
    ] = None,
    rank: Annotated[
        int | None, _option(help="Latent functions of --coupling lmc.", panel=MODEL)
    ] = None,
    start: Annotated[
        str | None,
        _option(
            help="Where sampling begins: em, output-error+shooting, ... or auto, which compares.",
            default="auto",
            panel=MODEL,
        ),
    ] = None,
    noise: Annotated[
        str | None,
        _option(help="Process noise: free, small, a number, or auto.", default="auto", panel=MODEL),
    ] = None,
    delay: Annotated[
        Names,
        _option(
            metavar="N|auto|NAME=N",
            help="Rows after which controls act: one number, auto, or one a control; repeat for more.",
            default="0",
            panel=MODEL,
        ),
    ] = None,
    hyper: Annotated[
        str | None,
        _option(help="Parameters: optimise, sample or fix.", default="optimise", panel=SAMPLING),
    ] = None,
    chains: Annotated[
        int | None, _option(help="Number of chains.", default="4", panel=SAMPLING)
    ] = None,
    warmup: Annotated[
        int | None,
        _option(help="Iterations thrown away.", default="the method's, ffvd: 400", panel=SAMPLING),
    ] = None,
    draws: Annotated[
        int | None,
        _option(
            help="Draws kept of each chain.", default="the method's, ffvd: 250", panel=SAMPLING
        ),
    ] = None,
    thin: Annotated[
        int | None,
        _option(help="Iterations for each draw.", default="the method's, ffvd: 2", panel=SAMPLING),
    ] = None,
    windows: Annotated[
        int | None,
        _option(help="Experiments that each file is cut into.", default="1", panel=SAMPLING),
    ] = None,
    keep_states: Annotated[
        str | None,
        _option(
            metavar="N|auto|all",
            help="Last rows whose states draws hold; auto: all, up to 2 GB.",
            default="auto",
            panel=SAMPLING,
        ),
    ] = None,
    seed: Annotated[
        int | None, _option(help="Seed of all randomness.", default="0", panel=SAMPLING)
    ] = None,
    calibrate: Annotated[
        bool | None,
        _option(
            "--calibrate",
            help="Widen intervals by what held-out training rows say.",
            panel=SAMPLING,
        ),
    ] = None,
) -> Answer:
    """Fit a model to data and write a run folder: posterior, forecast, scores, figures, report.

    \b
    gpssm fit tank.csv -y level -u pump -u valve --train 0.8
    """
    check_paths(out, config, *(data or ()))
    with usage():
        fitted = {
            "state_dim": _whole_or_auto("state-dim", state_dim),
            "kernel": kernel,
            "mean": mean,
        }
        fitted |= {"num_inducing": _whole_or_auto("inducing", inducing)}
        fitted |= {
            "likelihood": likelihood,
            "basis": basis,
            "wiring": wiring,
            "coupling": coupling,
            "rank": rank,
            "hyper": hyper,
            "num_chains": chains,
        }
        fitted |= {"start": start, "noise": _number_or_word(noise), "calibrate": calibrate}
        fitted |= {"delay": delay and _delay(delay), "windows": windows}
        fitted |= {
            "keep_states": keep_states
            if keep_states == "all"
            else _whole_or_auto("keep-states", keep_states)
        }
        given = {
            "files": data and tuple(map(str, data)),
            "outputs": y and tuple(y),
            "inputs": u and tuple(u),
        }
        given |= {
            "train": None if train is None else _split(train),
            "dt": dt,
            "method": method,
            "seed": seed,
        }
        given |= {
            "time": time,
            "regrid": regrid,
            "controls": controls,
            "units": unit and _units(unit),
        }
        of_method = {"num_warmup": warmup, "num_draws": draws, "thin": thin}
        begun = out / "config.toml" if resume and out and (out / "config.toml").is_file() else None
        settings, changes = _settings(config or begun, given, fitted, of_method)
    if changes and config:
        screen.say(f"Changed since {config} was written: {'; '.join(changes)}")
    from gpssm.cli.pipeline import execute

    out = out or Path("runs") / f"{Path(settings.files[0]).stem}-{settings.method}"
    seen = Seen(screen)
    how: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "with_report": not no_report}
    run = execute(
        settings,
        out,
        **how,
        progress=screen.progress,
        say=screen.say,
        scored=seen,
        compared=seen.compared,
    )
    return Answer(
        {"run": str(run.folder), "metrics": run.metrics(), "files": list(run.files)}, finished(run)
    )


@dataclass
class Seen:
    """Shows scores when they come: of linear baselines and of the fit in a line, then the tables of all methods."""

    screen: Screen
    own: bool = False

    def __call__(self, found: Mapping[str, Any]) -> None:
        """Show them."""
        if self.own:
            self.screen.show(score_tables(found) or [UNJUDGED])
        elif found["scores"]:
            self.screen.show(score_lines(found))
        self.own = True

    def compared(self, found: Mapping[str, Any]) -> None:
        """Show those of a baseline, above the bar of the fit: it prints what is printed, and not what consoles show."""
        if not (self.own or self.screen.silent) and (lines := score_lines(found)):
            print("\n".join(lines), flush=True)


def _settings(
    config: Path | None,
    given: Mapping[str, Any],
    fitted: Mapping[str, Any],
    of_method: Mapping[str, Any],
) -> tuple["Settings", list[str]]:
    """The settings of a file and of options, and what has changed since the file was written."""
    from gpssm.cli.settings import Settings, from_toml

    fields = (
        from_toml(config)
        if config
        else {"files": (), "outputs": (), "fit": {}, "method_settings": {}}
    )
    changes = (
        Settings(**fields).changes()
        if config and fields.get("files") and fields.get("outputs")
        else []
    )
    options = _present(given)
    if options.get("method", fields.get("method")) != fields.get("method"):
        fields["method_settings"] = {}  # another method has others
    fields |= options | {"fit": fields["fit"] | _present(fitted)}
    fields["method_settings"] = fields["method_settings"] | _present(of_method)
    if not fields.get("files"):
        raise ValueError(
            "name a data file, gpssm fit DATA -y COLUMN, or with --resume the folder of a run, --out RUN"
        )
    if not fields.get("outputs"):
        raise ValueError(f"name at least one output column with -y. {_columns(fields['files'][0])}")
    return Settings(**fields), changes


def _present(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _columns(path: str) -> str:
    """The columns of a file, from the complaint of the reader that none was chosen."""
    from gpssm.data.readers import read

    try:
        read(path, ())
    except (ValueError, OSError) as error:
        return str(error)
    return ""


def _split(text: str) -> int | float | str:
    try:
        return text if text == "all" or re.match(r"\d+[-/.]\d+[-/.]", text) else _number(text)
    except ValueError:
        raise ValueError(
            f"--train is a share like 0.5, a number of rows, a date like 2024-03-31, or all; got {text!r}"
        ) from None


def _number(text: str) -> int | float:
    return int(text) if text.isdigit() else float(text)


def _units(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    if wrong := [
        text for text, (name, _, unit) in zip(texts, pairs, strict=True) if not (name and unit)
    ]:
        raise ValueError(f"--unit is NAME=UNIT, as in --unit level=m; got {wrong[0]!r}")
    return {name: unit for name, _, unit in pairs}


def _delay(texts: list[str]) -> int | str | dict[str, int]:
    pairs = [text.partition("=") for text in texts]
    if all(name and rows.isdigit() for name, _, rows in pairs):
        return {name: int(rows) for name, _, rows in pairs}
    if len(texts) == 1 and (texts[0] == "auto" or texts[0].isdigit()):
        return "auto" if texts[0] == "auto" else int(texts[0])
    raise ValueError(
        f"--delay is a number of rows, auto, or NAME=N for each control; got {' '.join(texts)!r}"
    )


def _number_or_word(text: str | None) -> float | str | None:
    try:
        return text if text is None else float(text)
    except ValueError:
        return text


def _whole_or_auto(name: str, text: str | None) -> int | str | None:
    if text is None or text == "auto" or text.isdigit():
        return int(text) if text and text.isdigit() else text
    raise ValueError(f"--{name} is a whole number or auto; got {text!r}")


def demo(
    screen: Screen,
    out: Annotated[Path, _option("--out", "-o", help="Run folder.", default="runs/demo")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, _option(help="Seed of the simulated series.", default="0")] = 0,
) -> Answer:
    """Simulate a driven oscillator, fit it, forecast it; write figures and a report."""
    check_paths(out)
    from gpssm.cli.pipeline import run_demo

    seen = Seen(screen)
    run = run_demo(
        out, seed, progress=screen.progress, say=screen.say, scored=seen, compared=seen.compared
    )
    tables = forecast_tables(run.forecasts()["ffvd"], run.test())
    data = {"run": str(run.folder), "metrics": run.metrics(), "files": list(run.files)}
    return Answer(data, [*tables, *finished(run), f"Picture:   {run.folder}/figures/forecast.png"])


def add_commands(app: typer.Typer) -> None:
    """Add them to the command line."""
    register(app)(fit)
    register(app)(demo)
