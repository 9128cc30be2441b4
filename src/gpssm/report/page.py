"""From content to HTML.

Text is escaped by the template engine. Script and style are the package's own, and only they may
run: the page's security policy names them by hash, so that nothing that came with the data ever
could.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from gpssm.core.text import figure, percent
from gpssm.evaluation.examine import Examination

SYMBOLS = {"good": "✓", "caution": "!", "problem": "✕", "unknown": "–"}
LEVELS = {"good": "Good", "caution": "Caution", "problem": "Problem", "unknown": "Not applicable"}


def render(examination: Examination, content: Mapping[str, Any]) -> str:
    """The page of an examination and of what `compose` made of it."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": figure, "percent": percent, "embedded": embedded}
    template, style, script = (
        resources.files("gpssm.report").joinpath(name).read_text(encoding="utf-8")
        for name in ("template.html.j2", "style.css", "script.js")
    )
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return environment.from_string(template).render(
        examination=examination,
        page=content,
        style=style,
        script=script,
        policy=policy,
        symbols=SYMBOLS,
        levels=LEVELS,
    )


def embedded(thing: Any) -> Any:
    """JSON for a script element, which nothing inside it can end."""
    from markupsafe import Markup

    text = json.dumps(thing, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
