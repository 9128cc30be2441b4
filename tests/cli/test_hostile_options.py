"""Every option and argument of every command, given texts that it was not meant for.

Each ends in an error in our words, or in what was asked for. Options are taken from the program itself. A fit counts as
done when it gets as far as its linear model, a sweep when it would begin; forecasts and all that is told of a run are
real.
"""

import pytest
import typer.main
from typer.testing import CliRunner

import gpssm.bench
from gpssm.cli import pipeline, run_folder
from gpssm.cli.app import app
from gpssm.cli.run_folder import Run
from gpssm.data.datasets import simulate
from hostile import attempt

TEXTS = (
    *("", " ", "\x1b[31mred", "a\nb", '{"a": 1}', "é" * 300, "a" * 5000),
    *("-1", "0", "1", "0.5", "-0.0", "nan", "inf", "1e300", "1e400", "5e-324"),
    *("99999999999999999999", "0x10", "true", "None", "auto"),
    *("all", "y", "nothing", "y,y", ",", "=", "a=b", "[1]", "../..", "/", "~", "."),
    *("/dev/null/at/all", "2024-02-30", "2024-03-31"),
    *("٣", "%s%n", "-"),
)
SHARE = 20  # of the texts, one in so many is tried on each option; all of them in the slow tests


class Reached(Exception):
    """All that was asked for has been understood."""


def reached(*_, **__):
    raise Reached


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """What each command is called with, as it should be."""
    folder = tmp_path_factory.mktemp("options")
    Run(folder).write_series("tank.csv", simulate("linear_gaussian", num_steps=80, seed=1).series)
    data, out = str(folder / "tank.csv"), str(folder / "run")
    options = ["-y", "y", "--train", "0.5", "-m", "mean", "--draws", "20", "--no-report", "-q"]
    fit = ["fit", data, *options, "--out", out]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "BASELINES", ("last",))
        found = CliRunner().invoke(app, fit)
    assert found.exit_code == 0, found.output
    return {
        "fit": ([data], ["-y", "y", "-m", "mean", "--no-report", "--out", str(folder / "new")]),
        "demo": ([], ["--out", str(folder / "demo")]),
        "forecast": ([out], ["--num-paths", "6"]),
        **{name: ([out], []) for name in ("info", "compare", "report")},
        "data fetch": (["sim:kink:num_steps=9"], []),
        "bench": ([], ["--out", str(folder / "bench")]),
        "bench report": ([str(folder)], []),
    }


def options(group=None, of=()):
    """The commands, and those of their options that take a value; "--" stands for what has no name."""
    for name, command in (group or typer.main.get_command(app)).commands.items():
        for option in command.params:
            if option.param_type_name == "argument":
                yield " ".join((*of, name)), "--"
            elif not option.is_flag and not option.is_eager:
                yield " ".join((*of, name)), option.opts[0]
        if hasattr(command, "commands"):
            yield from options(command, (*of, name))


@pytest.fixture
def try_texts(given, tmp_path, monkeypatch):
    """Gives a function that tries texts on an option."""
    # Where the first computation of the ladder, and of any other method, begins.
    monkeypatch.setattr("gpssm.fitting.ladder.council", reached)
    monkeypatch.setattr("gpssm.fitting.single.choose_starts", reached)
    monkeypatch.setattr(gpssm.bench, "run_sweep", reached)
    monkeypatch.setattr("gpssm.cli.pipeline.run_demo", reached)
    monkeypatch.chdir(tmp_path)
    write = run_folder.write_atomically
    home = tmp_path.parent.parent  # others' files are none of ours
    monkeypatch.setattr(
        run_folder,
        "write_atomically",
        lambda path, fill: write(path, fill) if path.resolve().is_relative_to(home) else reached(),
    )

    def call(command, option, text):
        arguments, others = given[command]
        arguments = [] if option == "--" else arguments
        words = [*command.split(), *arguments, *others, "--debug", "--quiet", option, text]
        found = CliRunner().invoke(app, words)
        if found.exception is not None and not isinstance(found.exception, Reached | SystemExit):
            raise found.exception

    def try_all(command, option, texts):
        """What did not end as it should, by text."""
        outcomes = {text: attempt(lambda text=text: call(command, option, text)) for text in texts}
        return {
            (command, option, text): found
            for text, found in outcomes.items()
            if found.kind not in ("fine", "refused")
        }

    return try_all


def test_some_texts_that_no_option_was_meant_for(try_texts):
    wrong = {}
    for number, (command, option) in enumerate(options()):
        wrong |= try_texts(command, option, TEXTS[number % SHARE :: SHARE])
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize(("command", "option"), options())
def test_all_texts_that_no_option_was_meant_for(try_texts, command, option):
    assert not try_texts(command, option, TEXTS)


def test_every_command_was_tried():
    tried = {name for name, _ in options()}
    assert {"fit", "demo", "forecast", "bench", "data fetch", "bench report"} <= tried
    assert len([*options()]) >= 43
