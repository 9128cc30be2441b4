"""The options of every command, and a complete config.toml, written into the page that has their marks."""

import functools
import tempfile
from pathlib import Path
from typing import Any

COMMANDS, CONFIG = "<!-- commands -->", "<!-- config -->"


@functools.cache
def options() -> str:
    """A heading and a table for each command, from the commands themselves."""
    from typer.main import get_command

    from gpssm.cli.app import app

    found: list[str] = []

    def tell(name: str, command: Any) -> None:
        found.append(f"### `{name}`\n\n{' '.join((command.help or '').split())}\n")
        rows = [
            one
            for one in command.params
            if not getattr(one, "hidden", False) and one.name != "help"
        ]
        if not getattr(command, "commands", None) and rows:
            found.append("| option | what it says |\n|---|---|")
            for one in rows:
                label = (
                    ", ".join(f"`{word}`" for word in one.opts)
                    if one.param_type_name == "option"
                    else one.name
                )
                found.append(
                    f"| {label} | {' '.join((getattr(one, 'help', '') or '').split())} |".replace(
                        "||", "|"
                    )
                )
            found.append("")
        for inner, other in getattr(command, "commands", {}).items():
            tell(f"{name} {inner}", other)

    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        tell(f"gpssm {name}", command)
    return "\n".join(found)


@functools.cache
def config() -> str:
    """The file that a run with defaults writes."""
    from gpssm.cli.settings import Settings

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder).resolve() / "tank.csv"
        path.write_text("pump,level\n0.1,0.2\n")
        text = Settings((str(path),), ("level",), ("pump",), train=0.5, dt=0.5).complete().to_toml()
    return f"```toml\n{text.replace(f'{path.parent}/', '')}```"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs for every page."""
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, options()).replace(CONFIG, config())
    return markdown
