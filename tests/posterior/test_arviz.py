"""Posteriors for ArviZ and pandas: names, axes, units, and PSIS-LOO on top."""

import dataclasses
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from arviz_stats import loo
from scipy import stats
from scipy.special import logsumexp
from test_storage import CHAINS, make_posterior

from builders import make_model, make_series
from gpssm.data.series import Series
from gpssm.model.likelihoods import Custom, make_likelihood
from gpssm.model.model import GPSSM

DRAWS, LENGTH = 200, 8


def in_user_units(series, factor=3.0, shift=10.0):
    return dataclasses.replace(
        series, y=series.y * np.array([factor, 1.0]) + shift, dt=0.5, outputs=("θ", "p")
    )


@pytest.fixture(scope="module")
def posterior():
    """One series with a row and an entry missing, outputs of unequal scale."""
    model = (
        make_model().with_roles("fix", "*").with_roles("sample", "log_process_std", "likelihood.*")
    )
    return make_posterior(
        (in_user_units(make_series(LENGTH, missing=True)),), model, draws=DRAWS, spread=0.05
    )


@pytest.fixture(scope="module")
def tree(posterior):
    return posterior.to_arviz()


def emitted(posterior):
    """Mean and standard deviation of y in the user's units, from the definition."""
    leaves, std = posterior.draws.leaves, np.array(posterior.dataset.scaler.output_std)
    mean = np.einsum("cdyx,cdtx->cdty", leaves["likelihood.C"], posterior.draws.states[0][:, :, 1:])
    mean = mean + leaves["likelihood.d"][:, :, None]
    return mean * std + posterior.dataset.scaler.output_mean, np.exp(leaves["likelihood.log_std"])[
        :, :, None
    ] * std


def test_groups_names_and_axes(tree):
    assert set(tree.children) == {
        *(
            "posterior",
            "sample_stats",
            "posterior_predictive",
            "log_likelihood",
            "observed_data",
            "constant_data",
        ),
    }
    assert tree["posterior"]["states"].dims == ("chain", "draw", "time", "state")
    assert tree["posterior"]["weights"].dims == ("chain", "draw", "state", "inducing")
    assert tree["posterior"]["likelihood.C"].dims == ("chain", "draw", "output", "state")
    assert tree["posterior_predictive"]["y"].dims == ("chain", "draw", "time", "output")
    assert tree["log_likelihood"]["y"].dims == ("chain", "draw", "time")
    assert set(tree["sample_stats"].data_vars) == {
        "lp",
        "acceptance_rate",
        "diverging",
        "energy",
        "n_steps",
    }
    assert list(tree["observed_data"]["output"].values) == ["θ", "p"]


def test_a_file_has_the_same_arrays_in_the_same_groups(posterior, tree, tmp_path):
    posterior.save(tmp_path / "run.nc")
    with xr.open_datatree(tmp_path / "run.nc", engine="h5netcdf") as stored:
        for group in ("posterior", "sample_stats", "observed_data", "constant_data"):
            assert stored[group].data_vars
            for name, array in stored[group].data_vars.items():
                assert array.dims == tree[group][name].dims
                np.testing.assert_array_equal(array, tree[group][name])


def test_a_state_has_the_time_of_the_output_it_emits(posterior, tree):
    states = tree["posterior"]["states"].sel(time=tree["observed_data"]["time"])
    np.testing.assert_array_equal(states, posterior.draws.states[0][:, :, 1:])
    np.testing.assert_array_equal(tree["observed_data"]["time"], 0.5 * np.arange(LENGTH))


def test_values_are_those_of_the_posterior_in_the_users_units(posterior, tree):
    found, leaves = tree["posterior"], posterior.draws.leaves
    np.testing.assert_array_equal(found["log_process_std"], leaves["log_process_std"])
    np.testing.assert_allclose(found["process_std"], np.exp(leaves["log_process_std"]))
    np.testing.assert_allclose(found["noise_std"], emitted(posterior)[1][:, :, 0])
    np.testing.assert_array_equal(tree["observed_data"]["y"], posterior.dataset.experiments[0].y)
    np.testing.assert_array_equal(tree["constant_data"]["u"], posterior.dataset.experiments[0].u)
    np.testing.assert_array_equal(tree["sample_stats"]["lp"], posterior.info.log_target)
    assert tree["sample_stats"]["diverging"].dtype == bool


def test_log_likelihood_is_that_of_the_observed_entries_in_the_users_units(posterior, tree):
    y = posterior.dataset.experiments[0].y
    mean, std = emitted(posterior)
    expected = np.nansum(stats.norm.logpdf(y, mean, std), -1)
    rows = ~np.isnan(y).all(-1)
    assert rows.sum() == LENGTH - 1
    np.testing.assert_allclose(tree["log_likelihood"]["y"], expected[:, :, rows])
    np.testing.assert_array_equal(tree["log_likelihood"]["time"], 0.5 * np.flatnonzero(rows))


def test_predictive_draws_have_the_emissions_law_and_come_from_the_seed(posterior, tree):
    mean, std = emitted(posterior)
    drawn = tree["posterior_predictive"]["y"].values
    assert stats.kstest(np.ravel((drawn - mean) / std), "norm").pvalue > 1e-3
    np.testing.assert_array_equal(drawn, posterior.to_arviz(seed=0)["posterior_predictive"]["y"])
    assert not np.array_equal(drawn, posterior.to_arviz(seed=1)["posterior_predictive"]["y"])


def test_leave_one_out_runs(tree):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # random draws are no posterior, and it says so
        found = loo(tree, pointwise=True)
    density = tree["log_likelihood"]["y"].values.reshape(CHAINS * DRAWS, -1)
    plain = np.log(CHAINS * DRAWS) - logsumexp(-density, axis=0)
    assert found.n_data_points == LENGTH - 1
    np.testing.assert_allclose(found.elpd, plain.sum(), rtol=0.05)


def test_several_series_of_unequal_length_and_every_leaf_free():
    raw = (make_series(5), make_series(7, seed=2))
    tree = make_posterior(raw, make_model("stacked").with_roles("sample", "*")).to_arviz()
    assert tree["observed_data"]["y_0"].dims == ("time_0", "output")
    assert tree["posterior_predictive"]["y_1"].shape[2:] == (7, 2)
    assert tree["posterior"]["states_1"].sizes["time_1"] == 8
    assert tree["posterior"]["basis.parts.0.locations"].dims[2:] == ("inducing_6", "coordinate")


def test_no_controls_and_nothing_free():
    model = make_model(input_dim=0).with_roles("fix", "*")
    tree = make_posterior((make_series(5, input_dim=0),), model).to_arviz()
    assert "constant_data" not in tree.children
    assert set(tree["posterior"].data_vars) == {"states", "weights"}


def test_counts_have_no_units_to_change():
    plain = make_model()
    poisson = make_likelihood("poisson", jnp.ones((2, 2)), jnp.zeros(2), jnp.ones(2))
    model = GPSSM.create(plain.kernel, plain.basis, plain.mean, poisson, jnp.ones(2)).with_roles(
        "fix", "*"
    )
    counts = Series(np.arange(10.0).reshape(5, 2), np.zeros((5, 1)))
    made = make_posterior((counts,), model, scaling="none")
    tree = made.to_arviz()
    rate = np.exp(made.draws.states[0][:, :, 1:].sum(-1, keepdims=True))
    np.testing.assert_allclose(
        tree["log_likelihood"]["y"], stats.poisson.logpmf(counts.y, rate).sum(-1)
    )
    assert (tree["posterior_predictive"]["y"] % 1 == 0).all()


def test_a_density_without_a_sampler_has_no_predictive_draws():
    plain = make_model()
    own = Custom(lambda x, y: -0.5 * (y - x) ** 2)
    model = GPSSM.create(plain.kernel, plain.basis, plain.mean, own, jnp.ones(2)).with_roles(
        "fix", "*"
    )
    made = make_posterior((make_series(5),), model, scaling="none")
    tree = made.to_arviz()
    assert "posterior_predictive" not in tree.children
    expected = -0.5 * np.sum(
        (made.dataset.experiments[0].y - made.draws.states[0][:, :, 1:]) ** 2, -1
    )
    np.testing.assert_allclose(tree["log_likelihood"]["y"], expected)
