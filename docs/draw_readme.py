"""Draw the picture of the README.

`python docs/draw_readme.py` writes docs/figures/readme.png and prints the scores. The code is
that of the README, with the forecast of ARX added to the picture.
"""

from pathlib import Path

import gpssm
from gpssm.plots.style import ORANGE

FIGURE = Path(__file__).parent / "figures" / "readme.png"
HORIZON = 60


def main() -> None:
    """Fit, compare and draw."""
    series = gpssm.datasets.simulate("duffing", num_steps=1000).series
    train, test = series.split(0.5)
    posterior = gpssm.fit(train, progress=False)
    linear = gpssm.fit(train, method="arx", progress=False)
    print(gpssm.compare({"gpssm": posterior, "arx": linear}, test, horizon=HORIZON))
    figure = posterior.forecast(u=test.u[:HORIZON]).plot(
        actual=test, history=train[-HORIZON:], levels=[0.9]
    )
    panel = figure.axes[0]
    times = panel.lines[1].get_xdata()
    mean = linear.forecast(u=test.u[:HORIZON]).mean[:, 0]
    panel.plot(times, mean, color=ORANGE, linestyle=":", linewidth=1.8, label="ARX")
    for legend in figure.legends:
        legend.remove()
    panel.legend(loc="lower left", ncol=5, bbox_to_anchor=(0, 1.0), borderaxespad=0.1)
    figure.set_size_inches(8.0, 2.8)
    figure.savefig(FIGURE, dpi=140)


if __name__ == "__main__":
    main()
