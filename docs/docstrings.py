"""Docstrings as the site needs them.

Parameters described together get a line each, and brackets in maths are no links.
"""

import re
from typing import Any

import griffe

TOGETHER = re.compile(r"^:param (\w+(?:, \w+)+):(.*(?:\n[ \t]+\S.*)*)", re.MULTILINE)
BRACKETS = re.compile(r"^(?! {4})(.*)\]\[", re.MULTILINE)


class Tidy(griffe.Extension):
    """Rewrites docstrings before they are parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Give each of `:param a, b: text` its own line, and escape `[x][y]` outside of code."""
        if obj.docstring is not None:
            text = TOGETHER.sub(_apart, obj.docstring.value)
            obj.docstring.value = BRACKETS.sub(r"\1]\\[", text)


def _apart(found: re.Match[str]) -> str:
    return "\n".join(f":param {name}:{found[2]}" for name in found[1].split(", "))
