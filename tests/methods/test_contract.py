"""The contract of every method in METHODS: a new entry is tested automatically."""

import dataclasses
import functools
import types
import typing

import jax.numpy as jnp
import numpy as np
import pytest

import builders
import gpssm
import sampling
from gpssm.core.linalg import selected_inverse
from gpssm.linear.state_space import smooth
from gpssm.methods import (
    FFVD,
    FFVDNUTS,
    METHODS,
    FICParticleGibbs,
    MethodSettings,
    ParticleGibbs,
    ReducedRank,
)
from gpssm.methods.linear import as_linear
from gpssm.methods.particle_gibbs import ParticleSettings
from random_walk import small_series

# Small values of settings that cost time, for methods that have them.
SMALL = {
    **{
        "num_warmup": 6,
        "num_draws": 4,
        "thin": 1,
        "num_leapfrog": 2,
        "rank": 3,
        "max_tree_depth": 2,
    },
    **{
        "num_particles": 3,
        "num_samples": 2,
        "batch": 2,
        "hidden": 2,
        "units": 2,
        "max_epochs": 5,
        "max_order": 2,
        "num_passes": 3,
        "num_members": 3,
    },
}


def shrink(settings, **changes):
    """The settings with the small values that they know."""
    known = {field.name for field in dataclasses.fields(settings)}
    return dataclasses.replace(
        settings, **{name: value for name, value in changes.items() if name in known}
    )


def wrong_values():
    """A value for each setting of each method that it must refuse, by the type of the setting."""
    refused = {int: -1, float: -1.0, str: "no such thing", tuple: (0, 1)}
    for name, settings in METHODS.items():
        for field in dataclasses.fields(settings):
            kinds = (
                typing.get_args(field.type)
                if isinstance(field.type, types.UnionType)
                else (field.type,)
            )
            kind = typing.get_origin(kinds[0]) or kinds[0]
            kind = str if kind is typing.Literal else kind
            if kind is not bool:
                yield pytest.param(name, field.name, refused[kind], id=f"{name}-{field.name}")


@pytest.mark.parametrize(("name", "setting", "value"), wrong_values())
def test_a_wrong_setting_is_refused_by_name(name, setting, value):
    with pytest.raises(ValueError, match=setting):
        dataclasses.replace(METHODS[name], **{setting: value})


@pytest.mark.parametrize(
    "name", [name for name, one in METHODS.items() if isinstance(one, ParticleSettings)]
)
def test_one_particle_is_not_enough(name):
    with pytest.raises(
        ValueError, match="num_particles must be a whole number of at least 2, got 1"
    ):
        dataclasses.replace(METHODS[name], num_particles=1)


@functools.cache
def fitted(name):
    """One fit of each method to the same rows, at the one size that the tests compile."""
    settings = shrink(METHODS[name], **SMALL)
    return gpssm.fit(
        small_series(), method=settings, state_dim=1, num_inducing=4, num_chains=2, progress=False
    )


def every(names, quick):
    """The names, marked as slow unless their programs compile quickly."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


@pytest.mark.filterwarnings("ignore::UserWarning")  # runs this short have something to warn of
@pytest.mark.parametrize(
    "name",
    every(
        [name for name in METHODS if name != "auto"],  # several methods, see fitting/test_ladder.py
        {"ffvd-c-m", "vgpssm", "rgpssm", "gp-narx", "arx", "arx-reg", "lgssm", "last", "mean"},
    ),
)
def test_a_fit_has_finite_draws_and_comes_back_from_a_file(name, tmp_path):
    posterior = fitted(name)
    model, draws, info = posterior.model, posterior.draws, posterior.info
    assert posterior.method == name
    assert draws.states[0].shape == (2, SMALL["num_draws"], 21, model.state_dim)
    assert draws.weights.shape == (2, SMALL["num_draws"], model.state_dim, model.basis.size)
    assert all(
        np.isfinite(part).all() for part in (*draws.states, draws.weights, *draws.leaves.values())
    )
    assert np.isfinite(info.log_target).all()
    assert ((info.acceptance >= 0) & (info.acceptance <= 1)).all()
    forecast = posterior.forecast(u=np.ones((5, 1)), num_paths=8)
    assert np.isfinite(forecast.mean).all()
    posterior.save(tmp_path / "fit.nc")
    again = gpssm.load(tmp_path / "fit.nc").forecast(u=np.ones((5, 1)), num_paths=8)
    np.testing.assert_array_equal(again.paths, forecast.paths)


def test_a_method_without_a_build_is_not_a_method():
    with pytest.raises(TypeError, match="MethodSettings is not a method: use one from"):
        MethodSettings().build(builders.make_model(), ())


# Samplers without bias: where everything is linear and Gaussian, their states have the law of the Kalman smoother.
EXACT = {
    "ffvd": FFVD(num_warmup=200, rank=5),
    "ffvd-nuts": FFVDNUTS(num_warmup=200),
    "ffvd-p": ParticleGibbs(num_warmup=20, num_particles=10),
    "fic-pg": FICParticleGibbs(num_warmup=20, num_particles=6),
    "rrank": ReducedRank(num_warmup=20, num_particles=10),
}


@pytest.mark.parametrize("name", every(EXACT, {"ffvd"}))
def test_linear_dynamics_give_the_kalman_smoother(name):
    """Two series, missing outputs, weights that cannot move: means and variances of every state."""
    model = builders.make_model("linear").with_roles("fix", "*")
    model = model.with_leaves({"basis.log_scale": jnp.full_like(model.basis.log_scale, -20.0)})
    series = [builders.make_series(n, missing=True, seed=i) for i, n in enumerate((4, 2))]
    states = tuple(jnp.asarray(builders.make_states(n)) for n in (4, 2))
    draws, info, _ = sampling.run(EXACT[name], model, series, states, num_draws=2000)
    exact = smooth(as_linear(model), series)
    variances = np.diagonal(selected_inverse(exact.factor).diagonal, axis1=1, axis2=2)
    gap = np.concatenate(draws.states, 2) - np.asarray(exact.mean)
    for values, expected in ((gap, np.zeros_like(variances)), (gap**2, variances)):
        mean, error = sampling.average(values.reshape(*values.shape[:2], -1))
        assert np.abs((mean - expected.ravel()) / error).max() < 4.5
    assert np.mean(info.acceptance) > 0.5
    assert not np.any(info.divergent)
