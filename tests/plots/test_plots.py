"""Figures show the results of the posterior, and do not use pyplot."""

import io
import sys
from dataclasses import replace

import jax
import matplotlib as mpl
import numpy as np
import pytest
from scipy import stats

from programs import run_program

mpl.use("Agg")

import gpssm
from builders import make_model, make_series
from gpssm import plots
from gpssm.data.datasets import simulate
from gpssm.data.series import Series
from gpssm.plots import style
from gpssm.plots.posteriors import _direction, slices
from gpssm.posterior.forecast import Forecast, ForecastDiagnostics, smooth
from posteriors import make_posterior

DRAWS = 12


@pytest.fixture(scope="module")
def posterior():
    """Two series, Dy = 2, Du = 1, missing outputs, sampled and optimised leaves."""
    raw = [make_series(30, missing=True), make_series(25, seed=2)]
    model = make_model().with_roles("sample", "log_process_std", "kernel.log_variance")
    made = make_posterior(model, raw, draws=DRAWS)
    rng = np.random.default_rng(1)
    info = made.info._replace(
        log_target=rng.normal(size=(2, DRAWS)), energy=rng.normal(size=(2, DRAWS))
    )
    return replace(made, info=info, draws=jax.tree.map(np.asarray, made.draws))


@pytest.fixture(scope="module")
def baseline():
    data = simulate("linear_gaussian", num_steps=150, seed=3)
    series = getattr(data, "series", data)
    return gpssm.fit(
        series, method=gpssm.methods.METHODS["arx"], num_draws=40, num_chains=2, progress=False
    )


def drawn(figure):
    """The figure after it was drawn: warnings while drawing are errors."""
    figure.savefig(io.BytesIO(), dpi=100)
    return figure


def labels(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def lines(panel, label):
    return [line for line in panel.lines if line.get_label() == label]


def band(panel, label):
    """Lower and upper edge of a shaded band, by x."""
    (found,) = [one for one in panel.collections if one.get_label() == label]
    corners = found.get_paths()[0].vertices
    edges = {x: corners[corners[:, 0] == x, 1] for x in np.unique(corners[:, 0])}
    return np.array(list(edges)), np.array([(y.min(), y.max()) for y in edges.values()]).T


def make_forecast(left=0.0, novelty=0.0, number=400, steps=40, spread=1.0, seed=0, **settings):
    paths = spread * np.random.default_rng(seed).normal(size=(number, steps, 2))
    trust = ForecastDiagnostics(np.linspace(0, left, steps), np.linspace(0, novelty, steps))
    known = {"diagnostics": trust, "dt": 0.5} | settings
    return Forecast(paths, ("level", "flow"), 50, np.zeros((steps, 0)), **known)


def test_importing_the_figures_does_not_import_matplotlib():
    assert run_program("loaded", "gpssm.plots", "matplotlib") == "[]\n"
    assert run_program("loaded", "gpssm.posterior", "matplotlib") == "[]\n"
    assert set(plots.__all__) == {name for name in dir(plots) if name.startswith("plot_")}
    assert gpssm.plots is plots


def test_figures_have_nothing_to_do_with_pyplot_and_show_themselves_in_notebooks(posterior):
    from matplotlib import pyplot

    before = dict(mpl.rcParams)
    figure = plots.plot_states(posterior)
    assert pyplot.get_fignums() == []
    assert dict(mpl.rcParams) == before
    assert figure._repr_png_().startswith(b"\x89PNG")
    figure = drawn(figure)
    for panel in figure.axes:
        assert (
            min(text.get_fontsize() for text in [*panel.get_xticklabels(), panel.yaxis.label]) >= 8
        )
    assert figure.get_figwidth() == style.FULL


def test_without_matplotlib_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        plots.plot_series(make_series())


def test_long_lines_are_thinned_and_keep_their_spikes_and_gaps():
    values = np.sin(np.arange(100_000) / 1000)
    values[51_234], values[70_001], values[20_000:30_000] = 9.0, -9.0, np.nan
    kept = style.extremes(values)
    assert len(kept) <= 2002
    assert {0, 51_234, 70_001, 99_999} <= set(kept)
    assert np.isnan(values[kept]).any()
    np.testing.assert_array_equal(style.extremes(values[:500]), np.arange(500))


def test_series_are_stacked_and_the_split_is_marked():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(5000, 2))
    y[100:103, 1] = np.nan
    series = Series(y, rng.normal(size=(5000, 1)), dt=0.1, outputs=("a", "b"), inputs=("pump",))
    figure = drawn(plots.plot_series(series, train=0.6))
    assert [panel.get_ylabel() for panel in figure.axes] == ["a", "b", "pump"]
    assert figure.axes[-1].get_xlabel() == "time"
    for panel in figure.axes:
        (end,) = lines(panel, "end of training")
        assert end.get_xdata()[0] == pytest.approx(300.0)
        (shade,) = [patch for patch in panel.patches if patch.get_label() == "test"]
        np.testing.assert_allclose([shade.get_x(), shade.get_width()], [300.0, 200.0])
    assert len(lines(figure.axes[0], "output")[0].get_xdata()) <= 2002
    np.testing.assert_allclose(lines(figure.axes[1], "missing")[0].get_xdata(), [10.0, 10.1, 10.2])
    assert lines(figure.axes[0], "missing") == []
    with pytest.raises(ValueError, match=r"up to 5000, a share up to 1.0, or a series; got 6000"):
        plots.plot_series(series, train=6000)


def test_several_series_stand_side_by_side():
    several = [make_series(10 + number, input_dim=0, seed=number) for number in range(6)]
    figure = drawn(plots.plot_series(several, train=7))
    assert len(figure.axes) == 2 * 4
    assert [panel.get_title(loc="left") for panel in figure.axes[:2]] == [
        "series 0 (of 6)",
        "series 1 (of 6)",
    ]
    assert lines(figure.axes[1], "end of training")[0].get_xdata()[0] == 7


def test_a_forecast_is_marked_where_it_should_be_trusted_less():
    forecast = make_forecast(left=0.4)
    figure = drawn(
        plots.plot_forecast(forecast, actual=forecast.paths[0], history=np.zeros((50, 2)))
    )
    for column, panel in enumerate(figure.axes):
        times, (low, high) = band(panel, "90 %")
        np.testing.assert_allclose(times, forecast.steps * 0.5)
        (median,) = lines(panel, "median")
        np.testing.assert_allclose(median.get_ydata(), forecast.median[:, column])
        assert ((low < median.get_ydata()) & (median.get_ydata() < high)).all()
        (hatched,) = panel.patches
        first = np.argmax(~forecast.diagnostics.trusted)
        assert (hatched.get_x(), hatched.get_hatch()) == (forecast.steps[first] * 0.5, "///")
    assert set(labels(figure)) == {
        *("history", "90 %", "50 %", "median", "actual"),
        "untrusted",
    }
    (legend,) = figure.legends
    assert legend.get_window_extent().x1 <= figure.bbox.x1
    trusted = drawn(plots.plot_forecast(make_forecast()))
    assert labels(trusted) == ["90 %", "50 %", "median"]
    assert drawn(plots.plot_forecast(make_forecast(diagnostics=None))).axes[0].patches[:] == []


@pytest.mark.parametrize("index", [0, 1])
def test_smoothed_outputs_have_data_bands_and_what_was_missing(posterior, index):
    figure = drawn(plots.plot_smoothed(posterior, index))
    y, outputs = posterior.dataset.experiments[index].y, smooth(posterior, index)
    assert [panel.get_ylabel() for panel in figure.axes] == list(
        posterior.dataset.experiments[index].outputs
    )
    for column, panel in enumerate(figure.axes):
        missing = np.isnan(y[:, column])
        np.testing.assert_array_equal(lines(panel, "data")[0].get_ydata(), y[:, column])
        filled = lines(panel, "missing, filled in")
        assert (len(filled[0].get_xdata()) if filled else 0) == missing.sum()
        (median,) = lines(panel, "median")
        np.testing.assert_allclose(median.get_ydata(), outputs.median[:, column])
        _, (low, high) = band(panel, "90 %, without noise")
        assert ((low <= median.get_ydata()) & (median.get_ydata() <= high)).all()
        _, wide = band(panel, "90 %, with noise")
        assert np.mean(wide[1] - wide[0]) > np.mean(high - low)
    assert ("missing, filled in" in labels(figure)) == np.isnan(y).any()


def test_states_are_drawn_chain_by_chain(posterior):
    figure = drawn(plots.plot_states(posterior, index=1))
    states = np.asarray(posterior.draws.states[1])
    assert len(figure.axes) == 2
    for dim, panel in enumerate(figure.axes):
        for chain in range(2):
            (line,) = lines(panel, f"chain {chain}")
            np.testing.assert_allclose(
                line.get_ydata(), np.median(states[chain, :, :, dim], axis=0)
            )
        np.testing.assert_array_equal(line.get_xdata(), np.arange(-1, 25))
    assert lines(panel, "chain 0")[0].get_linestyle() != lines(panel, "chain 1")[0].get_linestyle()


def one_state(input_dim, **settings):
    raw = [make_series(20, input_dim=input_dim, output_dim=1)]
    return make_posterior(
        make_model(state_dim=1, input_dim=input_dim, output_dim=1), raw, **settings
    )


@pytest.mark.parametrize("input_dim", [0, 1])
def test_a_slice_shows_the_step_of_the_only_state(input_dim):
    made = one_state(input_dim)
    figure = drawn(plots.plot_transition(made, chain=None))
    assert len(figure.axes) == 2 * (1 + input_dim)
    first, *_ = slices(made)
    (mean,) = lines(figure.axes[0], "mean")
    np.testing.assert_allclose(mean.get_ydata(), (first.estimate.mean - first.x)[:, 0])
    assert first.line[0] < first.places.min() < first.places.max() < first.line[-1]
    with pytest.raises(IndexError, match="2 chains, counted from 0; got chain 2"):
        plots.plot_transition(made, chain=2)


def test_more_states_have_slices_along_principal_directions():
    raw = [make_series(20)]
    rng = np.random.default_rng(4)
    # nearly all that varies is the third state
    states = rng.normal(size=(2, 3, 21, 3)) * np.array([0.01, 0.01, 1.0])
    states[...] = states[:1, :1]
    locations = {"basis.locations": rng.normal(size=(2, 3, 6, 4))}
    made = make_posterior(make_model(state_dim=3), raw, states=[states], leaves=locations)
    figure = drawn(plots.plot_transition(made))
    axes = np.reshape(figure.axes, (4, 3))
    assert [panel.get_ylabel() for panel in axes[:, 0]] == [
        *(f"step of $x_{{{d}}}$" for d in (1, 2, 3)),
        "novelty",
    ]
    titles = [panel.get_title(loc="left") for panel in axes[0]]
    assert any("x_{3}" in title for title in titles[:2])
    assert sum(float(title.split("(")[-1].rstrip("%)")) for title in titles) == pytest.approx(
        100, abs=2
    )
    for panel in axes[:-1].flat:
        (mean,) = lines(panel, "mean")
        _, (low, high) = band(panel, "90 % band")
        assert ((low <= mean.get_ydata()) & (mean.get_ydata() <= high)).all()
        (visited,) = panel.patches
        assert (
            panel.get_xlim()[0]
            < visited.get_x()
            < visited.get_x() + visited.get_width()
            < panel.get_xlim()[1]
        )


def test_a_forecast_shows_its_inputs():
    train, test = make_series(40).split(30)
    forecast = make_forecast(steps=10)
    forecast = replace(forecast, u=test.u, inputs=train.inputs, outputs=train.outputs)
    *outputs, panel = drawn(plots.plot_forecast(forecast, history=train)).axes
    assert [one.get_ylabel() for one in outputs] == list(train.outputs)
    assert panel.get_ylabel() == train.inputs[0]
    np.testing.assert_array_equal(lines(panel, "input (held)")[0].get_ydata(), test.u[:, 0])
    np.testing.assert_array_equal(lines(panel, "history")[0].get_ydata(), train.u[-20:, 0])


def test_calibration_tells_right_from_narrow():
    rng = np.random.default_rng(5)

    def histogram_and_coverage(spread):
        pairs = [
            (make_forecast(spread=spread, seed=seed), rng.normal(size=(40, 2)))
            for seed in range(10)
        ]
        pairs[0][1][:5] = np.nan
        left, right = drawn(plots.plot_calibration(pairs)).axes
        (bars,) = left.containers
        return np.array([bar.get_height() for bar in bars]), left, right

    heights, left, right = histogram_and_coverage(1.0)
    assert heights.mean() == pytest.approx(1)
    (shade,) = [patch for patch in left.patches if patch.get_label() == "95 % band if calibrated"]
    low, high = shade.get_y(), shade.get_y() + shade.get_height()
    expected = stats.binom(790, 0.1).interval(0.95)
    np.testing.assert_allclose([low, high], np.array(expected) * 10 / 790)
    assert np.mean((heights >= low) & (heights <= high)) >= 0.8
    assert "790 entries" in left.get_xlabel()
    np.testing.assert_allclose(lines(right, "90 % interval")[0].get_ydata(), 0.9, atol=0.12)
    np.testing.assert_allclose(lines(right, "50 % interval")[0].get_ydata(), 0.5, atol=0.2)
    heights, _, right = histogram_and_coverage(0.4)
    assert heights[0] > 2
    assert heights[-1] > 2
    assert lines(right, "90 % interval")[0].get_ydata().max() < 0.75


def test_calibration_takes_a_single_pair_and_names_what_it_lacks():
    forecast = make_forecast()
    _, right = drawn(plots.plot_calibration([(forecast, forecast.paths[0])])).axes
    steps = lines(right, "50 % interval")[0].get_xdata()
    assert steps[0] >= 1
    assert steps[-1] <= 40
    with pytest.raises(ValueError, match="at least one pair"):
        plots.plot_calibration([])


def test_traces_show_the_worst_and_ranks_are_even_when_chains_agree(posterior):
    rng = np.random.default_rng(6)
    noises = rng.normal(size=(2, 400, 2))
    noises[1, :, 1] += 3
    more = {"log_process_std": noises, "kernel.log_lengthscale": rng.normal(size=(2, 400, 2, 3))}
    more["kernel.log_variance"] = np.ones((2, 400, 2)) * [[[1.0]], [[2.0]]]  # optimised
    draws = posterior.draws._replace(weights=np.zeros((2, 400, 2, 6)), leaves=more)
    info = posterior.info._replace(log_target=np.ones((2, 400)), acceptance=np.ones((2, 400)))
    figure = drawn(plots.plot_traces(replace(posterior, draws=draws, info=info)))
    assert len(figure.axes) == 2 * 7
    titles = [panel.get_title(loc="left") for panel in figure.axes[::2]]
    assert titles[0] == "log target"
    assert any(title.startswith("log process std[1]   R-hat") for title in titles)
    assert not any("variance" in title for title in titles)
    assert "does not vary" in [text.get_text() for text in figure.axes[1].texts]
    place = next(i for i, title in enumerate(titles) if title.startswith("log process std[1]"))
    apart = [
        patch.get_data().values
        for patch in figure.axes[2 * place + 1].patches
        if hasattr(patch, "get_data")
    ]
    np.testing.assert_allclose(np.mean(apart, axis=1), 1, rtol=1e-9)
    assert apart[0][0] > 1.8
    assert apart[1][0] < 0.2
    even = next(i for i in range(1, 7) if i != place)
    together = [
        patch.get_data().values
        for patch in figure.axes[2 * even + 1].patches
        if hasattr(patch, "get_data")
    ]
    assert np.max(np.abs(np.array(together) - 1)) < 0.7


def test_residuals_have_a_row_an_output_and_a_column_a_control(posterior):
    figure = drawn(plots.plot_residuals(posterior, 0, num_paths=12, rows=20))
    axes = np.reshape(figure.axes, (2, 3))
    for column, (own, correlations, cross) in enumerate(axes):
        shown = own.lines[0].get_ydata()
        np.testing.assert_array_equal(
            np.isnan(shown), np.isnan(posterior.dataset.experiments[0].y[:20, column])
        )
        assert correlations.get_title(loc="left").startswith("with its past\n")
        assert "p = " in correlations.get_title(loc="left")
        assert cross.get_title(loc="left").startswith("with u\n")
        assert own.get_ylabel() == f"of {posterior.dataset.experiments[0].outputs[column]}"


def test_comparison_overlays_forecasts():
    actual = np.random.default_rng(9).normal(size=(40, 2))
    forecasts = {
        name: make_forecast(seed=seed) for seed, name in enumerate(("ffvd", "arx", "last"))
    }
    figure = drawn(plots.plot_comparison(forecasts, actual, history=actual))
    assert labels(figure) == ["history", "actual", "ffvd", "arx", "last"]
    for column, panel in enumerate(figure.axes):
        for name, forecast in forecasts.items():
            np.testing.assert_allclose(
                lines(panel, name)[0].get_ydata(), forecast.median[:, column]
            )
        assert len({lines(panel, name)[0].get_marker() for name in forecasts}) == 3
        assert lines(panel, "history")[0].get_xdata()[-1] == 49 * 0.5
        assert len(panel.collections) == 3
    many = {str(seed): make_forecast(seed=seed) for seed in range(4)}
    assert not drawn(plots.plot_comparison(many, actual)).axes[0].collections
    with pytest.raises(ValueError, match="at least one forecast"):
        plots.plot_comparison({})


def test_every_figure_takes_a_baseline(baseline):
    assert not baseline.draws.leaves
    for make in (
        plots.plot_smoothed,
        plots.plot_states,
        plots.plot_transition,
        plots.plot_traces,
    ):
        assert drawn(make(baseline)).axes
    assert isinstance(baseline.plot(), mpl.figure.Figure)


def test_the_linear_view_shows_medians_and_bands_of_the_draws(posterior):
    linear = posterior.linearise(row=3)
    response = linear.step_response(20)
    figure = drawn(response.plot(0.8))
    panel = figure.axes[1]
    np.testing.assert_allclose(
        lines(panel, "median")[0].get_ydata(), np.median(response.values[:, :, 1, 0], axis=0)
    )
    _, (low, high) = band(panel, "80 % of the draws")
    np.testing.assert_allclose(
        (low, high), np.quantile(response.values[:, :, 1, 0], (0.1, 0.9), axis=0), atol=1e-12
    )
    signals = {"units": {"y1": "m", "u": "V"}, "dt": 0.1, "time_unit": "s"}
    named = replace(linear, **signals)
    labelled = drawn(named.step_response(20).plot()).axes[1]
    assert (labelled.get_ylabel(), labelled.get_xlabel()) == ("y1 [m/V]", "time [s]")
    bode = named.bode([0.01, 0.1])
    panels = drawn(bode.plot()).axes
    assert [panel.get_title("left") for panel in panels] == ["u to y0", "", "u to y1 [m/V]", ""]
    assert panels[-1].get_xlabel() == "frequency [Hz]"
    np.testing.assert_allclose(
        lines(panels[3], "median")[0].get_ydata(), np.median(bode.phase[:, :, 1, 0], axis=0)
    )
    poles = drawn(linear.plot()).axes[0].lines[1:]
    np.testing.assert_allclose([line.get_xdata() for line in poles], linear.poles.real.T)
    curve = gpssm.analysis.static_gain(posterior, values=np.linspace(-1, 1, 5))
    np.testing.assert_allclose(
        lines(drawn(curve.plot()).axes[0], "median")[0].get_ydata(), curve.median[:, 0]
    )


def test_a_direction_along_one_state_is_its_name():
    names = ["x_{1}", "x_{2}"]
    assert _direction(np.array([1.0, 0.02]), names) == "$x_{1}$"
    assert _direction(np.array([0.05, -1.0]), names) == "$-x_{2}$"
    assert _direction(np.array([0.8, -0.6]), names) == r"$0.8\,x_{1} -0.6\,x_{2}$"
