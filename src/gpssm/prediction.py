"""Along a series some steps ahead, and through a new experiment without looking: prediction and simulation."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpssm.conditioning import at_start, begin, condition, filter_keys, like_training, members_of, takes_gaussian
from gpssm.filtering import run_predictions
from gpssm.fitted import Fitted
from gpssm.forecast import Forecast, ForecastDiagnostics
from gpssm.forecasting import forecast
from gpssm.rollout import BOUNDS, in_user_units, path_keys, plan, training_box
from gpssm.runtime import numerical


@numerical
def predict(
    fitted: Fitted,
    series: Any,
    steps: int = 1,
    *,
    new_experiment: bool = False,
    num_paths: int = 1000,
    num_particles: int | None = None,
    seed: int = 0,
    noise: bool = True,
    index: int = -1,
    bounds: float | None = BOUNDS,
) -> Forecast:
    """Each row y_t of a series given its controls and the outputs up to y_{t−steps}: `steps` ahead, all along it.

        posterior.predict(test, steps=5).score(test)

    The first `steps` rows are predicted from what was known before the series. The paths at a row are a sample of that
    row's law; along the rows they are not one future, for which there are `forecast` and `simulate`. What paths left
    in the `steps` before a row is in `diagnostics`, row by row.

    :param series, new_experiment, num_particles, index: as in `condition`.
    :param num_paths, noise, bounds: as in `forecast`. Draws without a path are not filtered: few paths are quick.
    """
    for name, value in (("steps", steps), ("num_paths", num_paths)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1; got {value!r}")
    given, scaler = like_training(fitted, series), fitted.scaler
    draws, each, slots = plan(fitted.num_chains * fitted.num_draws, num_paths)
    cloud = begin(fitted, draws, new_experiment, num_particles, seed, index)
    found = run_predictions(
        members_of(fitted, draws),
        filter_keys(seed, draws),
        cloud,
        scaler.scale(given),
        min(steps, len(given)),
        path_keys(jax.random.key(seed, impl="threefry2x32"), draws, each),
        jnp.asarray(slots),
        None if bounds is None else training_box(fitted, draws, bounds),
        noise,
        takes_gaussian(fitted, num_particles, new_experiment),
    )
    paths, moments, ahead = in_user_units(scaler, jax.tree.map(lambda part: jnp.moveaxis(part, 0, 1), found.emission))
    return Forecast(
        paths=paths,
        outputs=given.outputs,
        start=int(cloud.rows),
        u=given.u,
        inputs=given.inputs,
        dt=given.dt or fitted.raw[index].dt,
        moments=moments,
        moments_ahead=ahead,
        diagnostics=ForecastDiagnostics(np.asarray(found.left), np.asarray(found.novelty), bounds is not None),
    )


def simulate(
    fitted: Fitted,
    u: Any = None,
    warmup: Any = None,
    *,
    horizon: int | None = None,
    num_particles: int | None = None,
    seed: int = 0,
    **settings: Any,
) -> Forecast:
    """A free run of a new experiment under the controls u: no output is seen but those of `warmup`.

        posterior.simulate(test.u[50:], warmup=test[:50])

    :param u, horizon: controls after the warm-up, and number of steps, as in `forecast`.
    :param warmup: the experiment's first rows, outputs and controls, to find its state by; without any the state starts
        at x₀ ~ N(0, I).
    :param settings: further ones of `forecast`: num_paths, noise, bounds.
    """
    if warmup is None:
        start = at_start(fitted, True, num_particles, seed)
    else:
        start = condition(fitted, warmup, new_experiment=True, num_particles=num_particles, seed=seed)
    return forecast(start, horizon, u, seed=seed, **settings)
