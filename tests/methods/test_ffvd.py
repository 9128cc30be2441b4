"""The default sampler: it adapts only in the warm-up, and supports other likelihoods."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import builders
from gpssm.data.padding import pad, pad_path
from gpssm.inference.hmc import StepSize
from gpssm.inference.noise_moves import ENOUGH, Walk
from gpssm.inference.settings import pilot_length
from gpssm.methods.ffvd import FFVD, FFVDSampler
from gpssm.model.likelihoods import Poisson

CHUNK = 40


def run(method, series, num_chunks):
    """One chain, chunk after chunk of one program: the carry after each, and the draws and figures of the last."""

    @jax.jit
    def go(carry, first, series):
        def iterate(carry, i):
            key = jax.random.fold_in(jax.random.key(0), i)
            carry, info = method.step(key, carry, series)
            return carry, (method.draw(jax.random.fold_in(key, 1), carry, series), info)

        return jax.lax.scan(iterate, carry, first + jnp.arange(CHUNK))

    begin = jax.jit(method.init)(jax.random.key(1), series)
    carries = [
        jax.tree.map(lambda leaf: jnp.asarray(leaf, leaf.dtype), begin)
    ]  # without weak types: one program
    for number in range(num_chunks):
        carry, kept = go(carries[-1], number * CHUNK, series)
        carries.append(carry)
    return carries, *kept


def start(lengths):
    return tuple(jnp.asarray(builders.make_states(n, seed=20 + i)) for i, n in enumerate(lengths))


def test_nothing_adapts_after_the_warm_up():
    model = builders.make_model("stacked").with_roles(
        "sample", "log_process_std", "likelihood.log_std"
    )
    series, begin = (
        [pad(builders.make_series(7, missing=True))],
        tuple(map(jnp.asarray, map(pad_path, start((7,))))),
    )
    method = FFVD(num_warmup=CHUNK, rank=5).build(model, begin)
    (_, warm, end), draws, info = run(method, series, 2)
    np.testing.assert_allclose(
        draws.states[0][:, 8:], np.broadcast_to(begin[0][8:], (CHUNK, 1, 2)), rtol=1e-12
    )
    assert np.ptp(np.asarray(draws.states[0])[:, :8], axis=0).min() > 0.1
    for name in ("whitening", "step", "walk"):
        for before, after in zip(
            jax.tree.leaves(getattr(warm, name)), jax.tree.leaves(getattr(end, name)), strict=True
        ):
            np.testing.assert_array_equal(before, after)
    optimised = {name: draws.leaves[name] for name in model.leaves("optimise")}
    assert all(np.ptp(np.asarray(leaf), axis=0).max() == 0 for leaf in optimised.values())
    assert np.ptp(np.asarray(draws.leaves["log_process_std"]), axis=0).min() > 0
    assert np.isfinite(np.asarray(info.log_target)).all()
    moved = np.abs(
        np.asarray(optimised["kernel.log_variance"])[0] - np.asarray(model.kernel.log_variance)
    )
    assert moved.min() > 1e-3


def test_chains_part_where_the_pilot_ends():
    model, series = (
        builders.make_model("stacked").with_roles("fix", "*"),
        [builders.make_series(7, missing=True)],
    )
    method = FFVD(num_warmup=CHUNK, rank=5).build(model, start((7,)))
    (_, warm), draws, _ = run(method, series, 1)
    still = warm._replace(step=StepSize.start(1e-6))  # HMC goes nowhere with such steps
    step = jax.jit(method.step)

    def spread(iteration):
        carry = still._replace(iteration=jnp.asarray(iteration))
        ends = [
            step(key, carry, series)[0].states for key in jax.random.split(jax.random.key(3), 40)
        ]
        return np.std(ends, axis=0)[1:]  # the first state may jump in any iteration

    assert spread(pilot_length(CHUNK) - 1).max() < 1e-3
    # About as wide as the posterior, and wider: 1.2 times what the coordinates take for it.
    assert np.median(spread(pilot_length(CHUNK)) / np.std(draws.states[0][5:], axis=0)[1:]) > 0.7


@pytest.mark.slow
def test_other_likelihoods_are_sampled():
    model = builders.make_model("hilbert").with_roles("fix", "*")
    counts = eqx.tree_at(
        lambda m: m.likelihood, model, Poisson(C=model.likelihood.C, d=model.likelihood.d)
    )
    counts = counts.create(
        counts.kernel, counts.basis, counts.mean, counts.likelihood, jnp.exp(counts.log_process_std)
    )
    noisy = builders.make_series(7)
    series = [type(noisy)(np.floor(np.abs(noisy.y)), noisy.u)]
    method = FFVD(num_warmup=2 * CHUNK, rank=5).build(counts.with_roles("fix", "*"), start((7,)))
    _, draws, info = run(method, series, 4)
    assert np.isfinite(np.asarray(draws.states[0])).all()
    assert float(jnp.mean(info.acceptance)) > 0.5


@pytest.mark.parametrize(
    ("rows", "rate"), [([60], 0.1), ([100, 150], 0.06), ([500], 0.03), ([9000], 0.03)]
)
def test_few_rows_take_longer_steps_to_the_kernels_optimum(rows, rate):
    assert FFVD().rate(tuple(np.zeros((number + 1, 2)) for number in rows)) == pytest.approx(rate)


@pytest.mark.parametrize(("rows", "steps"), [(100, 40), (5000, 40), (10_000, 20), (10**6, 10)])
def test_long_records_have_trajectories_of_fewer_steps(rows, steps):
    assert FFVD().most_steps(rows) == steps
    assert FFVD(num_leapfrog=4).most_steps(rows) == 4


def test_trajectories_have_all_lengths_up_to_the_longest():
    """In fixed steps: their numbers are spread evenly, whatever the chain, and end where the longest does."""
    model, series = builders.make_model("stacked").with_roles("fix", "*"), [builders.make_series(7)]
    method = FFVD(num_warmup=0, rank=5).build(model, start((7,)))
    size, step = 0.25, jax.jit(method.step)
    carry = step(jax.random.key(0), method.init(jax.random.key(0), series), series)[0]
    carry = carry._replace(step=StepSize.start(size))
    counts = [
        int(
            step(jax.random.key(seed), carry._replace(iteration=jnp.asarray(seed)), series)[
                1
            ].gradients
        )
        - 1
        for seed in range(1, 41)
    ]
    longest = int(np.ceil(FFVDSampler.schedule.angle / size))
    assert {1, longest} <= set(counts) <= set(range(1, longest + 1))
    assert len(set(counts)) >= 0.9 * longest
    assert np.mean(counts) == pytest.approx(0.5 * longest, rel=0.1)


@pytest.mark.parametrize(
    ("kept", "rows", "rounds"), [(0.2, 100, 1), (0.82, 100, 3), (0.98, 100, 4), (0.98, 2000, 1)]
)
def test_noises_that_keep_their_place_get_more_rounds(kept, rows, rounds):
    rng, noises, number = np.random.default_rng(0), np.zeros(2), 20 * int(ENOUGH)
    moved, seen = np.zeros(2), []
    for _ in range(number):  # the first forgets at once, the second does not
        ahead = np.array([0.0, kept]) * noises + np.sqrt([1.0, 1 - kept**2]) * rng.normal(size=2)
        moved, noises = moved + (ahead - noises) ** 2, ahead
        seen.append(noises)
    walk = Walk(
        StepSize.start(1.0),
        np.mean(seen, 0),
        number * np.cov(np.transpose(seen)),
        number,
        moved,
        number,
    )
    assert int(walk.num_rounds(rows, jnp.asarray(True))) == rounds
    assert int(walk.num_rounds(rows, jnp.asarray(False))) == 1
    assert int(walk._replace(rounds=ENOUGH - 1).num_rounds(100, jnp.asarray(True))) == 4
