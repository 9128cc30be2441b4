"""The variational methods as users call them: one fit each to a nonlinear transition."""

import numpy as np
import pytest

import gpssm
from gpssm.data.series import Series
from gpssm.methods.igpssm import IGPSSM
from gpssm.methods.prssm import PRSSM
from gpssm.methods.vcdt import VCDT
from gpssm.methods.vgpssm import VGPSSM


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        VGPSSM(num_warmup=100, num_draws=25, num_particles=15),
        IGPSSM(num_warmup=600, num_draws=25),
        PRSSM(num_warmup=600, num_draws=25),
        VCDT(num_warmup=600, num_draws=25),
    ],
    ids=lambda config: type(config).__name__,
)
def test_a_fit_follows_the_data_and_forecasts(config):
    """The bound rises, parameters are one value and weights a law, and the forecast halves the outputs' spread."""
    u = np.random.default_rng(0).normal(size=(40, 1))
    x, outputs = 0.0, []
    for control in u[:, 0]:
        x = 0.8 * np.tanh(2 * x) + 0.5 * control
        outputs.append(x)
    y = np.array(outputs)[:, None] + 0.05 * np.random.default_rng(1).normal(size=(40, 1))
    posterior = gpssm.fit(
        Series(y[:30], u[:30]),
        method=config,
        state_dim=1,
        num_inducing=8,
        num_chains=2,
        progress=False,
    )
    bound = posterior.warmup.log_target[0]
    assert np.mean(bound[-30:]) > np.mean(bound[:30])
    for leaf in posterior.draws.leaves.values():
        np.testing.assert_array_equal(leaf, np.broadcast_to(leaf[:1, :1], leaf.shape))
    assert np.all(np.std(posterior.draws.weights, (0, 1)) > 0)
    forecast = np.asarray(posterior.forecast(10, u[30:]).mean)
    assert np.sqrt(np.mean((forecast - y[30:]) ** 2)) < 0.5 * np.std(y)
