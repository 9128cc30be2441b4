"""R-hat and effective sample sizes against arviz-stats; the sampler's figures against cases with known answers."""

import numpy as np
import pytest
from arviz_stats.base import array_stats

from gpssm.model.types import Draw
from gpssm.posterior import diagnostics
from gpssm.posterior.diagnostics import non_gaussianity
from random_walk import small_fit


def autoregression(chains, draws, rho, shape=(), seed=0):
    """x_t = rho x_{t−1} + ε, one chain a row."""
    x = np.random.default_rng(seed).normal(size=(chains, draws, *shape))
    for t in range(1, draws):
        x[:, t] += rho * x[:, t - 1]
    return x


@pytest.mark.parametrize(("chains", "draws"), [(2, 8), (2, 11), (4, 37), (1, 100), (4, 501)])
@pytest.mark.parametrize("rho", [-0.9, 0.0, 0.95])
def test_figures_agree_with_arviz(chains, draws, rho):
    values = autoregression(chains, draws, rho, (2, 2))

    def reference(name, **settings):
        function = getattr(array_stats, name)
        flat = values.reshape(chains, draws, -1)
        each = [function(flat[..., i], chain_axis=0, draw_axis=1, **settings) for i in range(4)]
        return np.reshape(each, (2, 2))

    if chains > 1:
        np.testing.assert_allclose(diagnostics.rhat(values), reference("rhat"), rtol=1e-9)
    np.testing.assert_allclose(diagnostics.ess_bulk(values), reference("ess", method="bulk"), rtol=1e-9)
    tail = reference("ess", method="tail", prob=(0.05, 0.95))
    np.testing.assert_allclose(diagnostics.ess_tail(values), tail, rtol=1e-9)


def test_ties_and_heavy_tails_agree_with_arviz():
    values = np.round(autoregression(4, 60, 0.5) ** 5, 1)
    settings = dict(chain_axis=0, draw_axis=1)
    np.testing.assert_allclose(diagnostics.rhat(values), array_stats.rhat(values, **settings), rtol=1e-9)
    expected = array_stats.ess(values, method="bulk", **settings)
    np.testing.assert_allclose(diagnostics.ess_bulk(values), expected, rtol=1e-9)


def test_rhat_sees_a_chain_elsewhere_and_a_chain_with_another_spread():
    values = autoregression(4, 200, 0.0)
    assert diagnostics.rhat(values) < 1.02
    assert diagnostics.rhat(values + np.array([0, 0, 0, 2.0])[:, None]) > 1.2
    assert diagnostics.rhat(values * np.array([1, 1, 1, 5.0])[:, None]) > 1.1


def test_effective_size_of_an_autoregression():
    # N (1 − ρ) / (1 + ρ)
    values = autoregression(4, 5000, 0.6)
    assert diagnostics.ess_bulk(values) == pytest.approx(20000 * 0.4 / 1.6, rel=0.1)


def test_energies_drawn_afresh_have_a_bfmi_of_two_and_a_slow_walk_near_none():
    assert diagnostics.bfmi(autoregression(2, 4000, 0.0)) == pytest.approx([2.0, 2.0], rel=0.1)
    assert np.all(diagnostics.bfmi(autoregression(2, 4000, 0.999)) < 0.05)


def test_rows_take_the_worst_and_leave_constants_out():
    values = autoregression(4, 100, 0.0, (3,))
    values[:, :, 1] = 7.0
    values[:, :, 2] += np.arange(4)[:, None]
    one = diagnostics.row("x", values)
    assert one.number == 2
    assert one.rhat == diagnostics.rhat(values[:, :, 2])
    assert np.isnan(diagnostics.row("x", np.ones((2, 10, 3))).rhat)


def test_chains_with_other_coordinates_are_fine_within():
    values = autoregression(4, 200, 0.0, (2,)) * np.array([1, -1, 3, -3.0])[:, None, None]
    values += 3 * np.arange(4)[:, None, None]
    assert diagnostics.row("x", values).rhat > 1.2
    within = diagnostics.row_within("x", values)
    assert within.rhat < 1.05
    assert 400 < within.ess_bulk_median < 1600


def test_the_share_of_marginals_that_are_not_gaussian():
    class Fake:
        rng = np.random.default_rng(1)
        draws = Draw((rng.normal(size=(2, 400, 100, 2)),), rng.exponential(size=(2, 400, 2, 5)), {})

    share = non_gaussianity(Fake())
    assert share["states"] == pytest.approx(0.05, abs=0.05)
    assert share["weights"] == 1.0


def test_the_diagnostics_of_a_posterior():
    posterior = small_fit()
    found = posterior.diagnostics()
    names = [one.name for one in found.rows]
    assert names[:2] == ["likelihood.log_std", "log_process_std"]
    assert names[2:] == [
        *("function values", "states, within chains", "smoothed outputs", "30-step forecast mean", "log target"),
    ]
    assert found["smoothed outputs"].rhat == pytest.approx(np.max(diagnostics.rhat(posterior.outputs())))
    assert found["function values"].number == 20
    assert found["log target"].ess_bulk == pytest.approx(diagnostics.ess_bulk(posterior.info.log_target))
    assert found.gradients == 4 + 2 * 12
    assert "identified only up to" in str(found)
    assert list(found.to_frame().index) == names
    with pytest.raises(KeyError, match="smoothed outputs"):
        found["outputs"]
