"""A prior from another system: its rows count like data, weighted by the strength."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import gpssm
from builders import make_model, make_series, make_states
from gpssm.fitting.transfer import inherit, temper
from gpssm.model.target import weights_given_states
from posteriors import fitted, make_posterior

weights_given = eqx.filter_jit(weights_given_states)


@eqx.filter_jit
def step(model, x, u, weights):
    """The mean of the next states given the weights, and the residual."""
    found = model.transition()(x, u)
    return found.given(weights), found.residual


@pytest.mark.parametrize("basis", ["stacked", "fourier"])
def test_the_rows_of_the_other_plant_count_as_if_they_were_here(basis):
    model, before, after = make_model(basis), make_series(9), make_series(7, seed=2)
    first, second = make_states(9), make_states(7, seed=4)
    weights = np.zeros((1, 1, 2, model.basis.size))
    prior = make_posterior(model, [before], weights, {}, None, [first[None, None]], 1, 1)
    scaled = [prior.dataset.scaler.scale(one) for one in (before, after)]
    told = inherit(prior, [scaled[1]], 1.0, 0).model
    found = weights_given(told, jnp.asarray(second), scaled[1])
    both = weights_given(model, [jnp.asarray(first), jnp.asarray(second)], scaled)
    factor, centre = np.asarray(told.basis.factor), np.asarray(told.mean.weights)
    for d in range(2):
        np.testing.assert_allclose(centre[d] + factor[d] @ found.mean[d], both.mean[d], atol=1e-8)
        covariance = factor[d] @ np.linalg.inv(found.precision[d]) @ factor[d].T
        np.testing.assert_allclose(covariance, np.linalg.inv(both.precision[d]), atol=1e-8)
    x, u = jnp.asarray(second), jnp.asarray(make_series(8).u)
    v = centre + np.einsum("dij,dj->di", factor, found.mean)
    (own, own_residual), (other, residual) = (
        step(told, x, u, found.mean),
        step(model, x, u, jnp.asarray(v)),
    )
    np.testing.assert_allclose(own, other, atol=1e-8)
    np.testing.assert_allclose(own_residual, residual, atol=1e-10)


def test_the_strength_is_how_often_a_row_counts():
    rng = np.random.default_rng(0)
    rows, values = rng.normal(size=(1, 20, 4)), rng.normal(size=(1, 20))
    for strength in (0.0, 0.5, 1.0, 3.0):
        seen, heard = rows[0].T @ rows[0], rows[0].T @ values[0]
        covariance = np.linalg.inv(np.eye(4) + seen)
        mean, factor = temper(
            jnp.asarray(covariance @ heard)[None], jnp.asarray(covariance)[None], strength
        )
        expected = np.linalg.inv(np.eye(4) + strength * seen)
        np.testing.assert_allclose(factor[0] @ factor[0].T, expected, atol=1e-10)
        np.testing.assert_allclose(mean[0], expected @ (strength * heard), atol=1e-10)
    # What is less certain than before any data says nothing.
    mean, factor = temper(jnp.ones((1, 2)), jnp.asarray(np.diag([4.0, 0.5]))[None], 1.0)
    np.testing.assert_allclose(factor[0] @ factor[0].T, np.diag([1.0, 0.5]), atol=1e-12)


def test_what_was_learned_row_by_row_is_handed_on():
    prior, rows = make_posterior(chains=1, draws=1), make_series(6, seed=3)
    later = prior.learn(rows)
    told = [inherit(one, [one.dataset.scaler.scale(rows)], 1.0, 0).model for one in (prior, later)]
    dim, size = later.draws.weights.shape[2:]
    mean = later.learned.state.mean[0, 0, dim:]
    covariance = later.learned.state.covariance[0, 0, dim:, dim:]
    for d, factor in enumerate(np.asarray(told[1].basis.factor)):
        block = slice(d * size, (d + 1) * size)
        np.testing.assert_allclose(factor @ factor.T, covariance[block, block], atol=1e-8)
    np.testing.assert_allclose(told[1].mean.weights, mean.reshape(dim, size), atol=1e-8)
    assert not np.allclose(told[0].mean.weights, told[1].mean.weights)


@pytest.fixture(scope="module")
def old():
    return fitted()


def test_a_fit_with_a_prior_is_a_posterior_like_others(old, tmp_path):
    rows = old.dataset.experiments[0][:20]
    found = gpssm.fit(
        rows,
        prior=old,
        prior_strength=0.5,
        num_chains=1,
        num_warmup=30,
        num_draws=4,
        progress=False,
    )
    assert found.dataset.scaler == old.dataset.scaler
    assert found.spec.prior_strength == 0.5
    assert {name.split(".")[0] for name in found.draws.leaves} <= {"log_process_std", "likelihood"}
    np.testing.assert_array_equal(found.model.kernel.log_variance, old.model.kernel.log_variance)
    found.save(tmp_path / "told.nc")
    again = gpssm.load(tmp_path / "told.nc")
    paths = [
        one.forecast(4, old.dataset.experiments[0].u[:4], num_paths=8).paths
        for one in (found, again)
    ]
    np.testing.assert_array_equal(*paths)
    assert np.isfinite(paths[0]).all()


def test_what_does_not_fit_is_refused(old):
    rows = old.dataset.experiments[0][:20]

    def fit(series=rows, **options):
        return gpssm.fit(series, **{"prior": old, "progress": False} | options)

    with pytest.raises(TypeError, match="prior must be a posterior"):
        fit(prior="old.nc")
    with pytest.raises(ValueError, match="prior_strength"):
        fit(prior_strength=-1.0)
    with pytest.raises(ValueError, match="kernel, start are determined by prior"):
        fit(kernel="rq", start="em")
    with pytest.raises(ValueError, match="must have"):
        fit(dataclasses.replace(rows, outputs=("other",)))
    with pytest.raises(ValueError, match="call posterior"):
        fit(calibrate=True)
    with pytest.raises(ValueError, match="does not support a prior"):
        fit(method="lgssm")
    name = rows.outputs[0]
    experiments = (dataclasses.replace(old.dataset.experiments[0], units={name: "m"}, dt=1.0),)
    metric = dataclasses.replace(
        old, dataset=dataclasses.replace(old.dataset, experiments=experiments)
    )
    with pytest.raises(ValueError, match="is in ft, but in m before"):
        fit(dataclasses.replace(rows, units={name: "ft"}), prior=metric)
    with pytest.raises(ValueError, match="resample"):
        fit(dataclasses.replace(rows, dt=2.0, clock=None), prior=metric)
