"""Physics with an unknown function inside: exact in the collapsed target, and recovered from
data.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpssm
from gpssm.data.scaler import Scaler
from gpssm.data.series import Series
from gpssm.model.target import log_collapsed, log_target, weights_given_states
from gpssm.starts.physics import Physics, Unknown

DT = 0.1
AT = np.linspace(-2.0, 2.0, 9)


def friction(speed):
    return 0.5 * speed + 0.4 * np.tanh(4 * speed)


def cart(length, seed):
    """A cart that is pushed: position measured, friction of the speed, a gain of 2."""
    rng = np.random.default_rng(seed)
    u, x, y = np.repeat(rng.normal(size=length // 8 + 1), 8)[:length], np.zeros(2), []
    for force in u:
        x = np.array(
            [x[0] + DT * x[1], x[1] + DT * (2.0 * force - friction(x[1])) + 0.005 * rng.normal()]
        )
        y.append(x[0] + 0.005 * rng.normal())
    y = np.array(y)
    y[20] = np.nan
    return Series(y, u, outputs=["position"], inputs=["force"])


def step(x, u, p):
    return jnp.stack([x[0] + DT * x[1], x[1] + DT * p["gain"] * u[0]])


def states(y, u):
    positions = np.concatenate([y[:1], y])[:, 0]
    speeds = np.append(np.diff(positions), 0.0) / DT
    return np.stack([positions, np.convolve(speeds, np.ones(3) / 3, "same")], axis=1)


def speed(x, u):
    return x[1]


def taken_off(x, u):
    return -DT * (1 + 0.0 * x[0])


UNKNOWN = Unknown(speed, 1, AT, taken_off, size=1.0, length=0.8)
CART = Physics(
    step,
    UNKNOWN,
    [[1.0, 0.0]],
    states,
    [1.0, 1.0],
    {"gain": gpssm.priors.Normal(1.5, 1.0)},
    [1e-3, 1e-2],
    exact=[0],
)
SERIES = [cart(120, 0), cart(50, 1)]
SCALER = Scaler.fit(SERIES)


@pytest.fixture(scope="module")
def start():
    with jax.enable_x64(True):
        return CART.start(SERIES, SCALER)


def test_the_transition_is_the_physics_and_the_gaussian_process_on_the_feature(start):
    """Against k_h written out in NumPy: A Aᵀ + B = g² k_h, the other row is the physics alone."""
    model, rng = start.model, np.random.default_rng(2)
    x, u = rng.normal(size=(5, 2)), rng.normal(size=(5, 1))
    found = model.transition()(jnp.asarray(x), jnp.asarray(u))
    force = np.asarray(SCALER.input_mean) + np.asarray(SCALER.input_std) * u
    expected = np.stack([x[:, 0] + DT * x[:, 1], x[:, 1] + DT * 1.5 * force[:, 0]], 1)
    np.testing.assert_allclose(found.mean, expected, rtol=1e-12)
    assert np.all(np.asarray(found.gain[0]) == 0)
    assert np.all(np.asarray(found.residual[0]) == 0)

    def covariance(left, right):
        return np.exp(-0.5 * ((left[:, None] - right[None]) / 0.8) ** 2)

    gram = covariance(AT, AT) + 1e-6 * np.eye(len(AT))
    nystroem = covariance(x[:, 1], AT) @ np.linalg.solve(gram, covariance(AT, x[:, 1]))
    gain = np.asarray(found.gain[1])
    np.testing.assert_allclose(gain @ gain.T, DT**2 * nystroem, atol=1e-8)
    np.testing.assert_allclose(found.residual[1], DT**2 * (1 - np.diag(nystroem)), atol=1e-8)
    np.testing.assert_allclose(
        model.kernel.diagonal(jnp.asarray(np.hstack([x, u])))[1], DT**2, rtol=1e-9
    )


def test_collapsing_integrates_the_weights_out(start):
    model, scaled = start.model, [SCALER.scale(one[:6]) for one in SERIES]
    paths = [jnp.asarray(path[:7]) for path in start.states]
    shape = (2, model.basis.size)

    @jax.jit
    def everything(flat):
        def joint(flat):
            return log_target(model, paths, flat.reshape(shape), scaled)

        return joint(flat), jax.grad(joint)(flat), jax.hessian(joint)(flat)

    _, slope, hessian = everything(jnp.zeros(np.prod(shape)))
    mode = np.linalg.solve(-hessian, slope)
    log_det = np.linalg.slogdet(-hessian)[1]
    integral = everything(jnp.asarray(mode))[0] + 0.5 * (mode.size * np.log(2 * np.pi) - log_det)
    np.testing.assert_allclose(log_collapsed(model, paths, scaled), integral, rtol=1e-8)
    np.testing.assert_allclose(
        np.ravel(weights_given_states(model, paths, scaled).mean), mode, rtol=1e-6, atol=1e-9
    )


def test_leaves_priors_and_roles(start):
    free = start.model.free_leaves()
    assert "mean.parameters.gain" in free
    assert not {"basis.locations", "likelihood.C", "likelihood.d"} & free.keys()
    assert float(start.model.priors["mean.parameters.gain"].mean) == 1.5
    np.testing.assert_allclose(np.exp(start.model.log_process_std), [1e-3, 1e-2])
    np.testing.assert_allclose(start.model.priors["log_process_std"].shape, [85, 1])


def test_friction_and_gain_are_found_and_saved(tmp_path):
    posterior = gpssm.fit(
        SERIES, physics=CART, num_chains=1, num_warmup=150, num_draws=60, progress=False
    )
    gain = float(posterior.model.leaves()["mean.parameters.gain"])
    assert abs(gain - 2.0) < 0.25
    speeds = np.linspace(-1.0, 1.0, 21)
    found = gpssm.analysis.unknown(posterior, speeds)
    # Friction and gain trade off a little: within four standard deviations of what draws say, and a tenth of the most.
    assert np.all(np.abs(found.mean - friction(speeds)) < 4 * found.std + 0.1 * friction(1.0))
    test = cart(80, 5)
    free = posterior.simulate(test.u[5:], warmup=test[:5], num_paths=60)
    assert np.sqrt(np.nanmean((free.mean - test.y[5:]) ** 2)) < 0.15 * np.nanstd(test.y)
    posterior.save(tmp_path / "cart.nc")
    parts = {"mean.step": step, "kernel.feature": speed, "kernel.factor": taken_off}
    loaded = gpssm.load(tmp_path / "cart.nc", parts=parts)
    np.testing.assert_array_equal(gpssm.analysis.unknown(loaded, speeds).mean, found.mean)
    with pytest.raises(ValueError, match=r"kernel\.feature was .*speed"):
        gpssm.load(tmp_path / "cart.nc")


def replaced(**given):
    return gpssm.Physics(
        **({name: getattr(CART, name) for name in CART.__dataclass_fields__} | given)
    )


BAD = {
    r"outputs must be a matrix of shape \(1, 2\)": replaced(outputs=[[1.0]]),
    "into must be the number of a state, 0 to 1": replaced(unknown=Unknown(speed, 2, AT)),
    r"step returns the shape \(1,\); expected \(2,\)": replaced(step=lambda x, u, p: x[:1]),
    "step could not be called": replaced(step=lambda x, u, p: x * p["mass"]),
    r"factor returns the shape \(2,\)": replaced(unknown=Unknown(speed, 1, AT, lambda x, u: x)),
    r"states must return paths of shapes \[\(121, 2\), \(51, 2\)\]": replaced(
        states=lambda y, u: y
    ),
}


@pytest.mark.parametrize("words", BAD)
def test_bad_physics_say_what_to_do(words):
    with pytest.raises(ValueError, match=words):
        BAD[words].start(SERIES, SCALER)


def test_what_physics_says_itself_is_not_said_again(start):
    for given in (
        {"kernel": "matern32"},
        {"wiring": "chain"},
        {"start": "em"},
        {"likelihood": "student-t"},
    ):
        with pytest.raises(ValueError, match="physics determines"):
            gpssm.fit(SERIES, physics=CART, progress=False, **given)
