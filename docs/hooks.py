"""Parts of pages written from the library: the options of every command."""

from typing import Any

COMMANDS = "<!-- commands -->"


def command_reference() -> str:
    """A heading, the help text and a table of options for each command."""
    from typer.main import get_command

    from gpssm.cli.app import app

    commands = get_command(app).commands  # type: ignore[attr-defined]
    sections = [_describe(f"gpssm {name}", command) for name, command in commands.items()]
    return "\n".join(sections)


def _describe(name: str, command: Any) -> str:
    """The section of one command, followed by those of its subcommands."""
    subcommands = getattr(command, "commands", {})
    lines = [f"### `{name}`\n\n{_one_line(command.help)}\n"]
    shown = [
        parameter
        for parameter in command.params
        if not getattr(parameter, "hidden", False) and parameter.name != "help"
    ]
    if shown and not subcommands:
        lines.append("| option | meaning |\n|---|---|")
        for parameter in shown:
            label = parameter.name
            if parameter.param_type_name == "option":
                label = ", ".join(f"`{option}`" for option in parameter.opts)
            lines.append(f"| {label} | {_one_line(getattr(parameter, 'help', ''))} |")
        lines.append("")
    lines += [_describe(f"{name} {inner}", other) for inner, other in subcommands.items()]
    return "\n".join(lines)


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", r"\|")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill the marks of a page; MkDocs calls this for every page."""
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, command_reference())
    return markdown
