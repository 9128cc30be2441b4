"""The comparison of linear models, as a user sees it."""

import numpy as np
import pytest

import gpssm


@pytest.fixture(scope="module")
def models():
    """Of a resonance with two states, driven by steps, in metres."""
    rng = np.random.default_rng(0)
    u = np.repeat(rng.normal(size=60), 6)
    y = np.zeros(362)
    for t in range(360):
        y[t + 2] = 1.6 * y[t + 1] - 0.8 * y[t] + u[t] + 0.1 * rng.normal()
    return gpssm.linear_models(gpssm.Series(100 + 5 * y[2:], u))


def test_the_order_is_found_and_the_table_ranked(models):
    assert models.orders[0] == 2
    assert models.table.index[0] == models.best
    assert models.table["loss"].is_monotonic_increasing
    assert (models.table["loss"] == models.table["crps"]).all()
    assert models.table.loc["mean", "loss"] > 3 * models.table.loc["ss-2", "loss"]
    assert "order 2" in repr(models)
    assert "ss-2" in str(models)
    assert "standard error" in models._repr_html_()


def test_it_is_what_the_default_order_is_taken_from(models):
    series = gpssm.datasets.simulate("linear_gaussian", num_steps=150).series
    found = gpssm.linear_models(series, horizon=10)
    spec = gpssm.Spec(horizon=10, likelihood="gaussian").resolve([series])
    assert spec.state_dim == max(found.orders[0], series.output_dim)


def test_simulations_may_rank(models):
    series = gpssm.datasets.simulate("linear_gaussian", num_steps=150).series
    found = gpssm.linear_models(series, horizon="simulation", max_order=3)
    assert (found.table["loss"] == found.table["simulation"]).all()
    assert "simulation" in repr(found)


def test_the_figure_has_each_order_and_marks_the_chosen_one(models):
    panel = models.plot().axes[0]
    orders = [name for name in models.table.index if name.startswith("ss-")]
    assert len(panel.containers[0].lines[0].get_xdata()) == len(orders)
    (ring,) = [item for item in panel.collections if item.get_label() == "chosen"]
    np.testing.assert_allclose(ring.get_offsets()[0], [2, models.table.loc["ss-2", "loss"]])


def test_bad_arguments_are_refused():
    series = gpssm.Series(np.arange(40.0))
    with pytest.raises(ValueError, match="max_order must be a whole number of at least 1"):
        gpssm.linear_models(series, max_order=0)
    with pytest.raises(ValueError, match="horizon"):
        gpssm.linear_models(series, horizon=0)
