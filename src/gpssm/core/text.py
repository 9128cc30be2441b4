"""Checks of arguments, with messages that say the rule and what was given."""

from typing import Any


def check_whole(name: str, value: Any, least: int, none: str | None = None) -> None:
    """Refuse what is not a whole number of at least `least`; True and False are none.

    :param none: what None stands for, where it is allowed: "for all rows".
    """
    if value is None and none is not None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        given = f", got {value!r}." if none is None else f", or None {none}; got {value!r}."
        raise ValueError(f"{name} must be a whole number of at least {least}{given}")
