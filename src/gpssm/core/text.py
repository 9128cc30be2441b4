"""Checks of arguments, with messages that say the rule and what was given."""

from typing import Any


def check_whole(name: str, value: Any, least: int) -> None:
    """Refuse what is not a whole number of at least `least`; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}.")
