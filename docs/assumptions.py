"""The table of what each method assumes of the posterior, written into the page that has its mark."""

from typing import Any

from gpssm.methods import METHODS

MARK = "<!-- assumptions -->"
COLUMNS = (
    "method",
    "q(x, v)",
    "states and weights coupled",
    "states free of a family",
    "weights free of a family",
)


def assumptions_table() -> str:
    """A row for each method of the registry that has a Gaussian process."""
    rows = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for name, config in METHODS.items():
        if config.assumptions is not None:
            *answers, words = config.assumptions
            cells = [
                f"`{name}`",
                words.replace("|", r"\|"),
                *("yes" if answer else "no" for answer in answers),
            ]
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs for every page."""
    return markdown.replace(MARK, assumptions_table())
