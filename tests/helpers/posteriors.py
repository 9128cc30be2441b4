"""Posteriors of given draws, and one of a small fit."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np

import gpssm
from builders import make_model, make_series
from gpssm.data.dataset import Dataset
from gpssm.data.scaler import Scaler
from gpssm.methods.spec import Spec
from gpssm.model.types import Draw, Info
from gpssm.posterior.draws import Seconds, model_of
from gpssm.posterior.posterior import Posterior

CHAINS, DRAWS = 2, 3


@functools.cache
def fitted():
    """A posterior of `ffvd` with two states, two chains of six draws each."""
    settings = {
        "state_dim": 2,
        "num_inducing": 5,
        "start": "em",
        "noise": "free",
        "num_chains": 2,
        "progress": False,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that so short a chain has not settled
        return gpssm.fit(
            make_series(40, output_dim=1), num_warmup=8, num_draws=6, thin=1, **settings
        )


def make_posterior(
    model=None,
    raw=None,
    weights=None,
    leaves=None,
    scaler=None,
    states=None,
    chains=CHAINS,
    draws=DRAWS,
    current=None,
):
    """Random weights and states unless given; every array has leading axes (chain, draw)."""
    rng = np.random.default_rng(8)
    raw = [make_series(9, missing=True), make_series(5, seed=2)] if raw is None else raw
    model = (
        make_model(input_dim=raw[0].input_dim, output_dim=raw[0].output_dim)
        if model is None
        else model
    )
    size = (chains, draws)
    if weights is None:
        weights = 0.5 * rng.normal(size=(*size, model.state_dim, model.basis.size))
    if states is None:
        states = [rng.normal(size=(*size, len(one) + 1, model.state_dim)) for one in raw]
    if leaves is None:
        noises = np.asarray(model.log_process_std) + 0.1 * rng.normal(size=(*size, model.state_dim))
        kernels = np.asarray(model.kernel.log_variance) + 0.1 * rng.normal(
            size=(*size, model.state_dim)
        )
        leaves = {"log_process_std": noises, "kernel.log_variance": kernels}
    scaler = Scaler.fit(raw) if scaler is None else scaler
    info = Info(*(np.zeros(size) for _ in Info._fields))
    draws_of = jax.tree.map(jnp.asarray, Draw(tuple(states), weights, leaves))
    spec = Spec(method={"name": "by hand", "num_warmup": 0})
    dataset = Dataset(tuple(raw), scaler)
    return Posterior(
        model, draws_of, info, info, dataset, spec, Seconds(0, 0, 0), seed=0, current=current
    )


def linear_weights(model, transition, control, offset):
    """Weights of `LinearFeatures` that make m + A v = transition · x + control · u + offset."""
    mean, wanted = model.mean, np.hstack([transition, control, offset[:, None]])
    centre = np.hstack([mean.transition, mean.input_map, np.asarray(mean.offset)[:, None]])
    return (wanted - centre) / np.exp(model.basis.log_scale)


def mean_outputs(posterior, u):
    """The mean over draws of noise-free simulations, computed one draw and one step at a time."""
    total = 0.0
    for chain in range(posterior.num_chains):
        for draw in range(posterior.num_draws):
            model = model_of(posterior, chain, draw)
            x = posterior.draws.states[-1][chain, draw, -1]
            outputs = []
            move = model.transition()
            for control in posterior.dataset.scaler.scale_inputs(u):
                x = move(x[None], control[None]).given(posterior.draws.weights[chain, draw])[0]
                outputs.append(model.likelihood.moments(x[None])[0][0])
            total = total + posterior.dataset.scaler.unscale_mean(np.array(outputs))
    return total / (posterior.num_chains * posterior.num_draws)
