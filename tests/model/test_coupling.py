"""Coupled transition functions: the identities of the free-form posterior again, against dense Gaussians."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

import builders
import gpssm
from gpssm.fitting.fit import build_model
from gpssm.inference.whitening import unstack, whiten
from gpssm.linear.fit import linear_fit
from gpssm.methods.spec import Spec
from gpssm.model.bases import (
    BlockDiagonal,
    CoregionalisedPoints,
    InducingPoints,
    LinearFeatures,
    Stacked,
)
from gpssm.model.conditionals import process_noise_given
from gpssm.model.kernels import Coregionalised, Masked, make_kernel
from gpssm.model.target import feynman_kac, log_collapsed, log_target, weights_given_states

RNG = np.random.default_rng(0)
Z = jnp.asarray(RNG.normal(size=(6, 4)))
LOCATIONS = jnp.asarray(RNG.normal(size=(5, 4)))
MIXING = jnp.asarray(RNG.normal(size=(3, 2)))
SCALES = jnp.array([0.5, 1.0, 2.0])


def one_kernel(scales, **changes):
    """One kernel for all dimensions but for their scales."""
    inner = make_kernel("se", 1, 4, 1.0, 1.3)
    return Coregionalised(inner, jnp.log(scales)[:, None], positive=True, **changes)


def make(kind):
    """Three states, a control; two latent functions where they are mixed."""
    plain = builders.make_model("linear", state_dim=3, output_dim=1)
    if kind == "shared":
        kernel = one_kernel(SCALES)
        points = CoregionalisedPoints(InducingPoints(LOCATIONS), 1, common=False)
        basis = Stacked((points, LinearFeatures.build(3, 4, 0.3)))
    else:
        inner = make_kernel("se", 2, 4, 1.0, 1.3)
        inner = dataclasses.replace(inner, log_lengthscale=inner.log_lengthscale.at[1].add(0.4))
        kernel = Coregionalised(inner, MIXING)
        linear = BlockDiagonal(LinearFeatures.build(3, 4, 0.3), 3)
        basis = Stacked((CoregionalisedPoints(InducingPoints(LOCATIONS), 2), linear))
    return type(plain).create(
        kernel, basis, plain.mean, plain.likelihood, jnp.exp(plain.log_process_std)
    )


SERIES = [builders.make_series(n, 1, 1, missing=True, seed=n) for n in (5, 3)]
PATHS = [builders.make_states(n, 3, seed=n) for n in (5, 3)]
KINDS = ("shared", "lmc")


@pytest.fixture(scope="module", params=KINDS)
def model(request):
    return make(request.param)


def steps(model):
    """m (N, Dx), A (Dx, N, M), B (Dx, N) and the next states (N, Dx) over all transitions of all series."""
    x = np.concatenate([path[:-1] for path in PATHS])
    u = np.concatenate([one.u for one in SERIES])
    found = model.transition()(jnp.asarray(x), jnp.asarray(u))
    return *(np.asarray(part) for part in found), np.concatenate([path[1:] for path in PATHS])


def boundary(model):
    """log p(x₀) + Σ log p(y | x)."""
    total = sum(norm.logpdf(path[0]).sum() for path in PATHS)
    for path, one in zip(PATHS, SERIES, strict=True):
        mean = path[1:] @ np.asarray(model.likelihood.C).T + np.asarray(model.likelihood.d)
        total += np.nansum(norm.logpdf(one.y, mean, np.exp(np.asarray(model.likelihood.log_std))))
    return total


def test_functions_have_the_covariance_of_their_kernel():
    """Of f_d(z) and f_e(z') together: Σ_r W_dr W_er k_r, the part that weights leave open included."""
    model = make("lmc")
    gain, residual = (np.asarray(part) for part in model.basis.parts[0].projector(model.kernel)(Z))
    assert model.basis.shared
    assert gain.shape == (3, 6, 10)
    covariance = np.einsum("dnm,ekm->dnek", gain, gain)
    inner = np.asarray(model.kernel.inner(Z, LOCATIONS))
    gram = np.asarray(model.kernel.inner(LOCATIONS, LOCATIONS)) + 1e-6 * np.eye(5)
    nystroem = np.stack(
        [one @ np.linalg.solve(square, one.T) for one, square in zip(inner, gram, strict=True)]
    )
    expected = np.einsum("dr,er,rnk->dnek", MIXING, MIXING, nystroem)
    np.testing.assert_allclose(covariance, expected, atol=1e-7)
    variance = np.einsum("dndn->dn", covariance) + residual
    np.testing.assert_allclose(variance, np.asarray(model.kernel.diagonal(Z)), rtol=1e-9)
    matrix = np.asarray(model.kernel(Z, Z))
    np.testing.assert_allclose(np.einsum("dnn->dn", matrix), model.kernel.diagonal(Z), rtol=1e-9)


def test_one_kernel_is_that_kernel_in_each_dimension():
    model, plain = make("shared"), InducingPoints(LOCATIONS)
    gain, residual = model.basis.parts[0].projector(model.kernel)(Z)
    for d, scale in enumerate((0.5, 1.0, 2.0)):
        alone = plain.projector(make_kernel("se", 1, 4, scale**2, 1.3))(Z)
        np.testing.assert_allclose(gain[d], alone.gain[0], atol=1e-8)
        np.testing.assert_allclose(residual[d], alone.residual[0], atol=1e-8)
    prepared = model.prepared().transition()(Z[:, :3], Z[:, 3:])
    np.testing.assert_allclose(
        prepared.gain, model.transition()(Z[:, :3], Z[:, 3:]).gain, atol=1e-12
    )


def test_collapsed_is_the_dense_gaussian(model):
    """With shared weights all r of all dimensions are one Gaussian, N(0, Q ⊗ I + A Aᵀ)."""
    mean, gain, residual, following = steps(model)
    variance = np.exp(2 * np.asarray(model.log_process_std))
    error = (following - mean).T
    total = boundary(model) - 0.5 * np.sum(residual / variance[:, None])
    if model.basis.shared:
        whole = gain.reshape(-1, gain.shape[-1])
        covariance = whole @ whole.T + np.diag(np.repeat(variance, gain.shape[1]))
        total += multivariate_normal.logpdf(error.ravel(), np.zeros(error.size), covariance)
    else:
        for d in range(3):
            covariance = gain[d] @ gain[d].T + variance[d] * np.eye(gain.shape[1])
            total += multivariate_normal.logpdf(error[d], np.zeros(gain.shape[1]), covariance)
    paths = [jnp.asarray(path) for path in PATHS]
    np.testing.assert_allclose(
        jax.jit(lambda: log_collapsed(model, paths, SERIES))(), total, rtol=1e-8
    )


def test_collapsing_integrates_the_weights_out(model):
    paths, shape = [jnp.asarray(path) for path in PATHS], model.weights_shape

    @jax.jit
    def everything(flat):
        def joint(flat):
            return log_target(model, paths, flat.reshape(shape), SERIES)

        return joint(flat), jax.grad(joint)(flat), jax.hessian(joint)(flat)

    _, slope, hessian = everything(jnp.zeros(np.prod(shape)))
    mode = np.linalg.solve(-hessian, slope)
    log_det = np.linalg.slogdet(-hessian)[1]
    integral = everything(jnp.asarray(mode))[0] + 0.5 * (mode.size * np.log(2 * np.pi) - log_det)
    np.testing.assert_allclose(log_collapsed(model, paths, SERIES), integral, rtol=1e-8)
    found = weights_given_states(model, paths, SERIES)
    np.testing.assert_allclose(np.ravel(found.mean), mode, rtol=1e-7, atol=1e-10)
    if model.basis.shared:
        np.testing.assert_allclose(found.precision[0], -hessian, rtol=1e-7, atol=1e-9)


def test_joint_feynman_kac_and_noise_conditional(model):
    """Σ log M + Σ log G + log p(v) + log p(x₀) is log q*(v, x); Q | x, v has the sums of squares written out."""
    weights = RNG.normal(size=model.weights_shape)
    mean, gain, residual, following = steps(model)
    variance = np.exp(2 * np.asarray(model.log_process_std))
    predicted = mean + np.stack(
        [gain[d] @ weights[d if len(weights) > 1 else 0] for d in range(3)], 1
    )
    total = (
        norm.logpdf(weights).sum() + boundary(model) - 0.5 * np.sum(residual / variance[:, None])
    )
    total += norm.logpdf(following, predicted, np.sqrt(variance)).sum()
    paths, drawn = [jnp.asarray(path) for path in PATHS], jnp.asarray(weights)
    np.testing.assert_allclose(log_target(model, paths, drawn, SERIES), total, rtol=1e-8)
    moments = feynman_kac(model, drawn, SERIES[0]).moments(jnp.asarray(2), paths[0][2:3])[0]
    np.testing.assert_allclose(moments[0], predicted[2], rtol=1e-9)
    noise = process_noise_given(model, paths, drawn, SERIES)
    expected = 0.001 + 0.5 * (np.sum((following - predicted) ** 2, 0) + residual.sum(1))
    np.testing.assert_allclose(noise.scale, expected, rtol=1e-9)


def test_weights_of_each_dimension_are_a_case_of_shared_ones():
    """The same model with its weights in one vector: the same target, and the same coordinates to sample in."""
    plain = builders.make_model("stacked")
    parts = (plain.mean, plain.likelihood, jnp.exp(plain.log_process_std))
    whole = type(plain).create(plain.kernel, BlockDiagonal(plain.basis, 2), *parts)
    series = [builders.make_series(n, missing=True, seed=n) for n in (7, 5)]
    states = jnp.asarray(np.concatenate([builders.make_states(n, seed=n) for n in (7, 5)]))

    @eqx.filter_jit
    def look(model):
        coordinates = whiten(model, states, series, 10).at(model)
        paths = unstack(states, series)
        weights = weights_given_states(model, paths, series)
        return (
            log_collapsed(model, paths, series),
            weights.mean.ravel(),
            coordinates.directions,
            coordinates.stretch,
        )

    for mine, other in zip(look(whole), look(plain), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-7, atol=1e-8)


@pytest.mark.filterwarnings("ignore")  # of so few draws there is much to say
def test_from_end_to_end(tmp_path):
    rng = np.random.default_rng(1)
    outputs = [0.3 * rng.normal(size=(n, 2)).cumsum(0) for n in (40, 20)]
    outputs[0][5] = np.nan
    series = [gpssm.Series(y, rng.normal(size=len(y))) for y in outputs]
    posterior = gpssm.fit(
        series,
        state_dim=3,
        num_inducing=5,
        coupling="lmc",
        rank=2,
        start="em",
        num_chains=1,
        num_warmup=30,
        num_draws=15,
        progress=False,
    )
    assert posterior.draws.weights.shape == (1, 15, 1, 2 * 5 + 3 * 5)
    assert np.ptp(posterior.draws.weights) > 0.1
    later = posterior.learn(series[1][:10])
    size = posterior.model.state_dim + np.prod(posterior.model.weights_shape)
    assert later.learned.state.mean.shape[2:] == (size,)
    assert np.isfinite(later.forecast(u=np.ones((4, 1)), num_paths=15).paths).all()
    with pytest.raises(ValueError, match="separate weights for each state"):
        gpssm.fit(series, prior=posterior, progress=False)
    posterior.save(tmp_path / "coupled.nc")
    loaded = gpssm.load(tmp_path / "coupled.nc")
    u = np.ones((4, 1))
    np.testing.assert_array_equal(
        loaded.forecast(u=u, num_paths=15).paths, posterior.forecast(u=u, num_paths=15).paths
    )
    assert np.isfinite(loaded.transition(np.zeros((2, 3)), u[:2]).std).all()


def test_one_kernel_takes_a_wiring_that_is_the_same_in_all_functions():
    """It is then the kernel of each dimension, wired: zero where nothing enters, blind where something does not."""
    mask = ((False,) * 4, (True, True, False, True), (True, True, False, True))
    shared = one_kernel(SCALES, silent=(True, False, False))
    shared = dataclasses.replace(shared, inner=Masked(shared.inner, mask[1:2]))
    plain = Masked(make_kernel("se", 3, 4, SCALES**2, 1.3), mask)
    np.testing.assert_allclose(shared(Z, LOCATIONS), plain(Z, LOCATIONS), atol=1e-12)
    np.testing.assert_allclose(shared.diagonal(Z), plain.diagonal(Z), atol=1e-12)
    assert shared.silent == plain.silent
    mine, other = (
        basis.projector(kernel)(Z)
        for basis, kernel in (
            (CoregionalisedPoints(InducingPoints(LOCATIONS), 1, common=False), shared),
            (InducingPoints(LOCATIONS), plain),
        )
    )
    np.testing.assert_allclose(mine.gain, other.gain, atol=1e-8)
    np.testing.assert_allclose(mine.residual, other.residual, atol=1e-8)


def test_bad_couplings_say_what_to_do():
    series = builders.make_series(30, 1, 1)
    start = linear_fit(series, Spec(state_dim=2))
    for words, given in {
        "Known: none, shared, lmc": {"coupling": "all"},
        "between 1 and the number of states, 2; got rank=3": {"coupling": "lmc", "rank": 3},
        "got rank=None": {"coupling": "lmc"},
        "rank is the number of latent functions": {"coupling": "shared", "rank": 1},
        "different arguments for different transitions: use coupling='none'": {
            "coupling": "shared",
            "wiring": "cascade",
        },
        "coupling='lmc' does not support wiring: use": {
            "coupling": "lmc",
            "rank": 1,
            "wiring": "cascade",
        },
        "needs inducing points and a kernel by name": {"coupling": "shared", "basis": "hilbert"},
    }.items():
        with pytest.raises((KeyError, ValueError), match=words):
            build_model(series, 2, 5, linear=start, **given)
    with pytest.raises(ValueError, match="are supported by `ffvd`"):
        gpssm.fit(series, method="prssm", state_dim=2, coupling="lmc", rank=1, progress=False)
