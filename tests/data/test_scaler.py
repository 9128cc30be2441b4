from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpssm.data.scaler import Scaler
from gpssm.data.series import Series


def random_series(seed=0, length=50, location=3.0, spread=20.0):
    rng = np.random.default_rng(seed)
    y = location + spread * rng.normal(size=(length, 2))
    y[rng.uniform(size=y.shape) < 0.2] = np.nan
    return Series(
        y, 5.0 + rng.normal(size=(length, 3)), name="random", dt=0.1, outputs=["a", "b"], window=4
    )


@pytest.mark.parametrize("scaling", ["standard", "scale", "none"])
@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), location=st.floats(-1e6, 1e6), spread=st.floats(1e-3, 1e6))
def test_round_trip(scaling, seed, location, spread):
    series = random_series(seed, 12, location, spread)
    scaler = Scaler.fit(series, outputs=scaling)
    scaled = scaler.scale(series)
    tolerance = {"rtol": 1e-12, "atol": 1e-12 * abs(location)}
    np.testing.assert_allclose(scaler.unscale_mean(scaled.y), series.y, **tolerance)
    np.testing.assert_allclose(
        scaler.unscale_mean(scaled.y[None, None]), series.y[None, None], **tolerance
    )
    assert replace(scaled, y=series.y, u=series.u) == series  # metadata stays


def test_standard_scaling_gives_mean_zero_and_std_one_of_what_was_observed():
    scaled = Scaler.fit(random_series()).scale(random_series())
    for values in (scaled.y, scaled.u):
        np.testing.assert_allclose(np.nanmean(values, axis=0), 0.0, atol=1e-12)
        np.testing.assert_allclose(np.nanstd(values, axis=0), 1.0)


def test_scale_only_divides_and_none_does_nothing():
    series = random_series()
    scale, none = (Scaler.fit(series, outputs=option) for option in ("scale", "none"))
    assert scale.output_mean == none.output_mean == (0.0, 0.0)
    assert none.output_std == (1.0, 1.0)
    np.testing.assert_allclose(scale.output_std, np.nanstd(series.y, axis=0))
    assert scale.input_mean == none.input_mean == Scaler.fit(series).input_mean
    assert Scaler.fit(series, outputs="none", inputs="none").scale(series) == series


def test_several_series_are_pooled():
    series = random_series()
    assert Scaler.fit(list(series.split(20))) == Scaler.fit(series)


def test_constant_and_missing_columns_are_not_divided():
    constant, missing = np.full(4, 7.0), np.full(4, np.nan)
    scaler = Scaler.fit(Series(np.column_stack([constant, missing]), constant))
    assert scaler == Scaler((7.0, 0.0), (1.0, 1.0), (7.0,), (1.0,))


def test_test_data_is_scaled_with_training_statistics():
    train, test = random_series().split(0.5)
    scaler = Scaler.fit(train)
    expected = (test.u - train.u.mean(axis=0)) / train.u.std(axis=0)
    np.testing.assert_allclose(scaler.scale(test).u, expected)
    np.testing.assert_array_equal(scaler.scale_inputs(jnp.asarray(test.u)), scaler.scale(test).u)


def test_variances_scale_with_the_square():
    scaler = Scaler.fit(random_series())
    rng = np.random.default_rng(1)
    scaled_draws = 0.3 * rng.normal(size=(1000, 5, 2))
    np.testing.assert_allclose(
        scaler.unscale_variance(scaled_draws.var(axis=0)),
        scaler.unscale_mean(scaled_draws).var(axis=0),
    )


def test_no_inputs():
    scaler = Scaler.fit(Series([1.0, 2.0, 3.0]))
    assert scaler.input_mean == ()
    assert scaler.scale_inputs(np.zeros((5, 0))).shape == (5, 0)


def test_errors():
    with pytest.raises(ValueError, match="standard, scale, none; got 'log'"):
        Scaler.fit(random_series(), outputs="log")  # type: ignore[arg-type]
    scaler = Scaler.fit(random_series())
    with pytest.raises(ValueError, match=r"fitted to 2 outputs; got an array of shape \(5, 1\)"):
        scaler.unscale_mean(np.zeros((5, 1)))
    with pytest.raises(ValueError, match="fitted to 3 inputs"):
        scaler.scale(Series([[1.0, 2.0]], [1.0]))
