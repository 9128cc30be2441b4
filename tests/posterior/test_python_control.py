"""Models for python-control: its responses and simulations against ours."""

from dataclasses import replace

import control
import numpy as np
import pytest

from builders import make_series
from gpssm.data.series import Series
from gpssm.posterior.control import mean_state
from gpssm.posterior.dynamics import Linearisation
from posteriors import make_posterior, mean_outputs

STEPS = 15
FREQUENCIES = np.array([0.02, 0.3, 0.9])


def make_linearisation(delay=()):
    """Three stable draws of two states, two inputs and one output, every half second."""
    rng = np.random.default_rng(1)
    A = np.diag([0.9, 0.5]) + 0.05 * rng.normal(size=(3, 2, 2))
    B, C, D = (rng.normal(size=(3, *shape)) for shape in ((2, 2), (1, 2), (1, 2)))
    signals = {"outputs": ("level",), "inputs": ("pump", "valve"), "dt": 0.5, "delay": delay}
    return Linearisation(A, B, C, D, np.zeros((3, 2)), np.zeros(2), np.zeros((3, 1)), **signals)


@pytest.mark.parametrize("delay", [(), (0, 3), (2, 1)])
def test_every_draw_has_our_step_and_bode_responses(delay):
    linear = make_linearisation(delay)
    systems = linear.to_control(each=True)
    step, bode = linear.step_response(STEPS), linear.bode(FREQUENCIES)
    for s, system in enumerate(systems):
        assert isinstance(system, control.StateSpace)
        assert (system.dt, system.input_labels) == (0.5, ["pump", "valve"])
        assert system.output_labels == ["level"]
        response = control.step_response(system, T=step.times)
        np.testing.assert_allclose(
            np.moveaxis(response.y, 2, 0), step.values[s], rtol=1e-9, atol=1e-12
        )
        values = system(np.exp(2j * np.pi * FREQUENCIES * 0.5))
        np.testing.assert_allclose(np.moveaxis(values, 2, 0), bode.values[s], rtol=1e-9)
    assert linear.to_control().name == systems[linear.central].name


def test_the_central_draw_is_no_outlier():
    linear = make_linearisation()
    linear.B[1] = (linear.B[0] + linear.B[2]) / 2
    for part in (linear.A, linear.C, linear.D):
        part[:] = part[0]
    assert linear.central == 1


@pytest.mark.parametrize("delay", [0, 2])
def test_the_mean_model_is_the_mean_of_the_draws_run_without_noise(delay):
    rng = np.random.default_rng(0)
    raw = [Series(rng.normal(size=(9, 2)), rng.normal(size=(9, 1)), dt=0.1)]
    posterior = make_posterior(raw=raw)
    posterior = replace(posterior, dataset=replace(posterior.dataset, delay=(delay,)))
    system = posterior.to_control()
    assert (type(system), system.dt) == (control.NonlinearIOSystem, 0.1)
    assert system.nstates == 12 + delay
    u = rng.normal(size=(STEPS, 1))
    times = 0.1 * np.arange(STEPS)
    response = control.input_output_response(system, times, u.T, mean_state(posterior))
    acting = np.concatenate([raw[0].u[len(raw[0]) - delay :], u])[:STEPS]
    np.testing.assert_allclose(response.y.T, mean_outputs(posterior, acting), rtol=1e-9)


def test_after_new_rows_it_starts_from_where_they_lead():
    posterior = make_posterior().condition(make_series(6, seed=3))
    system = posterior.to_control(2)
    assert system.nstates == 4
    assert mean_state(posterior, 2).shape == (4,)
