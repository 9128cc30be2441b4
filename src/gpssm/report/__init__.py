"""The report: one HTML file about what was fitted and how far to trust it.

    write_report(posterior, "report.html", test=test)

The page needs nothing but itself: pictures, numbers, style and script are inside, and it forbids
itself any request.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpssm.core.files import write_atomically
from gpssm.core.runtime import in_double_precision
from gpssm.core.text import printable
from gpssm.evaluation.baselines import BASELINES
from gpssm.evaluation.examine import Examination, examine
from gpssm.posterior.stack import Forecaster
from gpssm.report.content import compose
from gpssm.report.page import render

__all__ = ["BASELINES", "make_report", "write_report"]


@in_double_precision
def make_report(
    posterior: Forecaster | Examination,
    *,
    test: Any = None,
    inputs: Any = None,
    baselines: Sequence[str] | Mapping[str, Forecaster] = BASELINES,
    title: str | None = None,
    pictures: Mapping[str, bytes] | None = None,
    files: Mapping[str, str] | None = None,
) -> str:
    """The report of a fit as the text of one HTML file.

    Parameters
    ----------
    posterior
        The fit, or its examination: then `test`, `inputs` and `baselines` play no part.
    test, inputs, baselines
        As in `evaluation.examine.examine`.
    title
        The heading of the page.
    pictures
        PNG images that are drawn already, by the names of `report.pictures.WORDS`.
    files
        Texts to offer for download by file name, beside forecast.csv, metrics.json and config.json.
    """
    examination = posterior
    if not isinstance(examination, Examination):
        examination = examine(examination, test, inputs=inputs, baselines=baselines)
    page = render(examination, compose(examination, title, pictures or {}, files or {}))
    # For those who look at it in a terminal.
    return "\n".join(map(printable, page.replace("\t", " ").split("\n")))


def write_report(posterior: Forecaster | Examination, path: str | Path, **options: Any) -> Path:
    """Write what `make_report` makes; what was there stays until all of it is written."""
    path = Path(path)
    text = make_report(posterior, **options)
    write_atomically(path, lambda file: file.write(text.encode()))
    return path
