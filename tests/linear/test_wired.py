"""Linear fits that keep a wiring, models built on them, and a fit from end to end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpssm
from gpssm.data.series import Series
from gpssm.fitting.fit import build_model
from gpssm.linear.descent import EXACT_STD
from gpssm.linear.fit import linear_fit, output_error_fit
from gpssm.linear.state_space import smooth
from gpssm.methods.spec import Spec
from gpssm.model.wiring import Wiring, make_wiring
from gpssm.starts.start import make_starts

# Two tanks in a row: the pump fills the first, what runs out of it the second, whose level is measured.
A, B = np.array([[0.9, 0.0], [0.2, 0.8]]), np.array([0.5, 0.0])
RNG = np.random.default_rng(1)


def tanks(length, seed):
    rng = np.random.default_rng(seed)
    u, x, y = np.repeat(rng.normal(size=length // 5 + 1), 5)[:length], np.zeros(2), []
    for control in u:
        x = A @ x + B * control + 0.02 * rng.normal(size=2)
        y.append(x[1] + 0.02 * rng.normal())
    y = np.array(y)
    y[length // 2 : length // 2 + 3] = np.nan
    return Series(y, u, outputs=["level"], inputs=["pump"])


SERIES = [tanks(120, 0), tanks(60, 1)]


@pytest.fixture(scope="module")
def cascade():
    return linear_fit(SERIES, Spec(state_dim=2, likelihood="gaussian", wiring="cascade"))


@pytest.fixture(scope="module")
def chain():
    return linear_fit(SERIES, Spec(state_dim=2, likelihood="gaussian", wiring="chain"))


def test_the_fit_has_the_zeros_of_the_wiring_and_finds_the_rest(cascade):
    transition, control = np.asarray(cascade.model.transition), np.asarray(cascade.model.input_map)
    assert transition[0, 1] == 0
    assert control[1, 0] == 0
    # Up to the scale of the first state, which nothing shows, and which tank is the slow one: no linear model can tell.
    np.testing.assert_allclose(np.sort(np.diag(transition)), np.sort(np.diag(A)), atol=0.03)
    np.testing.assert_allclose(transition[1, 0] * control[0, 0], 0.2 * 0.5, rtol=0.1)
    np.testing.assert_array_equal(cascade.model.C, [[0.0, 1.0]])
    np.testing.assert_array_equal(cascade.model.d, [0.0])
    process = np.asarray(cascade.model.process_cov)
    np.testing.assert_array_equal(process, np.diag(np.diag(process)))


def test_states_are_smoothed_and_of_unit_scale_but_for_those_that_are_outputs(cascade):
    expected = smooth(cascade.model, [jax.tree.map(jnp.asarray, one) for one in SERIES]).mean
    # The prior of x₀ has moved with the coordinates: it is forgotten after some rows.
    np.testing.assert_allclose(np.concatenate(cascade.states)[20:100], expected[20:100], atol=1e-3)
    everything = np.concatenate(cascade.states)
    np.testing.assert_allclose(everything[:, 0].std(), 1, atol=0.05)
    y = np.concatenate([np.vstack([np.full((1, 1), np.nan), one.y]) for one in SERIES])[:, 0]
    assert np.nanstd(y - everything[:, 1]) < 0.04


def test_known_rows_are_exact_in_the_fit_and_stay_so_in_the_model(chain):
    rows = np.hstack([chain.model.transition, chain.model.input_map])
    assert rows[0, 0] == 1
    assert rows[0, 1] > 0
    assert rows[0, 2] == 0
    model = build_model(SERIES, 2, 6, wiring="chain", linear=chain)
    step = model.transition()(
        jnp.asarray(RNG.normal(size=(3, 2))), jnp.asarray(RNG.normal(size=(3, 1)))
    )
    assert np.all(np.asarray(step.gain[0]) == 0)
    assert np.all(np.asarray(step.residual[0]) == 0)
    np.testing.assert_allclose(np.exp(model.log_process_std[0]), EXACT_STD)
    free = model.free_leaves()
    assert not {"likelihood.C", "likelihood.d", "mean.exact"} & free.keys()
    # Its noise is held as well, by a prior worth the rows; the other one's is nearly free.
    shapes = np.asarray(model.priors["log_process_std"].shape)
    np.testing.assert_allclose(shapes, [90, 1])


def test_delays_hold_controls_and_states():
    wiring = Wiring([[0, 1, 1, 0]] * 3, delays={0: 3, 1: 0})
    start = output_error_fit(SERIES, Spec(state_dim=3, likelihood="gaussian", wiring=wiring))
    transition, control = np.asarray(start.model.transition), np.asarray(start.model.input_map)
    np.testing.assert_array_equal(transition[:2], [[0, 0, 0], [1, 0, 0]])
    np.testing.assert_array_equal(control, [[1], [0], [0]])
    for path, one in zip(start.states, SERIES, strict=True):
        np.testing.assert_allclose(path[1:, 0], one.u[:, 0], atol=1e-9)
        np.testing.assert_allclose(path[2:, 1], one.u[:-1, 0], atol=1e-9)


def test_without_controls_the_likelihood_alone_finds_it():
    """A damped oscillation, as a position and its speed."""
    rng, x, y = np.random.default_rng(3), np.array([1.0, 0.0]), []
    for _ in range(80):
        x = np.array([x[0] + 0.3 * x[1], 0.95 * x[1] - 0.3 * x[0] + 0.1 * rng.normal()])
        y.append(x[0] + 0.02 * rng.normal())
    start = linear_fit(Series(np.array(y)), Spec(state_dim=2, wiring="second-order"))
    found = np.linalg.eigvals(np.asarray(start.model.transition))
    expected = np.linalg.eigvals(np.array([[1.0, 0.3], [-0.3, 0.95]]))
    assert abs(abs(np.angle(found[0])) - abs(np.angle(expected[0]))) < 0.04


def test_parts_that_take_no_wiring_say_so(cascade):
    with pytest.raises(ValueError, match="does not support wiring: use 'inducing' or 'fourier'"):
        build_model(SERIES, 2, 6, basis="hilbert", wiring="cascade", linear=cascade)
    with pytest.raises(ValueError, match="`lgssm` supports only wiring=None"):
        gpssm.fit(SERIES, method="lgssm", state_dim=2, wiring="cascade", progress=False)
    with pytest.raises(ValueError, match="drop it from learn"):
        gpssm.fit(SERIES, state_dim=2, wiring="cascade", learn=["likelihood.*"], progress=False)


def test_shooting_keeps_known_rows(chain):
    spec = Spec(
        state_dim=2, num_inducing=6, wiring=make_wiring("chain", 2, 1, 1), likelihood="gaussian"
    )
    (start,) = make_starts("em+shooting", spec, [SERIES], [chain], [jax.random.key(0)])
    mean = np.asarray(start.model.mean.exact)
    np.testing.assert_array_equal(mean[0, [0, 2]], [1.0, 0.0])
    np.testing.assert_allclose(np.exp(start.model.log_process_std), [EXACT_STD, 0.01])
    assert all(np.isfinite(path).all() for path in start.states)


def test_from_end_to_end(tmp_path):
    posterior = gpssm.fit(
        SERIES,
        state_dim="auto",
        wiring=Wiring([[1, 1, 0], [0, 1, 1]], measured={0: 0}),
        num_inducing=6,
        start="em",
        num_chains=1,
        num_warmup=40,
        num_draws=20,
        progress=False,
    )
    assert (
        posterior.spec.wiring.words(posterior.dataset.inputs) == "x1 from x1, x2; x2 from x2, pump"
    )
    found = gpssm.analysis.relevance(posterior).to_numpy()
    np.testing.assert_array_equal(found == 0, [[False, False, True], [True, False, False]])
    assert np.all(found[found > 0] > 1e-3)
    posterior.save(tmp_path / "wired.nc")
    loaded = gpssm.load(tmp_path / "wired.nc")
    u = np.ones((5, 1))
    np.testing.assert_array_equal(
        loaded.forecast(u=u, num_paths=20).paths, posterior.forecast(u=u, num_paths=20).paths
    )
    assert loaded.model.kernel.mask == posterior.model.kernel.mask


@pytest.mark.slow
def test_what_does_not_enter_is_found():
    """Two tanks whose levels are both measured: nothing flows back, and the pump fills the first one alone."""
    rng = np.random.default_rng(0)
    u, x, y = np.repeat(rng.normal(size=31), 5)[:150], np.zeros(2), []
    for control in u:
        x = A @ x + B * control + 0.02 * rng.normal(size=2)
        y.append(x + 0.02 * rng.normal(size=2))
    posterior = gpssm.fit(
        Series(np.array(y), u),
        state_dim="auto",
        wiring="sparse",
        num_inducing=8,
        start="em",
        num_chains=1,
        num_warmup=300,
        num_draws=40,
        progress=False,
    )
    found = gpssm.analysis.relevance(posterior).to_numpy()
    assert found[0, 1] < 0.1 * found[0, 2], found
    assert found[1, 2] < 0.2 * found[1, 0], found
