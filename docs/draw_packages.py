"""Draw the packages and their imports.

`python docs/draw_packages.py` writes docs/figures/packages.png.
"""

import ast
from collections import Counter
from pathlib import Path

import gpssm
from gpssm.plots.style import BLUE, GREY, in_house_style, panels

ROOT = Path(gpssm.__file__).parent
PACKAGES = (
    *("core", "data", "model", "linear", "starts", "inference", "methods", "posterior"),
    *("fitting", "evaluation", "plots", "report", "bench", "cli"),
)


def count_imports() -> Counter[tuple[str, str]]:
    """Count the files that import another package when loaded, by (importing, imported)."""
    found: Counter[tuple[str, str]] = Counter()
    for path in ROOT.glob("*/**/*.py"):
        own = path.relative_to(ROOT).parts[0]
        nodes = [
            node
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.ImportFrom) and node.module
        ]
        names = [f"{node.module}.{alias.name}".split(".") for node in nodes for alias in node.names]
        others = {parts[1] for parts in names if parts[0] == "gpssm" and parts[1] in PACKAGES}
        found.update((own, other) for other in others - {own})
    return found


@in_house_style()
def main() -> None:
    """Draw the packages in order, with an arc from each to those that it imports."""
    figure, axes = panels(1, height=5.0)
    panel, place = axes[0, 0], {package: -number for number, package in enumerate(PACKAGES)}
    panel.set_axis_off()
    for package, y in place.items():
        files = [path for path in (ROOT / package).rglob("*.py") if path.name != "__init__.py"]
        lines = sum(len(path.read_text().splitlines()) for path in files)
        panel.text(-0.25, y, package, ha="right", va="center", weight="bold", size=10)
        panel.text(
            -2.1,
            y,
            f"{len(files)} files, {lines} lines",
            ha="right",
            va="center",
            color=GREY,
            size=8,
        )
        panel.plot(0, y, "o", color=BLUE, markersize=6)
    for (own, other), number in count_imports().items():
        reach = 0.45 * (place[other] - place[own])
        bend = {"arrowstyle": "-|>", "color": BLUE, "alpha": 0.45}
        panel.annotate(
            "",
            (0.12, place[other]),
            (0.12, place[own]),
            arrowprops=bend
            | {
                "linewidth": 0.4 + 0.15 * number,
                "connectionstyle": f"arc3,rad={0.25 + 0.02 * reach}",
            },
        )
    panel.set_xlim(-3.6, 2.4)
    panel.set_ylim(-len(PACKAGES) + 0.4, 0.6)
    figure.savefig(Path(__file__).parent / "figures" / "packages.png", dpi=150)


if __name__ == "__main__":
    main()
