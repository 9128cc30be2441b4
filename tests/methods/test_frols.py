"""`gp-narx` compared with polynomial NARX models by FROLS of sysidentpy; skipped without it."""

import numpy as np
import pytest

import gpssm

LAGS, ROWS = 2, 200


def simulate(curve, seed=0):
    """y_t = .6 y_{t−1} + curve(u_t) + noise, under a random input."""
    rng = np.random.default_rng(seed)
    u = np.repeat(rng.uniform(-2, 2, 100), 4)
    y = np.zeros(len(u))
    for t in range(len(u)):
        y[t] = 0.6 * y[t - 1] + curve(u[t]) + 0.02 * rng.normal()
    return gpssm.Series(y, u)


def simulate_frols(series):
    """The simulation of the rows after the training rows by a polynomial of degree two."""
    from sysidentpy.basis_function import Polynomial
    from sysidentpy.model_structure_selection import FROLS
    from sysidentpy.parameter_estimation import LeastSquares

    # A row of inputs acts on the same row of outputs here, and on the next one there.
    shifted = np.vstack([series.u[1:], series.u[-1:]])
    model = FROLS(
        ylag=LAGS,
        xlag=LAGS,
        info_criteria="bic",
        n_info_values=10,
        estimator=LeastSquares(),
        basis_function=Polynomial(degree=2),
    )
    model.fit(X=shifted[:ROWS], y=series.y[:ROWS])
    start = ROWS - LAGS
    return model.predict(X=shifted[start:], y=series.y[start:ROWS])[LAGS:]


@pytest.mark.parametrize(
    ("curve", "most"),
    [
        (lambda u: 0.5 * u + 0.3 * u**2, 2.0),  # a polynomial of degree two is exact
        (lambda u: np.tanh(3 * u), 0.5),  # and here it is not
    ],
    ids=["polynomial", "saturation"],
)
@pytest.mark.filterwarnings("ignore")  # of sysidentpy
def test_simulations_are_compared_with_those_of_frols(curve, most):
    pytest.importorskip("sysidentpy")
    series = simulate(curve)
    train, test = series.split(ROWS)
    posterior = gpssm.fit(train, method="gp-narx", num_chains=1, num_draws=20, progress=False)
    ours = gpssm.metrics.rmse(posterior.forecast(u=test.u, num_paths=200).mean, test.y)
    theirs = gpssm.metrics.rmse(simulate_frols(series), test.y)
    assert ours < most * theirs
    assert ours < 0.1 * np.std(test.y)
