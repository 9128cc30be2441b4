"""Docstrings as the site needs them: brackets in maths are no links."""

import re
from typing import Any

import griffe

BRACKETS = re.compile(r"^(?! {4})(.*)\]\[", re.MULTILINE)


class Tidy(griffe.Extension):
    """Rewrites docstrings before they are parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Escape `[x][y]` outside of code."""
        if obj.docstring is not None:
            obj.docstring.value = BRACKETS.sub(r"\1]\\[", obj.docstring.value)
