"""Models built from data: every part by name and as an object, and invalid parts."""

import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpssm.core import linalg
from gpssm.data.datasets import REGISTRY, load, simulate
from gpssm.data.scaler import Scaler
from gpssm.data.series import Series
from gpssm.fitting.fit import build_model
from gpssm.linear.fit import linear_fit
from gpssm.linear.state_space import log_marginal, smooth
from gpssm.methods.spec import Spec
from gpssm.model.bases import (
    Hilbert,
    InducingPoints,
    LeadingPoints,
    LinearFeatures,
    RandomFourier,
    Stacked,
)
from gpssm.model.kernels import KERNELS, SquaredExponential
from gpssm.model.likelihoods import LIKELIHOODS, LINKS, Custom, FunctionGaussian, Gaussian
from gpssm.model.means import Function, Identity, LinearMap, Zero
from gpssm.model.target import log_collapsed
from gpssm.starts.build import BOX_MARGIN, inducing_locations

T, NUM = 60, 6
TRUTH = simulate("duffing", num_steps=T, force=2.0)
SERIES = Scaler.fit(TRUTH.series).scale(TRUTH.series)
DZ = 3  # width of z = [x; u] with two states

density = eqx.filter_jit(log_collapsed)


@pytest.fixture(scope="module")
def start():
    return linear_fit(SERIES, Spec(state_dim=2))


def outputs_for(likelihood):
    """Outputs that the likelihood of that name could have produced."""
    y = SERIES.y
    if likelihood in LINKS:
        return np.asarray(
            LINKS[likelihood].forward(y + 3.0 if likelihood in ("abs", "square") else y)
        )
    return {"poisson": np.round(np.exp(y)), "bernoulli": (y > 0.0).astype(float)}.get(likelihood, y)


def assert_usable(model, states, series):
    """The density at the linear start's states is finite."""
    assert np.isfinite(density(model, states, series))


def test_start_has_the_states_and_inputs_of_every_transition(start):
    assert [path.shape for path in start.states] == [(T + 1, 2)]
    np.testing.assert_array_equal(start.z, np.hstack([start.states[0][:-1], SERIES.u]))
    np.testing.assert_allclose(start.states[0], smooth(start.model, SERIES).mean)
    assert start.state_dim == 2


def test_default_model_starts_at_the_linear_fit(start):
    model, linear = build_model(SERIES, 2, NUM, linear=start), start.model
    assert isinstance(model.basis, Stacked)
    assert model.basis.size == NUM + DZ + 1
    expected = {
        "mean.transition": linear.transition,
        "mean.input_map": linear.input_map,
        "mean.offset": linear.offset,
        "likelihood.C": linear.C,
        "likelihood.d": linear.d,
        "likelihood.log_std": np.log(linear.noise_std),
        "log_process_std": 0.5 * np.log(np.diag(linear.process_cov)),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(model.leaves()[name], value, err_msg=name)
    assert_usable(model, start.states[0], SERIES)


def test_without_a_gaussian_process_the_density_is_that_of_the_linear_model(start):
    nothing = LinearFeatures.build(2, DZ, 1e-9)
    model = build_model(SERIES, 2, mean="linear-fixed", basis=nothing, linear=start)
    posterior = smooth(start.model, SERIES)
    # log p(x, y) = log p(y) + log p(x | y) at the mean x of a Gaussian with precision Λ
    at_mean = 0.5 * (linalg.log_det(posterior.factor) - posterior.mean.size * np.log(2 * np.pi))
    expected = log_marginal(start.model, SERIES) + at_mean
    np.testing.assert_allclose(density(model, posterior.mean, SERIES), expected, rtol=1e-8)


def test_every_kernel_name(start):
    for name, build in KERNELS.items():
        model = build_model(SERIES, 2, NUM, kernel=name, linear=start)
        assert isinstance(model.kernel, build.__self__)
    model = build_model(SERIES, 2, NUM, kernel="polynomial + linear * periodic", linear=start)
    assert_usable(model, start.states[0], SERIES)


MEANS = {"linear": LinearMap, "linear-fixed": LinearMap, "identity": Identity, "zero": Zero}


@pytest.mark.parametrize("name", MEANS)
def test_every_mean_name(name, start):
    model = build_model(SERIES, 2, NUM, mean=name, linear=start)
    assert type(model.mean) is MEANS[name]
    assert isinstance(model.basis, Stacked) == (name == "linear")
    assert_usable(model, start.states[0], SERIES)


BASES = {
    "inducing": InducingPoints,
    "hilbert": Hilbert,
    "fourier": RandomFourier,
    "linear": LinearFeatures,
}


@pytest.mark.parametrize("name", BASES)
def test_every_basis_name(name, start):
    model = build_model(SERIES, 2, NUM, mean="linear-fixed", basis=name, linear=start)
    assert type(model.basis) is BASES[name]
    assert model.basis.size == (DZ + 1 if name == "linear" else NUM)
    assert_usable(model, start.states[0], SERIES)


def test_linear_features_are_not_stacked_on_themselves(start):
    model = build_model(SERIES, 2, basis="linear", linear=start)
    assert isinstance(model.basis, LinearFeatures)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_every_likelihood_name(likelihood):
    series = Series(outputs_for(likelihood), SERIES.u)
    start = linear_fit(series, Spec(state_dim=2, likelihood=likelihood))
    model = build_model(series, 2, NUM, likelihood=likelihood, linear=start)
    assert_usable(model, start.states[0], series)
    # What the model expects to see at the smoothed states follows the outputs.
    expected = np.asarray(model.likelihood.moments(jnp.asarray(start.states[0][1:]))[0])
    assert np.corrcoef(expected[:, 0], series.y[:, 0])[0, 1] > 0.7


def test_basis_covers_the_smoothed_states(start):
    low, high = start.z.min(axis=0), start.z.max(axis=0)
    locations = np.asarray(build_model(SERIES, 2, NUM, mean="zero", linear=start).basis.locations)
    assert np.all((locations >= low) & (locations <= high))
    box = build_model(SERIES, 2, NUM, mean="zero", basis="hilbert", linear=start).basis
    np.testing.assert_allclose(box.center, 0.5 * (low + high))
    assert np.all(box.half_width >= BOX_MARGIN * 0.5 * (high - low) - 1e-12)


def test_one_key_one_model(start):
    for basis in ("inducing", "fourier"):
        models = [
            build_model(SERIES, 2, NUM, basis=basis, key=jax.random.key(seed), linear=start)
            for seed in (0, 0, 1)
        ]
        assert eqx.tree_equal(models[0], models[1])
        assert not eqx.tree_equal(models[0], models[2])
    assert eqx.tree_equal(build_model(SERIES, 2, NUM), build_model(SERIES, 2, NUM, linear=start))


def test_several_series_share_one_model():
    other = simulate("duffing", num_steps=T, force=2.0, seed=1).series
    several = [SERIES, Scaler.fit(TRUTH.series).scale(other)]
    start = linear_fit(several, Spec(state_dim=2))
    assert [path.shape for path in start.states] == [(T + 1, 2)] * 2
    inputs = [
        np.hstack([path[:-1], one.u]) for path, one in zip(start.states, several, strict=True)
    ]
    np.testing.assert_array_equal(start.z, np.concatenate(inputs))
    assert_usable(build_model(several, 2, NUM, linear=start), start.states, several)


def test_no_controls():
    series = Series(SERIES.y)
    start = linear_fit(series, Spec(state_dim=2))
    model = build_model(series, 2, NUM, linear=start)
    assert start.z.shape == (T, 2)
    assert model.mean.input_map.shape == (2, 0)
    assert_usable(model, start.states[0], series)


@pytest.mark.parametrize("likelihood", ["gaussian", "poisson"])
def test_missing_outputs(likelihood):
    y = outputs_for(likelihood).copy()
    y[10:15] = np.nan
    series = Series(np.hstack([y, outputs_for(likelihood)]), SERIES.u)
    start = linear_fit(series, Spec(state_dim=2, likelihood=likelihood))
    assert_usable(
        build_model(series, 2, NUM, likelihood=likelihood, linear=start), start.states[0], series
    )


class Pendulum(eqx.Module):
    """A user's own physics with one number to learn."""

    step: jax.Array

    def __call__(self, x, u):
        return x + self.step * jnp.array([x[1], u[0] - jnp.sin(x[0])])


def test_mean_of_the_user(start):
    plain = build_model(SERIES, 2, NUM, mean=lambda x, u: 0.9 * x, linear=start)
    assert_usable(plain, start.states[0], SERIES)
    learned = build_model(SERIES, 2, NUM, mean=Pendulum(jnp.asarray(0.1)), linear=start)
    assert isinstance(learned.mean, Function)
    assert "mean.function.step" in learned.leaves("optimise")
    assert_usable(learned, start.states[0], SERIES)
    assert build_model(SERIES, 2, NUM, mean=(own := Identity()), linear=start).mean == own


def test_kernel_basis_and_likelihood_of_the_user(start):
    kernel = SquaredExponential.build(2, DZ, variance=0.3, lengthscale=1.5)
    basis = InducingPoints(jnp.asarray(start.z[:NUM]))
    likelihood = FunctionGaussian(jnp.zeros(1), lambda x: jnp.sin(x[:1]))
    model = build_model(SERIES, 2, kernel=kernel, mean="zero", basis=basis, likelihood=likelihood)
    assert eqx.tree_equal((model.kernel, model.basis), (kernel, basis))
    assert model.likelihood.function is likelihood.function
    assert_usable(model, start.states[0], SERIES)
    custom = Custom(lambda x, y: -jnp.abs(y - x[:1]))
    assert_usable(
        build_model(SERIES, 2, likelihood=custom, basis=basis, linear=start),
        start.states[0],
        SERIES,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "sse"}, "Unknown kernel 'sse'. Known: se, matern12"),
        (
            {"mean": "lin"},
            "Unknown mean 'lin'. Known: linear, linear-fixed, identity, zero; or pass",
        ),
        (
            {"basis": "points"},
            "Unknown basis 'points'. Known: inducing, hilbert, fourier, linear; or pass",
        ),
        ({"likelihood": "normal"}, "Unknown likelihood 'normal'. Known: gaussian, student-t"),
    ],
)
def test_unknown_names_list_the_known(options, message, start):
    with pytest.raises(KeyError, match=message):
        build_model(SERIES, 2, NUM, linear=start, **options)


@pytest.mark.parametrize("options", [{"state_dim": 0}, {"state_dim": 2.0}, {"num_inducing": -3}])
def test_wrong_sizes_are_refused(options, start):
    name, value = next(iter(options.items()))
    with pytest.raises(
        ValueError, match=f"{name} must be a whole number of at least 1, got {value}"
    ):
        build_model(SERIES, linear=start, **options)


def kernel_of(state_dim, dim):
    return SquaredExponential.build(state_dim, dim, variance=1.0, lengthscale=1.0)


def gaussian_of(output_dim, state_dim):
    return Gaussian.build(
        jnp.ones((output_dim, state_dim)), jnp.zeros(output_dim), jnp.ones(output_dim)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": kernel_of(2, 5)}, "kernel and basis need arguments of dimension 3"),
        ({"kernel": kernel_of(3, DZ)}, "parts of the model do not fit together"),
        ({"basis": LeadingPoints(jnp.zeros((NUM, DZ)))}, "parts of the model do not fit together"),
        (
            {"kernel": kernel_of(3, DZ), "mean": "zero"},
            r"gain has shape \(3, 1, 6\) at one state; expected \(2, 1, 6\)",
        ),
        (
            {"basis": InducingPoints(jnp.zeros((NUM, 2)))},
            "With state_dim=2 and 1 inputs, kernel and basis need",
        ),
        ({"mean": lambda x, u: x[:1]}, r"mean has shape \(1, 1\) at one state; expected \(1, 2\)"),
        (
            {"likelihood": gaussian_of(2, 2)},
            r"log density has shape \(1, 2\) at one state; expected \(1, 1\)",
        ),
        ({"likelihood": gaussian_of(1, 3)}, "parts of the model do not fit together"),
        (
            {"kernel": "periodic", "basis": "hilbert"},
            "Periodic has no spectral density in closed form",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(options, message, start):
    with pytest.raises(ValueError, match=message):
        build_model(SERIES, 2, NUM, linear=start, **options)


def test_fourier_features_refuse_a_kernel_without_a_spectral_law(start):
    with pytest.raises(
        TypeError, match=r"Periodic has no spectral sampler\. Random Fourier features support"
    ):
        build_model(SERIES, 2, NUM, kernel="periodic", basis="fourier", linear=start)


def test_start_of_another_dimension_is_refused(start):
    with pytest.raises(ValueError, match="linear model with 2 states, but state_dim=3"):
        build_model(SERIES, 3, NUM, linear=start)


@pytest.mark.parametrize(
    ("y", "message"),
    [(np.ones((T, 1)), "is constant, 1"), (SERIES.y[:5], "training needs at least 10 rows")],
)
def test_series_that_nothing_can_be_learned_from_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        build_model(Series(y), 2, NUM)


def test_precision_is_double_whatever_the_setting_which_is_left_as_it_was():
    with jax.enable_x64(False):
        model = build_model(SERIES, 2, NUM)
        assert not jax.config.jax_enable_x64
    assert {leaf.dtype for leaf in model.leaves().values()} == {np.dtype("float64")}


@pytest.mark.skipif(
    not os.environ.get("GPSSM_DATA"), reason="set GPSSM_DATA to the folder of the benchmark files"
)
@pytest.mark.parametrize("name", tuple(REGISTRY)[:6])
def test_benchmarks_build(name):
    train = load(name)[:T]
    series = Scaler.fit(train).scale(train)
    start = linear_fit(series, Spec(state_dim=2))
    assert_usable(build_model(series, 2, NUM, linear=start), start.states[0], series)


@pytest.mark.parametrize("count", [200, 7, 1])
def test_inducing_locations_are_distinct_and_near_the_data(count):
    rng = np.random.default_rng(0)
    states, controls = rng.normal(size=(count, 2)), 100.0 * rng.normal(size=(count, 1))
    z = np.hstack([states, controls])
    found = np.asarray(inducing_locations(z, 20, seed=1))
    assert found.shape == (20, 3)
    assert len(np.unique(found, axis=0)) == 20
    np.testing.assert_array_equal(found, inducing_locations(z, 20, seed=1))
    low, high = np.min(states, axis=0) - 0.5, np.max(states, axis=0) + 0.5
    assert np.all((found[:, :2] > low) & (found[:, :2] < high))


def test_inducing_locations_cover_clusters():
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0], [5.0, 5.0]])
    states = (centres[:, None] + 0.1 * rng.normal(size=(4, 50, 2))).reshape(-1, 2)
    found = np.asarray(inducing_locations(np.repeat(states, 2, axis=0), 4))
    np.testing.assert_allclose(found[np.lexsort(found.round().T)], centres, atol=0.1)
