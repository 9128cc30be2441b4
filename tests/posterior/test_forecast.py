"""A forecast's figures: statistics of its paths, tables, scores, plots and notes."""

import matplotlib as mpl
import numpy as np
import pytest

from gpssm.data.series import Series
from gpssm.evaluation import metrics
from gpssm.posterior.forecast import Forecast, ForecastDiagnostics

mpl.use("Agg")
from matplotlib import pyplot

STEPS, WIDTH = 12, 2


def make_forecast(number=400, **settings):
    rng = np.random.default_rng(2)
    mean = np.cumsum(rng.normal(size=(STEPS, WIDTH)), axis=0) + np.array([20, 0])
    paths = mean + np.sqrt(np.arange(1, STEPS + 1))[:, None] * rng.normal(size=(number, STEPS, WIDTH))
    known = dict(
        dt=0.5, moments=(paths, np.full(paths.shape, 0.3)), diagnostics=make_diagnostics(np.linspace(0, 0.03, STEPS))
    )
    return Forecast(paths, ("level", "flow"), 50, np.ones((STEPS, 1)), ("pump",), **known | settings)


def make_diagnostics(left, **settings):
    return ForecastDiagnostics(np.asarray(left, float), np.zeros(len(left)), **settings)


def test_statistics_are_over_paths():
    forecast = make_forecast()
    assert forecast.horizon == STEPS
    np.testing.assert_allclose(forecast.mean, forecast.paths.mean(0))
    np.testing.assert_allclose(forecast.std, forecast.paths.std(0))
    np.testing.assert_allclose(forecast.median, np.median(forecast.paths, axis=0))
    low, high = forecast.interval(0.8)
    np.testing.assert_allclose(np.stack([low, high]), forecast.quantile([0.1, 0.9]))
    inside = np.mean((forecast.paths >= low) & (forecast.paths <= high), axis=0)
    np.testing.assert_allclose(inside, 0.8, atol=0.01)
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        forecast.interval(90)


def test_a_table_has_a_row_a_step_and_named_columns():
    forecast = make_forecast()
    table = forecast.to_dataframe((0.9,))
    expected = [f"{name} {figure}" for name in ("level", "flow") for figure in ("mean", "std", "5%", "50%", "95%")]
    assert list(table.columns) == ["time", *expected]
    assert list(table.index) == list(range(50, 62))
    np.testing.assert_allclose(table["time"], 0.5 * table.index)
    np.testing.assert_allclose(table["flow 95%"], forecast.interval(0.9)[1][:, 1])
    assert "time" not in make_forecast(dt=None).to_dataframe()


def test_a_slice_cuts_everything():
    forecast = make_forecast()
    part = forecast[3:7]
    assert (part.horizon, part.start, len(part.u), part.dt) == (4, 53, 4, 0.5)
    np.testing.assert_array_equal(part.paths, forecast.paths[:, 3:7])
    np.testing.assert_array_equal(part.moments[1], forecast.moments[1][:, 3:7])
    assert part.diagnostics.share_left == forecast.diagnostics.left_by_step[6]
    assert make_forecast(moments=None, diagnostics=None)[:2].moments is None
    assert forecast[-2:].start == 60
    for wrong in (slice(None, None, 2), slice(5, 5)):
        with pytest.raises(ValueError, match="must hold some and skip none"):
            forecast[wrong]
    with pytest.raises(TypeError, match=r"takes slices, forecast\[a:b\]; got 3"):
        forecast[3]


def test_scores_are_those_of_the_metrics():
    forecast = make_forecast()
    actual = forecast.paths[7] + 0.1
    expected = metrics.score(forecast.paths, actual, levels=(0.9,), moments=forecast.moments)
    longer = np.vstack([actual, np.full((5, 2), 1e9)])
    assert forecast.score(longer, levels=(0.9,)) == expected
    swapped = Series(longer[:, ::-1], outputs=("flow", "level"))
    assert forecast.score(swapped, levels=(0.9,)) == expected
    with pytest.raises(ValueError, match=r"12 steps and needs as many rows .* got 5. Cut the forecast, forecast\[:5\]"):
        forecast.score(actual[:5])


def test_text_says_what_it_is():
    forecast = make_forecast(diagnostics=make_diagnostics(np.full(STEPS, 0.1)))
    assert repr(forecast) == "Forecast(12 steps from row 50, 400 paths, outputs=('level', 'flow'))"
    text = str(forecast)
    assert "level 95%" in text
    assert "note: 10% of the paths left" in text
    assert len(text.splitlines()) == 1 + 2 + STEPS + 1


@pytest.mark.parametrize(
    ("left", "words"),
    [
        ([0.0, 0.05], []),
        ([0.0, 0.06], ["left what the model knows: 6 %"]),
        ([0.2, 0.6], ["left what the model knows: 60 %", "do not trust"]),
        ([0.2, 1.0, 1.0], ["left what the model knows: 100 %", "do not trust", "from step 2 on"]),
    ],
)
def test_notes_get_louder(left, words):
    notes = make_diagnostics(left).notes
    assert len(notes) == bool(words)
    assert all(word in notes[0] for word in words)


def test_a_plot_has_a_panel_an_output_with_all_that_was_asked_for():
    forecast = make_forecast()
    history = Series(np.arange(100.0).reshape(50, 2), outputs=("level", "flow"))
    figure = forecast.plot(actual=forecast.paths[0], history=history, levels=(0.5, 0.8, 0.95))
    assert [panel.get_ylabel() for panel in figure.axes] == ["level", "flow"]
    for column, panel in enumerate(figure.axes):
        lines = {line.get_label(): line for line in panel.lines}
        np.testing.assert_allclose(lines["median"].get_ydata(), forecast.median[:, column])
        np.testing.assert_allclose(lines["actual"].get_ydata(), forecast.paths[0, :, column])
        np.testing.assert_allclose(lines["history"].get_ydata(), history.y[-2 * STEPS :, column])
        assert lines["history"].get_xdata()[-1] == 49 * 0.5
        assert lines["median"].get_xdata()[0] == 50 * 0.5
        assert len(panel.collections) == 3
    pyplot.close(figure)


def test_a_plot_goes_into_given_axes():
    figure, axes = pyplot.subplots(1, 2)
    assert make_forecast().plot(ax=axes) is figure
    with pytest.raises(ValueError, match="one pair of axes an output, 2 in all; got 1"):
        make_forecast().plot(ax=axes[0])
    pyplot.close(figure)
