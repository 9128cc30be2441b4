"""Sampling that stops once the outputs are known precisely enough, at looks planned in advance."""

import dataclasses
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

import builders
import gpssm
from gpssm.data.dataset import Dataset
from gpssm.data.scaler import Scaler
from gpssm.diagnostics import is_precise
from gpssm.inference.chains import Chains
from gpssm.inference.runner import FIRST_LOOK, Runtime, next_look, run_chains
from gpssm.methods import FFVD
from gpssm.model.priors import InverseGamma
from gpssm.posterior.draws import Seconds
from gpssm.posterior.posterior import Posterior
from gpssm.starts.build import Start

MOST = 400
SETTINGS = {
    "method": "ffvd",
    "state_dim": 1,
    "num_inducing": 6,
    "start": "em",
    "hyper": "fix",
    "num_warmup": 100,
    "num_draws": MOST,
    "progress": False,
}


def make_series():
    rng = np.random.default_rng(0)
    u = rng.normal(size=(60, 1))
    x = np.zeros(61)
    for row in range(60):
        x[row + 1] = 0.7 * x[row] + np.tanh(u[row, 0])
    return gpssm.Series(x[1:] + 0.2 * rng.normal(size=60), u)


@pytest.fixture(scope="module")
def precise():
    return gpssm.fit(make_series(), precision=80, **SETTINGS)


def assert_same(first, second):
    jax.tree.map(np.testing.assert_array_equal, first, second)


def test_looks_double():
    assert sorted({next_look(draws) for draws in range(800)}) == [50, 100, 200, 400, 800]
    assert [next_look(draws) for draws in (0, 49, 50, 99, 100)] == [50, 50, 100, 100, 200]


def test_it_stops_at_a_look_with_the_draws_of_the_longer_run(precise):
    assert next_look(precise.num_draws - 1) == precise.num_draws
    assert precise.num_draws < MOST
    assert is_precise(precise, 80, FIRST_LOOK)
    longer = gpssm.fit(make_series(), **SETTINGS).draws
    assert_same(precise.draws, jax.tree.map(lambda leaf: leaf[:, : precise.num_draws], longer))


def test_its_spec_gives_the_same_draws(precise):
    again = gpssm.fit(make_series(), spec=precise.spec, progress=False)
    assert_same(again.draws, precise.draws)


def test_a_precision_out_of_reach_takes_all_draws():
    posterior = gpssm.fit(make_series(), precision=10**6, **SETTINGS | {"num_draws": 70})
    assert posterior.num_draws == 70


def test_a_resumed_run_stops_where_an_uninterrupted_one_does(precise, monkeypatch, tmp_path):
    advance = Chains.advance
    calls = []

    def interrupted(self, *arguments):
        calls.append(arguments)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return advance(self, *arguments)

    monkeypatch.setattr(Chains, "advance", interrupted)
    run = SETTINGS | {"chunk": 20, "checkpoint": tmp_path, "precision": 80}
    with pytest.raises(KeyboardInterrupt):
        gpssm.fit(make_series(), **run)
    monkeypatch.undo()
    assert_same(gpssm.fit(make_series(), resume=True, **run).draws, precise.draws)
    assert_same(gpssm.fit(make_series(), resume=True, **run).draws, precise.draws)


def test_independent_draws_are_precise_and_chains_that_disagree_are_not():
    posterior = gpssm.fit(make_series(), method="arx", num_draws=200, num_chains=4)
    assert is_precise(posterior, 400, 50)
    assert not is_precise(posterior, 1200, 50)
    states = posterior.draws.states[0].copy()
    states[0] += 0.5 * states.std((0, 1))
    apart = posterior.draws._replace(states=(states,))
    assert not is_precise(dataclasses.replace(posterior, draws=apart), 100, 50)


@pytest.mark.slow
def test_ranks_of_the_truth_are_uniform():
    """Simulation-based calibration of runs of different lengths."""
    priors = {
        "log_process_std": InverseGamma(5.0, 0.5),
        "likelihood.log_std": InverseGamma(5.0, 0.5),
    }
    model = builders.make_model("hilbert", state_dim=1, input_dim=1, output_dim=1, num=4)
    model = model.with_roles("fix", "*").with_priors(priors).with_roles("sample", *priors)
    plain = builders.make_series(10, 1, 1)
    unscaled = Scaler((0.0,), (1.0,), (0.0,), (1.0,))
    settings = FFVD(num_warmup=200, num_draws=MOST, rank=5, precision=60)
    rng = np.random.default_rng(0)
    ranks = []
    lengths = set()
    for seed in range(200):
        keys = jax.random.split(jax.random.key(seed), 6)
        leaves = {
            name: prior.sample(key, model.leaves()[name].shape)
            for (name, prior), key in zip(priors.items(), keys, strict=False)
        }
        truth = model.with_leaves(leaves)
        weights = jax.random.normal(keys[2], (1, model.basis.size))
        path = truth.simulate(keys[3], jnp.asarray(plain.u), weights).states
        y = truth.likelihood.sample(keys[4], path[1:])
        series = gpssm.Series(np.asarray(y), plain.u)
        start = model.simulate(keys[5], jnp.asarray(plain.u), weights * 0).states
        dataset = Dataset((series,), unscaled)

        def is_enough(sample, dataset=dataset, seed=seed):
            parts = (sample.draws, sample.info, sample.warmup, dataset, gpssm.Spec())
            posterior = Posterior(model, *parts, Seconds(0, 0, 0), seed)
            return is_precise(posterior, settings.precision, FIRST_LOOK)

        sample = run_chains(
            settings,
            [Start(model, (np.asarray(start),))],
            [series],
            Runtime(num_chains=2, seed=seed, progress=False),
            is_enough=is_enough,
        )
        lengths.add(sample.info.log_target.shape[1])
        drawn = np.concatenate(
            [
                sample.draws.states[0][:, :, ::5, 0],
                sample.draws.weights[:, :, 0],
                *(sample.draws.leaves[name].reshape(2, -1, 1) for name in priors),
            ],
            -1,
        )
        true = np.concatenate(
            [path[::5, 0], weights[0], *(np.ravel(leaves[name]) for name in priors)]
        )
        flat = drawn.reshape(-1, drawn.shape[-1])
        chosen = flat[rng.choice(len(flat), 15, replace=False)]
        ranks.append(np.sum(chosen < true, 0))
    assert len(lengths) > 1  # the rule has stopped runs at different looks
    counts = [np.bincount(column // 2, minlength=8) for column in np.transpose(ranks)]
    assert chisquare(counts, axis=1).pvalue.min() > 1e-3
