"""Conditional SMC against Kalman smoothing, quadrature, and the identities that its proposals must satisfy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

import builders
from gpssm.core.linalg import selected_inverse
from gpssm.inference import csmc
from gpssm.linear.state_space import smooth
from gpssm.model import target
from gpssm.model.likelihoods import observed

GUIDES = ("bootstrap", "locally_optimal")
FORMS = {"posterior": target.feynman_kac, "predictive": target.feynman_kac_predictive}
LIMIT = 4.5  # standard errors


def problem(basis, length=5, **sizes):
    model = builders.make_model(basis, **sizes)
    output_dim, state_dim = model.likelihood.C.shape
    series = builders.make_series(length, sizes.get("input_dim", 1), output_dim, missing=True)
    weights = jnp.asarray(np.random.default_rng(7).normal(size=(state_dim, model.basis.size)))
    return model, series, weights


def make_guide(name, model, form, series):
    if name == "bootstrap":
        return csmc.bootstrap(form)
    y, present = observed(jnp.asarray(series.y))
    likelihood = model.likelihood
    emission = csmc.GaussianEmission(
        likelihood.C, likelihood.d, jnp.exp(2 * likelihood.log_std), y, present
    )
    return csmc.locally_optimal(form, emission)


def run_chains(form, guide, start, num_particles, ancestry, num_chains=400, burn=15, sweeps=30):
    """Paths (chain, sweep, T+1, Dx) of independent chains from one start."""

    def chain(key):
        def step(path, key):
            path, _ = csmc.sweep(key, path, form, guide, num_particles, ancestry)
            return path, path

        return jax.lax.scan(step, start, jax.random.split(key, burn + sweeps))[1][burn:]

    return np.asarray(jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(1), num_chains)))


def z_scores(values, expected):
    """How far chain averages (chain, sweep, ...) lie from the truth, in standard errors between chains."""
    means = values.mean(1)
    return (means.mean(0) - expected) / (means.std(0, ddof=1) / np.sqrt(len(means)))


@pytest.mark.parametrize("noise", [0.4, 1e-3])
@pytest.mark.parametrize("law", FORMS)
@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_splits_the_transition_and_the_potential(name, law, noise):
    """M(x' | x) G(x, x') = q(x' | x) exp(log_ahead + log_weight), with q a dense Gaussian in SciPy."""
    model, series, weights = problem("inducing")
    model = model.with_leaves({"likelihood.log_std": jnp.log(noise * jnp.array([1.0, 0.8]))})
    form = FORMS[law](model, weights, series)
    guide = make_guide(name, model, form, series)
    x, noise = (jnp.asarray(builders.make_states(3, seed=seed)) for seed in (2, 3))
    for t in (0, 1, 2):  # one entry missing, none, all
        proposal = jax.jit(guide.propose)(jnp.asarray(t), x)
        following = proposal.mean + jnp.einsum("nij,nj->ni", proposal.factor, noise)
        mean, variance = form.moments(jnp.asarray(t), x)
        left = norm.logpdf(following, mean, np.sqrt(variance)).sum(-1)
        left += np.asarray(form.log_potential(jnp.asarray(t), x, following))
        right = np.array(proposal.log_ahead + guide.log_weight(jnp.asarray(t), x, following))
        rows = zip(following, proposal.mean, np.asarray(proposal.factor), strict=True)
        right += [multivariate_normal.logpdf(a, b, f @ f.T) for a, b, f in rows]
        np.testing.assert_allclose(left, right, rtol=1e-7)


@pytest.mark.parametrize(
    ("name", "ancestry", "num_particles"),
    [
        ("bootstrap", "backward", 30),
        ("locally_optimal", "backward", 3),
        ("locally_optimal", "ancestor", 4),
        ("locally_optimal", "trace", 12),
    ],
)
def test_linear_dynamics_give_the_kalman_smoother(name, ancestry, num_particles):
    """Means, covariances and covariances of neighbours, whatever the proposal and the number of particles."""
    model, series, weights = problem("linear")
    linear = builders.linear_given(model, weights)
    posterior = smooth(linear, series)
    covariance = jax.jit(selected_inverse)(posterior.factor)
    form = target.feynman_kac(model, weights, series)
    guide = make_guide(name, model, form, series)
    start = jnp.zeros((len(series) + 1, 2))
    paths = run_chains(form, guide, start, num_particles, ancestry)
    mean = np.asarray(posterior.mean)
    error = paths - mean
    now = np.einsum("cstd,cste->cstde", error, error)
    neighbours = np.einsum("cstd,cste->cstde", error[:, :, 1:], error[:, :, :-1])
    assert np.abs(z_scores(paths, mean)).max() < LIMIT
    assert np.abs(z_scores(now, np.asarray(covariance.diagonal))).max() < LIMIT
    assert np.abs(z_scores(neighbours, np.asarray(covariance.lower))).max() < LIMIT


def quadrature(model, weights, series, law):
    """E[x_t], E[x_t²] and E[x_t x_{t+1}] of the three states of a one-dimensional model, on a grid."""
    grid = np.linspace(-6, 6, 161)
    variance = np.exp(2 * float(model.log_process_std[0]))
    step = model.transition()(jnp.asarray(grid)[:, None], jnp.zeros((161, 0)))
    mean, residual = np.asarray(step.given(weights))[:, 0], np.asarray(step.residual)[0]
    spread = variance + (residual if law == "predictive" else 0 * residual)
    log_move = norm.logpdf(grid[None], mean[:, None], np.sqrt(spread)[:, None])
    log_move -= residual[:, None] / (2 * variance) if law == "posterior" else 0.0
    C, d, std = (
        float(model.likelihood.C[0, 0]),
        float(model.likelihood.d[0]),
        np.exp(float(model.likelihood.log_std[0])),
    )
    moves = [
        np.exp(log_move + np.nan_to_num(norm.logpdf(y, C * grid + d, std))[None])
        for y in series.y[:, 0]
    ]
    joint = np.einsum("i,ij,jk->ijk", norm.pdf(grid), *moves)
    joint /= joint.sum()
    pair = [joint.sum(2), joint.sum(0)]
    single = [pair[0].sum(1), pair[0].sum(0), pair[1].sum(0)]
    first, second = ([one @ grid**power for one in single] for power in (1, 2))
    return np.array(first), np.array(second), np.array([grid @ one @ grid for one in pair])


@pytest.mark.parametrize("law", FORMS)
@pytest.mark.parametrize(
    ("name", "ancestry", "num_particles"),
    [
        ("bootstrap", "backward", 8),
        ("locally_optimal", "backward", 4),
        ("locally_optimal", "ancestor", 3),
    ],
)
def test_nonlinear_dynamics_match_quadrature(name, ancestry, num_particles, law):
    """With inducing points the potential depends on x_t through B, which the choice of parents must respect."""
    model, series, weights = problem("inducing", 2, state_dim=1, input_dim=0, output_dim=1, num=2)
    series = builders.make_series(2, 0, 1)
    model = model.with_leaves(
        {"kernel.log_variance": jnp.array([-0.5]), "kernel.log_lengthscale": jnp.array([[-0.5]])}
    )
    first, second, product = quadrature(model, weights, series, law)
    form = FORMS[law](model, weights, series)
    guide = make_guide(name, model, form, series)
    paths = run_chains(form, guide, jnp.zeros((3, 1)), num_particles, ancestry, 800, burn=30)[
        ..., 0
    ]
    assert np.abs(z_scores(paths, first)).max() < LIMIT
    assert np.abs(z_scores(paths**2, second)).max() < LIMIT
    assert np.abs(z_scores(paths[:, :, 1:] * paths[:, :, :-1], product)).max() < LIMIT


def test_backward_choices_renew_every_state():
    model, series, weights = problem("linear", 30)
    form = target.feynman_kac(model, weights, series)
    guide = make_guide("locally_optimal", model, form, series)
    renewed = {}
    for ancestry in ("backward", "ancestor", "trace"):
        paths = run_chains(
            form, guide, jnp.zeros((31, 2)), 6, ancestry, num_chains=50, burn=5, sweeps=16
        )
        renewed[ancestry] = np.any(paths[:, 1:] != paths[:, :-1], -1).mean((0, 1))
    assert renewed["backward"].min() > 0.5
    assert renewed["ancestor"].min() > 0.5
    assert renewed["trace"][0] < 0.2
