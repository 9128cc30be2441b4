"""`gpssm fit` and `gpssm demo`: from data to a run folder."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpssm.cli.shell import Answer, Misuse, Screen, check_paths, usage
from gpssm.cli.tables import closing_lines, forecast_tables

if TYPE_CHECKING:
    from gpssm.cli.run_folder import Run
    from gpssm.cli.settings import Settings

MODEL = "Model and sampling"
TABLE = "Reading the data"
Texts = list[str] | None
Text = str | None
Whole = int | None


def _option(*names: str, help: str, panel: str | None = None, metavar: str | None = None) -> Any:
    """Return an option with the default None; the help text states the effective default."""
    return typer.Option(
        *names, help=help, rich_help_panel=panel, metavar=metavar, show_default=False
    )


def fit(
    screen: Screen,
    data: Annotated[
        list[Path] | None,
        typer.Argument(help="Data files, one experiment each.", show_default=False),
    ] = None,
    y: Annotated[
        Texts, _option("-y", "--output", help="Output column, by name or number; repeat for more.")
    ] = None,
    u: Annotated[Texts, _option("-u", "--input", help="Input column; repeat for more.")] = None,
    train: Annotated[
        Text,
        _option(
            help="Training rows of the (last) file: a fraction, a number, a date, or all. "
            "(default: all)"
        ),
    ] = None,
    out: Annotated[
        Path | None, _option("--out", "-o", help="Run folder. (default: runs/DATA-METHOD)")
    ] = None,
    config: Annotated[
        Path | None, _option(help="Settings in TOML; other options take precedence.")
    ] = None,
    resume: Annotated[bool, _option("--resume", help="Continue an interrupted run.")] = False,
    overwrite: Annotated[bool, _option("--overwrite", help="Replace an existing run.")] = False,
    no_report: Annotated[
        bool, _option("--no-report", help="Write only scores and forecasts, no figures or report.")
    ] = False,
    method: Annotated[
        Text, _option("--method", "-m", help="See `gpssm methods`. (default: auto)", panel=MODEL)
    ] = None,
    state_dim: Annotated[
        Text, _option(metavar="N|auto", help="Number of states; auto chooses it.", panel=MODEL)
    ] = None,
    horizon: Annotated[
        Text,
        _option(
            metavar="N|simulation",
            help="Steps ahead at which models are compared. (default: 30)",
            panel=MODEL,
        ),
    ] = None,
    chains: Annotated[Whole, _option(help="Number of chains.", panel=MODEL)] = None,
    warmup: Annotated[Whole, _option(help="Number of warm-up iterations.", panel=MODEL)] = None,
    draws: Annotated[Whole, _option(help="Number of draws per chain.", panel=MODEL)] = None,
    seed: Annotated[Whole, _option(help="Seed of all random numbers.", panel=MODEL)] = None,
    settings: Annotated[
        Texts,
        _option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other setting of `gpssm.fit`, of the method or of `gpssm.read`, such as "
            "kernel=se+linear, delay=auto, encoding=latin-1; repeat for more.",
            panel=MODEL,
        ),
    ] = None,
    dt: Annotated[
        float | None, _option(help="Sampling time, if there is no column of times.", panel=TABLE)
    ] = None,
    time: Annotated[
        Text,
        _option(
            metavar="NAME",
            help="Column of times; none to ignore times. (default: auto)",
            panel=TABLE,
        ),
    ] = None,
    regrid: Annotated[
        Text,
        _option(
            metavar="auto|STEP",
            help="Put rows on a regular grid, such as 2s; missing rows become missing outputs.",
            panel=TABLE,
        ),
    ] = None,
    na: Annotated[
        Texts,
        _option(metavar="MARK", help="Marker of missing values; repeat for more.", panel=TABLE),
    ] = None,
) -> Answer:
    """Fit a model to data and write a run folder: posterior, forecast, scores, figures, report.

    \b
    gpssm fit tank.csv -y level -u pump -u valve --train 0.8
    """
    check_paths(out, config, *(data or ()))
    columns = {
        "files": data and tuple(map(str, data)),
        "outputs": y and tuple(y),
        "inputs": u and tuple(u),
        "train": train and parse_value(train),
    }
    with usage():
        options = {
            "num_chains": chains,
            "num_warmup": warmup,
            "num_draws": draws,
            "seed": seed,
            "state_dim": state_dim and parse_value(state_dim),
            "horizon": horizon and parse_value(horizon),
            "dt": dt,
            "time": time,
            "regrid": True if regrid == "auto" else regrid and parse_value(regrid),
            "na": na and tuple(map(parse_value, na)),
            **parse_pairs(settings or []),
        }
        saved = out / "config.toml" if resume and out else None
        if config is None and saved is not None and saved.is_file():
            config = saved
        request = _settings(config, columns, method, options)
    if config is not None and config != saved and (changes := request.changes()):
        screen.say(f"Changed since {config} was written: {'; '.join(changes)}")
    from gpssm.cli.pipeline import execute

    out = out or Path("runs") / f"{Path(request.files[0]).stem}-{request.spec.method_name}"
    run = execute(
        request, out, screen, resume=resume, overwrite=overwrite, with_report=not no_report
    )
    return Answer(_facts(run), closing_lines(run))


def _settings(
    config: Path | None,
    columns: Mapping[str, Any],
    method: str | None,
    options: Mapping[str, Any],
) -> "Settings":
    """Return the settings of a file, updated by the options."""
    from gpssm.cli.settings import READER, Settings, from_toml

    fields: dict[str, Any] = {"reader": {}, "fit": {}} | (from_toml(config) if config else {})
    fields |= {name: value for name, value in columns.items() if value is not None}
    saved = fields["fit"].get("method")
    name = saved["name"] if isinstance(saved, dict) else saved
    if method is not None and method != name:
        fields["fit"]["method"] = method
    for name, value in options.items():
        if value is not None:
            fields["reader" if name in READER else "fit"][name] = value
    if not fields.get("files"):
        raise Misuse(
            "pass a data file (gpssm fit DATA -y COLUMN), or the folder of a run to resume "
            "(--resume --out RUN)"
        )
    if not fields.get("outputs"):
        raise Misuse(f"pass at least one output column with -y. {_columns(fields['files'][0])}")
    return Settings(**fields)


def _columns(path: str) -> str:
    """Return the columns of a file, from the error message of the reader without columns."""
    from gpssm.data.readers import read

    try:
        read(path, ())
    except (ValueError, OSError) as error:
        return str(error)
    return ""


def parse_value(text: str) -> Any:
    """Return the JSON value of a text, or the text itself."""
    if re.match(r"\d+[-/.]\d+[-/.]", text):
        return text  # dates stay text
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return text
    return tuple(value) if isinstance(value, list) else value


def parse_pairs(texts: Sequence[str]) -> dict[str, Any]:
    """Return settings by name from texts NAME=VALUE."""
    values = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not (name and value):
            raise ValueError(f"--set must be NAME=VALUE, such as kernel=matern52; got {text!r}")
        values[name] = parse_value(value)
    return values


def _facts(run: "Run") -> dict[str, Any]:
    return {"run": str(run.folder), "metrics": run.metrics(), "files": list(run.files)}


def demo(
    screen: Screen,
    out: Annotated[Path, _option("--out", "-o", help="Run folder. (default: runs/demo)")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, _option(help="Seed of the simulated series. (default: 0)")] = 0,
) -> Answer:
    """Simulate a driven oscillator, fit it, forecast it; write figures and a report."""
    check_paths(out)
    from gpssm.cli.pipeline import run_demo

    run = run_demo(out, screen, seed)
    forecast = next(iter(run.forecasts().values()))
    tables = forecast_tables(forecast, run.test())
    return Answer(_facts(run), [*tables, *closing_lines(run)])
