"""Experiments: their value against the posterior variance of a linear regression in closed form."""

import jax.numpy as jnp
import numpy as np
import pytest

import gpssm
from builders import make_model
from gpssm.data.scaler import Scaler
from gpssm.data.series import Series
from gpssm.model.likelihoods import Gaussian
from gpssm.model.model import GPSSM
from posteriors import linear_weights, make_posterior

DRAWS, NOISE = 300, 0.5
RNG = np.random.default_rng(0)
SCALER = Scaler((1.0,), (2.0,), (0.0,), (1.0,))


@pytest.fixture(scope="module")
def posterior():
    """y_t = 1 + 2 θ u_t + noise of standard deviation 2 · 0.5, with θ ~ N(0, 1) over draws, and no memory."""
    plain = make_model("linear", output_dim=1)
    likelihood = Gaussian.build(jnp.array([[1.0, 0.0]]), jnp.zeros(1), jnp.full(1, NOISE))
    model = GPSSM.create(plain.kernel, plain.basis, plain.mean, likelihood, jnp.full(2, 1e-4))
    theta = RNG.normal(size=(2, DRAWS // 2))
    weights = np.stack(
        [
            linear_weights(model, np.zeros((2, 2)), np.array([[one], [0.0]]), np.zeros(2))
            for one in theta.ravel().tolist()
        ]
    ).reshape(2, DRAWS // 2, 2, 4)
    raw = [Series(RNG.normal(size=(9, 1)), 3 * RNG.normal(size=(9, 1)))]
    states = [5 * RNG.normal(size=(2, DRAWS // 2, 10, 2))]
    return make_posterior(model, raw, weights, {}, SCALER, states, draws=DRAWS // 2)


PLANS = {
    "nothing": np.zeros((4, 1)),
    "little": np.full((4, 1), 0.1),
    "some": np.array([[0.5], [0.5], [0.0], [0.0]]),
    "much": np.full((4, 1), 1.0),
}


def test_the_reduction_is_that_of_a_linear_regression(posterior):
    found = gpssm.analysis.informative(
        posterior, PLANS, target=np.ones((3, 1)), num_paths=1500, max_draws=DRAWS
    )
    assert list(found.index)[:2] == ["much", "some"]
    for name, u in PLANS.items():
        information = np.sum(u**2) / NOISE**2
        exact = information / (1 + information)  # 1 − Var(θ | Y) / Var θ
        # Relative errors of the mean squares of 300 draws, and four coefficients learned from them.
        assert found.loc[name, "reduction"] == pytest.approx(
            exact, abs=(1 - exact) * 4 * np.sqrt(2 / DRAWS) + 5 / DRAWS
        )
        assert found.loc[name, "y"] == pytest.approx(found.loc[name, "reduction"])
    assert str(found).splitlines()[2].startswith("much")


def test_without_a_target_all_experiments_count_and_a_list_has_numbers_for_names(posterior):
    found = gpssm.analysis.informative(posterior, [PLANS["much"], PLANS["little"]], num_paths=300)
    assert found.index[0] == "0"


def test_bad_questions_are_refused(posterior):
    with pytest.raises(ValueError, match="at least one experiment"):
        gpssm.analysis.informative(posterior, {})
    with pytest.raises(ValueError, match="too few to rank"):
        gpssm.analysis.informative(make_posterior(), [np.zeros((3, 1))])
    with pytest.raises(ValueError, match="u must have 1 columns"):
        gpssm.analysis.informative(posterior, [np.zeros((3, 2))])
