"""The report of a fit as a single HTML file.

    write_report(posterior, "report.html", test=test)

The page is self-contained: pictures, data, style and script are embedded, and its security policy
forbids any request.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from gpssm.core.files import write_atomically
from gpssm.core.runtime import in_double_precision
from gpssm.core.text import figure, percent, printable
from gpssm.evaluation.baselines import BASELINES
from gpssm.evaluation.examine import Examination, examine
from gpssm.posterior.stack import Forecaster
from gpssm.report.content import compose

__all__ = ["BASELINES", "make_report", "write_report"]


@in_double_precision
def make_report(
    posterior: Forecaster | Examination,
    *,
    test: Any = None,
    baselines: Sequence[str] = BASELINES,
    title: str | None = None,
    pictures: Mapping[str, bytes] | None = None,
    files: Mapping[str, str] | None = None,
) -> str:
    """Return the report of a fit as the text of an HTML file.

    Parameters
    ----------
    posterior
        The fit, or its examination, in which case `test` and `baselines` are ignored.
    test, baselines
        As in `evaluation.examine.examine`.
    title
        The heading of the page.
    pictures
        PNG images by the names of `report.content.WORDS`; by default all are drawn.
    files
        Texts to offer for download by file name, in addition to forecast.csv, metrics.json and
        config.json.
    """
    examination = posterior
    if not isinstance(examination, Examination):
        examination = examine(examination, test, baselines=baselines)
    page = render(examination, compose(examination, title, pictures, files or {}))
    # Without control characters, for readers of the source in a terminal.
    return "\n".join(map(printable, page.replace("\t", " ").split("\n")))


def write_report(posterior: Forecaster | Examination, path: str | Path, **options: Any) -> Path:
    """Write the result of `make_report` to a file atomically."""
    path = Path(path)
    text = make_report(posterior, **options)
    write_atomically(path, lambda file: file.write(text.encode()))
    return path


def render(examination: Examination, content: Mapping[str, Any]) -> str:
    """Return the page of an examination and its composed content.

    Text is escaped by the template engine. Only the script and style of the package may run: the
    security policy lists their hashes, so that nothing in the data can.
    """
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": figure, "percent": percent}
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
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
        symbols={"good": "✓", "caution": "!", "problem": "✕", "unknown": "–"},
        levels={
            "good": "Good",
            "caution": "Caution",
            "problem": "Problem",
            "unknown": "Not applicable",
        },
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
