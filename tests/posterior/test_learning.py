"""Learning row by row: exact for linear models, and the same in one call or many."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpssm
from builders import make_model, make_series
from gpssm.data.scaler import Scaler
from gpssm.data.series import Series
from gpssm.methods.spec import Spec
from gpssm.model.bases import BlockDiagonal, CoregionalisedPoints, InducingPoints, Stacked
from gpssm.model.kernels import Coregionalised, make_kernel
from gpssm.model.likelihoods import LINKS, LinkedGaussian
from gpssm.model.target import weights_given_states
from gpssm.posterior import learning
from gpssm.posterior.draws import FilterState, model_of
from gpssm.posterior.filtering import run_filter
from gpssm.posterior.learning import choose_forgetting, score_forgetting
from gpssm.posterior.rollout import Members
from kalman import kalman, linear_model
from posteriors import make_posterior

ROWS = make_series(12, missing=True, seed=3)
NOISE_FREE = {
    "likelihood.C": np.eye(2),
    "likelihood.d": np.zeros(2),
    "likelihood.log_std": np.full(2, -16.0),
}


class Joint(NamedTuple):
    """Moments of [x; v], part by part."""

    state: np.ndarray
    state_covariance: np.ndarray
    cross: np.ndarray
    weights: np.ndarray
    covariance: np.ndarray
    surprise: np.ndarray

    @classmethod
    def of(cls, state, dim, shape):
        """The parts of a filter's state, with any leading axes."""
        mean, covariance, surprise = map(np.asarray, state[:3])
        return cls(
            mean[..., :dim],
            covariance[..., :dim, :dim],
            covariance[..., :dim, dim:],
            mean[..., dim:].reshape(*mean.shape[:-1], *shape),
            covariance[..., dim:, dim:],
            surprise,
        )


def joint_of(posterior):
    """What a posterior has learned of [x; v], with the axes (chain, draw)."""
    model = posterior.model
    return Joint.of(posterior.learned.state, model.state_dim, model.weights_shape)


def start(model, spread=0.0, weight_variance=0.0):
    """x ~ N(0, spread I), v ~ N(0, weight_variance I), of one draw."""
    dim, size = model.state_dim, int(np.prod(model.weights_shape))
    variance = jnp.concatenate([jnp.full(dim, spread), jnp.full(size, weight_variance)])
    return FilterState(jnp.zeros((1, dim + size)), jnp.diag(variance)[None], jnp.ones(1))


def run(model, state, rows, forgetting=1.0):
    members = Members(model, jnp.zeros((1, *model.weights_shape)), {})
    keys = jax.random.split(jax.random.key(0), 1)
    filtered = run_filter(members, keys, state, rows, rates=jnp.full(1, forgetting))
    state = jax.tree.map(lambda leaf: leaf[0], filtered.state)
    return Joint.of(state, model.state_dim, model.weights_shape), filtered.log_density[0]


def test_with_known_weights_it_is_the_kalman_filter():
    model = linear_model()
    found, log_density = run(model, start(model, spread=1.0), ROWS)
    exact = kalman(model, ROWS)
    np.testing.assert_allclose(found.state, exact.means[-1], atol=1e-10)
    np.testing.assert_allclose(found.state_covariance, exact.covariances[-1], atol=1e-10)
    np.testing.assert_allclose(log_density, exact.log_density, atol=1e-10)
    assert not found.weights.any()
    assert not found.cross.any()


@pytest.mark.parametrize("basis", ["linear", "fourier"])
def test_with_known_states_it_is_the_batch_posterior_of_the_weights(basis):
    model = make_model(basis).with_leaves(NOISE_FREE)
    rows = make_series(12, seed=3)
    found, _ = run(model, start(model, weight_variance=1.0), rows)
    batch = weights_given_states(
        model, jnp.concatenate([jnp.zeros((1, 2)), jnp.asarray(rows.y)]), rows
    )
    np.testing.assert_allclose(found.weights, batch.mean, atol=1e-8)
    size = model.basis.size
    for d in range(2):
        block = slice(d * size, (d + 1) * size)
        np.testing.assert_allclose(
            found.covariance[block, block], np.linalg.inv(batch.precision[d]), atol=1e-8
        )
    np.testing.assert_allclose(found.covariance[:size, size:], 0, atol=1e-8)


def test_with_known_states_shared_weights_are_one_gaussian():
    """P = I + Σ_td A_d(z_t) A_d(z_t)ᵀ / (Q_d + B_d(z_t)): all states depend on the same weights."""
    own = make_model("linear")
    kernel = Coregionalised(make_kernel("se", 1, 3, 1.0, 1.3), jnp.array([[0.7], [-0.4]]))
    points = CoregionalisedPoints(
        InducingPoints(jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)))), 1
    )
    basis = Stacked((points, BlockDiagonal(own.basis, 2)))
    model = type(own).create(kernel, basis, own.mean, own.likelihood, jnp.exp(own.log_process_std))
    model = model.with_leaves(NOISE_FREE)
    rows = make_series(12, seed=3)
    size = model.basis.size
    found, _ = run(model, start(model, weight_variance=1.0), rows)
    states = jnp.concatenate([jnp.zeros((1, 2)), jnp.asarray(rows.y)])
    step = model.transition()(states[:-1], jnp.asarray(rows.u))
    noise = np.asarray(model.process_variance)[:, None] + np.asarray(step.residual)
    gain, error = np.asarray(step.gain), np.asarray(states[1:] - step.mean).T
    precision = np.eye(size) + np.einsum("dnm,dnk,dn->mk", gain, gain, 1 / noise)
    covariance = np.linalg.inv(precision)
    np.testing.assert_allclose(found.covariance, covariance, atol=1e-8)
    np.testing.assert_allclose(
        found.weights[0], covariance @ np.einsum("dnm,dn->m", gain, error / noise), atol=1e-8
    )


def test_with_an_unknown_offset_that_drifts_it_is_the_kalman_filter_of_both():
    # Only the offsets have weights of any size, so that x and v are linear and Gaussian together.
    scale = np.full((2, 4), -40.0)
    scale[:, 3] = np.log([0.5, 0.2])
    model = linear_model(**{"basis.log_scale": scale})
    forgetting = 0.9
    found, log_density = run(model, start(model, 1.0, 1.0), ROWS, forgetting)
    A, B, b = map(np.asarray, (model.mean.transition, model.mean.input_map, model.mean.offset))
    C, d, R = (
        np.asarray(model.likelihood.C),
        np.asarray(model.likelihood.d),
        np.exp(2 * model.likelihood.log_std),
    )
    offsets = np.diag(np.exp(scale[:, 3]))
    whole = np.block([[A, offsets], [np.zeros((2, 2)), np.eye(2)]])
    noise = np.diag([*np.asarray(model.process_variance), 0, 0])
    mean, cov = np.zeros(4), np.eye(4)
    for row, (y, u) in enumerate(zip(ROWS.y, ROWS.u, strict=True)):
        # What is known of an offset counts less from row to row, but never less than nothing.
        grown = np.diag(
            [1, 1, *np.minimum(1 / np.sqrt(forgetting), 1 / np.sqrt(np.diagonal(cov)[2:]))]
        )
        cov = grown @ cov @ grown
        mean = whole @ mean + np.concatenate([B @ u + b, np.zeros(2)])
        cov = whole @ cov @ whole.T + noise
        seen = np.isfinite(y)
        H = np.hstack([C, np.zeros((2, 2))])[seen]
        spread, error = H @ cov @ H.T + np.diag(R[seen]), y[seen] - H @ mean - d[seen]
        expected = -0.5 * (
            np.linalg.slogdet(2 * np.pi * spread)[1] + error @ np.linalg.solve(spread, error)
        )
        np.testing.assert_allclose(log_density[row], expected, atol=1e-9)
        gain = cov @ H.T @ np.linalg.inv(spread)
        mean, cov = mean + gain @ error, cov - gain @ H @ cov
    at = [3, 7]  # the offsets among the weights
    np.testing.assert_allclose(np.concatenate([found.state, found.weights[:, 3]]), mean, atol=1e-9)
    np.testing.assert_allclose(found.state_covariance, cov[:2, :2], atol=1e-9)
    np.testing.assert_allclose(found.cross[:, at], cov[:2, 2:], atol=1e-9)
    np.testing.assert_allclose(found.covariance[np.ix_(at, at)], cov[2:, 2:], atol=1e-9)


def test_an_emission_that_bends_elsewhere_is_taken_as_straight():
    model = linear_model(**{"likelihood.d": np.full(2, 50.0)})
    own = model.likelihood
    bent = dataclasses.replace(
        model, likelihood=LinkedGaussian(C=own.C, d=own.d, log_std=own.log_std, link=LINKS["abs"])
    )
    rows = Series(ROWS.y + 50, ROWS.u)
    for one, other in zip(
        run(model, start(model, 1, 1), rows)[0],
        run(bent, start(bent, 1, 1), rows)[0],
        strict=True,
    ):
        np.testing.assert_allclose(one, other, atol=1e-9)


def test_weights_and_state_are_drawn_from_what_is_believed():
    model, count = linear_model(), 4000
    members = Members(model, jnp.zeros((1, *model.weights_shape)), {})
    keys = jax.random.split(jax.random.key(0), 1)
    state = run_filter(members, keys, start(model, 1.0, 1.0), ROWS, rates=jnp.ones(1)).state
    state = state._replace(surprise=jnp.ones(1))
    many = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[0], (count, *leaf.shape[1:])), state)
    keys = jax.random.split(jax.random.key(0), count)
    weights, given = learning.draw_weights(many, jnp.ones(count), keys, 2, None)
    joint = np.hstack([given.mean, weights])
    mean, cov = joint.mean(0), np.cov(joint.T)
    cov[:2, :2] += np.mean(given.covariance, 0)
    exact = np.asarray(state.covariance[0])
    spread = np.sqrt(np.diagonal(exact))
    np.testing.assert_allclose((mean - state.mean[0]) / spread, 0, atol=0.08)
    np.testing.assert_allclose((cov - exact) / np.outer(spread, spread), 0, atol=0.12)


@pytest.fixture(scope="module")
def posterior():
    return make_posterior()


@pytest.fixture(scope="module")
def learned(posterior):
    return posterior.learn(ROWS, forgetting=0.99)


def assert_same(one, other):
    assert one.current.clock == other.current.clock
    parts = ((p.current.state, p.current.rows, p.current.past, p.learned) for p in (one, other))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-8), *parts)
    np.testing.assert_allclose(one.draws.weights, other.draws.weights, rtol=1e-7, atol=1e-8)


def test_the_old_posterior_stays_and_rows_may_come_in_pieces(posterior, learned):
    assert posterior.learned is None
    assert posterior.current is None
    assert learned.current.rows == 5 + 12
    assert learned.learned.rows == 12
    pieces = posterior.learn(ROWS[:5], forgetting=0.99)
    before = pieces.learned.state.covariance.copy()
    assert_same(pieces.learn(ROWS[5:]), learned)  # with the forgetting it began with
    np.testing.assert_array_equal(pieces.learned.state.covariance, before)
    assert not np.allclose(learned.draws.weights, posterior.draws.weights)


def test_it_starts_from_the_weights_given_the_states_of_each_draw(posterior):
    # Row 0 of a new experiment, without outputs: the weights are those of training.
    row = Series(np.full((1, 2), np.nan), np.zeros((1, 1)))
    found = joint_of(posterior.learn(row, new_experiment=True))
    for chain, draw in ((0, 0), (1, 2)):
        states = [jnp.asarray(path[chain, draw]) for path in posterior.draws.states]
        batch = weights_given_states(
            model_of(posterior, chain, draw), states, list(posterior.dataset.scaled)
        )
        np.testing.assert_allclose(found.weights[chain, draw], batch.mean, atol=1e-9)
        size = batch.mean.shape[1]
        block = found.covariance[chain, draw][size:, size:]
        np.testing.assert_allclose(block, np.linalg.inv(batch.precision[1]), atol=1e-8)


def test_it_is_saved_and_goes_on_from_its_file(learned, tmp_path):
    learned.save(tmp_path / "now.nc")
    loaded = gpssm.load(tmp_path / "now.nc")
    assert_same(loaded, learned)
    assert_same(loaded.learn(ROWS[:2]), learned.learn(ROWS[:2]))


def test_all_verbs_take_what_was_learned(learned):
    ahead = learned.forecast(3, u=np.zeros((3, 1)), num_paths=24)
    assert ahead.start == 17
    assert np.isfinite(ahead.paths).all()
    followed = learned.condition(ROWS[:2])
    assert followed.draws is learned.draws
    # The rows were not learned from: the weights stay, and say nothing of where the state is.
    joint = joint_of(followed)
    np.testing.assert_array_equal(joint.state, followed.current.state.mean)
    np.testing.assert_array_equal(joint.state_covariance, followed.current.state.covariance)
    np.testing.assert_array_equal(joint.covariance, joint_of(learned).covariance)
    np.testing.assert_array_equal(joint.cross, 0)
    again = followed.learn(ROWS[:2])
    assert np.any(joint_of(again).cross != 0)
    assert again.learned.rows == 14
    assert again.current.rows == 21
    assert learned.thinned(2).learn(ROWS[:1]).num_draws == 1
    alone = learned.thinned(chain=1)
    assert alone.learned.state.mean.shape[:2] == (1, 3)
    assert alone.learn(ROWS[:1]).current.rows == 6  # from the end of the training series
    assert "12 rows" in learned._repr_html_()
    with pytest.raises(ValueError, match="conditioned on rows"):
        learned.update(ROWS)


def plant(drift, seed=0, length=200):
    """A posterior of one draw, the truth: x' = .5 x + u + offset; the offset walks by `drift`."""
    rng = np.random.default_rng(seed)
    u, x, offset, path = rng.normal(size=(length, 1)), 0.0, 0.0, [0.0]
    for control in u[:, 0]:
        offset += drift * rng.normal()
        x = 0.5 * x + control + offset + 0.1 * rng.normal()
        path.append(x)
    states = np.array(path)[:, None]
    model = make_model("linear", 1, 1, 1).with_leaves(
        {
            "mean.transition": [[0.5]],
            "mean.input_map": [[1.0]],
            "mean.offset": [0.0],
            "basis.log_scale": np.zeros((1, 3)),
            "log_process_std": [np.log(0.1)],
            "likelihood.C": [[1.0]],
            "likelihood.d": [0.0],
            "likelihood.log_std": [np.log(0.1)],
        }
    )
    series = Series(states[1:] + 0.1 * rng.normal(size=(length, 1)), u)
    identity = Scaler((0.0,), (1.0,), (0.0,), (1.0,))
    return make_posterior(
        model, [series], np.zeros((1, 1, 1, 3)), {}, identity, [states[None, None]], 1, 1
    )


def test_forgetting_is_the_widest_range_that_costs_little_in_training(monkeypatch):
    drifting = plant(0.1)
    still, scores = score_forgetting(plant(0.0)), score_forgetting(drifting)
    assert still[1.0,] < 1.05 * min(still.values())
    assert scores[1.0,] > 1.1 * min(scores.values())
    rates = sorted({rate for several in scores for rate in several}, reverse=True)
    assert set(scores) == {tuple(rates[i:j]) for j in range(1, 1 + len(rates)) for i in range(j)}
    monkeypatch.setattr(learning, "score_forgetting", lambda posterior: scores)
    chosen = choose_forgetting(drifting)
    assert scores[chosen] <= 1.1 * min(scores.values())
    assert all(
        score > 1.1 * min(scores.values())
        for one, score in scores.items()
        if len(one) > len(chosen)
    )
    assert (
        drifting.learn(
            drifting.dataset.experiments[0][100:103], forgetting="auto"
        ).learned.forgetting
        in chosen
    )  # of the one draw
    monkeypatch.setattr(learning, "score_forgetting", lambda posterior: {(1.0,): np.inf})
    assert choose_forgetting(drifting) == (1.0,)


def test_draws_are_spread_over_several_forgettings(posterior):
    """Each draw is what it would be with its forgetting alone, and later calls keep to it."""
    several = (1.0, 0.95, 0.8)
    found = posterior.learn(ROWS, forgetting=several)
    rates = found.learned.rates
    assert sorted(rates.ravel()) == sorted(2 * several)
    assert found.learned.forgetting == 0.8
    assert "0.8 and less" in found._repr_html_()
    for rate in several:
        alone, chosen = posterior.learn(ROWS, forgetting=rate), rates == rate
        for name in ("weights", "covariance", "cross"):
            mine, other = (getattr(joint_of(one), name)[chosen] for one in (found, alone))
            np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(
            found.draws.weights[chosen], alone.draws.weights[chosen], rtol=1e-9, atol=1e-12
        )
    np.testing.assert_array_equal(found.learn(ROWS[:1]).learned.rates, rates)
    np.testing.assert_array_equal(found.thinned(chain=1).learned.rates, rates[1:])


def test_what_cannot_be_is_refused(posterior):
    with pytest.raises(ValueError, match="forgetting must be"):
        posterior.learn(ROWS, forgetting=1.5)
    with pytest.raises(ValueError, match="several such numbers, or 'auto'"):
        posterior.learn(ROWS, forgetting=[0.9, 0.0])
    with pytest.raises(ValueError, match="max_draws"):
        posterior.learn(ROWS, max_draws=0)
    with pytest.raises(ValueError, match="2 columns"):
        posterior.learn(make_series(3, output_dim=1))
    linear = dataclasses.replace(posterior, spec=Spec(method="lgssm"))
    with pytest.raises(ValueError, match="no weights to learn"):
        linear.learn(ROWS)
