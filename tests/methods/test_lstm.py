"""The recurrent network: its cell against equinox's, its training, and that filters are teacher forcing."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpssm.data.series import Series
from gpssm.fitting.fit import fit
from gpssm.methods import METHODS, LSTMNetwork
from gpssm.methods.lstm import follow, prediction_errors, start, train
from gpssm.model.means import LSTM
from gpssm.posterior.posterior import Posterior

UNITS = 3


def bent_series(length=60, seed=0):
    """y_t = 0.7 y_{t−1} + tanh(2 u_t) + noise, with a gap."""
    rng = np.random.default_rng(seed)
    u, y = rng.normal(size=length), np.zeros(length)
    for t in range(1, length):
        y[t] = 0.7 * y[t - 1] + np.tanh(2 * u[t]) + 0.05 * rng.normal()
    y[20:22] = np.nan
    return Series(y, u)


@pytest.fixture(scope="module")
def posterior():
    method = LSTMNetwork(units=UNITS, max_epochs=150)
    return fit(bent_series()[:50], method=method, num_chains=2, progress=False)


def by_hand(network, series, x, free=False):
    """The states after each row, in plain NumPy; where the output is missing or `free`, the one expected goes on."""
    network = jax.tree.map(np.asarray, network)
    states, expected = [x], []
    for seen, u in zip(series.y, series.u, strict=True):
        y, hidden, memory = np.split(states[-1], [1, 1 + UNITS])
        gates = (
            network.input_weights @ np.append(y, u)
            + network.recurrent_weights @ hidden
            + network.bias
        )
        enter, keep, new, show = gates.reshape(4, UNITS)
        memory = memory / (1 + np.exp(-keep)) + np.tanh(new) / (1 + np.exp(-enter))
        hidden = np.tanh(memory) / (1 + np.exp(-show))
        expected.append(network.readout @ hidden + network.offset)
        y = expected[-1] if free or np.isnan(seen) else seen
        states.append(np.concatenate([y, hidden, memory]))
    return np.array(states), np.array(expected)


def test_the_cell_is_that_of_equinox():
    cell = eqx.nn.LSTMCell(3, UNITS, key=jax.random.key(0))
    readout, offset = np.random.default_rng(0).normal(size=(2, UNITS)), np.array([0.3, -0.2])
    network = LSTM(
        cell.weight_ih, cell.weight_hh, cell.bias, jnp.asarray(readout), jnp.asarray(offset)
    )
    x, u = (
        np.random.default_rng(1).normal(size=(4, 2 + 2 * UNITS)),
        np.random.default_rng(2).normal(size=(4, 1)),
    )
    found = network(jnp.asarray(x), jnp.asarray(u))
    for row in range(4):
        hidden, memory = cell(
            np.append(x[row, :2], u[row]), (x[row, 2 : 2 + UNITS], x[row, 2 + UNITS :])
        )
        np.testing.assert_allclose(
            found[row], np.concatenate([readout @ hidden + offset, hidden, memory]), rtol=1e-10
        )


def test_states_follow_the_outputs_that_were_seen():
    network, series = start(jax.random.key(0), UNITS, 1, 1), bent_series(30)
    states, expected = by_hand(network, series, np.zeros(1 + 2 * UNITS))
    found = follow(network, series)
    np.testing.assert_allclose(found[0], states, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found[1], expected, rtol=1e-9, atol=1e-12)


def test_the_last_fifth_is_not_trained_on_and_decides_when_to_stop():
    network, series = start(jax.random.key(0), UNITS, 1, 1), bent_series(50)
    y = series.y.copy()
    y[40:] += 1.0
    (trained, held_out), (same, other) = (
        prediction_errors(network, [one]) for one in (series, Series(y, series.u))
    )
    np.testing.assert_array_equal(trained, same)
    assert not np.allclose(held_out, other)
    expected = by_hand(network, series, np.zeros(1 + 2 * UNITS))[1]
    np.testing.assert_allclose(held_out, np.mean((series.y - expected)[40:] ** 2, 0), rtol=1e-9)
    np.testing.assert_allclose(trained, np.nanmean((series.y - expected)[:40] ** 2, 0), rtol=1e-9)
    found = train(network, [series], 0.05, 400, 20)
    np.testing.assert_allclose(
        prediction_errors(found.best, [series])[1], found.variance, rtol=1e-9
    )
    assert found.variance < 0.3 * held_out
    longer = train(network, [series], 0.05, 400, 400)
    assert found.epochs < longer.epochs == 400
    assert longer.variance <= found.variance


def test_filtering_is_teacher_forcing(posterior):
    whole = posterior.dataset.scaler.scale(bent_series())
    states = by_hand(posterior.model.mean, whole, np.zeros(1 + 2 * UNITS))[0]
    later = posterior.condition(bent_series()[50:])
    np.testing.assert_allclose(later.current.state.mean.mean((0, 1)), states[-1], atol=2e-3)
    np.testing.assert_allclose(
        np.mean(posterior.draws.states[0], (0, 1))[-1], states[50], atol=2e-3
    )


def test_a_forecast_is_a_simulation(posterior):
    rest = bent_series()[50:]
    start_at = posterior.draws.states[0][0, 0, -1]
    free = by_hand(posterior.model.mean, posterior.dataset.scaler.scale(rest), start_at, free=True)[
        1
    ]
    quiet = posterior.model.with_leaves({"log_process_std": jnp.full(1 + 2 * UNITS, -20.0)})
    calm = Posterior(**{**vars(posterior), "model": quiet}).forecast(10, rest.u)
    np.testing.assert_allclose(calm.mean, posterior.dataset.scaler.unscale_mean(free), atol=0.01)
    spread = (
        posterior.forecast(10, rest.u).std[0]
        / posterior.dataset.scaler.unscale_variance(np.ones((1, 1))) ** 0.5
    )
    np.testing.assert_allclose(spread, np.exp(posterior.model.log_process_std[:1])[None], rtol=0.1)
    with pytest.warns(UserWarning, match="outside its training range"):
        far = posterior.forecast(30, np.full((30, 1), 30.0))
    assert np.isfinite(far.paths).all()


def test_gaps_are_drawn(posterior):
    y = np.asarray(posterior.draws.states[0])[..., 0]
    assert y[..., 1:20].std((0, 1)).max() < 1e-6
    assert y[..., 21:23].std((0, 1)).min() > 0.01


def test_seeds_differ_and_what_it_cannot_do_is_said():
    first, second = (start(jax.random.key(seed), UNITS, 1, 1) for seed in (0, 1))
    assert not np.allclose(first.readout, second.readout)
    assert not METHODS["lstm"].learns
    with pytest.raises(
        ValueError, match="`lstm` supports only likelihood='gaussian', got 'poisson'"
    ):
        fit(bent_series(), method="lstm", likelihood="poisson", progress=False)
    whole = bent_series()
    gone = Series(np.where(np.arange(60)[:, None] < 48, whole.y, np.nan), whole.u)
    with pytest.raises(ValueError, match="every output must be observed in both parts"):
        fit(gone, method="lstm", progress=False)
