"""The mean model in CasADi against draws run one by one in JAX, and its derivatives."""

import importlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import casadi
import jax
import numpy as np
import pytest

import gpssm
from builders import BASIS_NAMES, make_model, make_series
from gpssm.data.series import Series
from gpssm.model.kernels import KERNELS
from gpssm.model.likelihoods import LIKELIHOODS
from gpssm.model.model import GPSSM
from gpssm.posterior.control import mean_model, mean_state
from gpssm.posterior.draws import past_inputs
from posteriors import make_posterior, mean_outputs
from programs import run_program

U = 1 + np.random.default_rng(0).normal(size=(7, 1))


def run(step, x, u):
    """Outputs (H, Dy) of the function, one row after the other."""
    outputs = []
    for row in u:
        x, y = step(x, row)
        outputs.append(np.asarray(y).ravel())
    return np.array(outputs)


@pytest.mark.parametrize("basis", BASIS_NAMES)
def test_every_basis(basis):
    posterior = make_posterior(make_model(basis))
    outputs = run(posterior.to_casadi(), mean_state(posterior), U)
    np.testing.assert_allclose(outputs, mean_outputs(posterior, U), rtol=1e-10)


def test_it_is_the_rollout_without_noise():
    posterior = make_posterior(make_model("hilbert"))  # whose functions have no residual variance
    rollout = posterior.rollout(6, noise=False, bounds=None)
    states = mean_state(posterior).reshape(rollout.start.states.shape)
    np.testing.assert_array_equal(rollout.start.states, states)
    with jax.enable_x64(True):
        paths = rollout(rollout.start._replace(scale=np.zeros(6)), U)
    outputs = run(posterior.to_casadi(), states.ravel(), U)
    np.testing.assert_allclose(outputs, paths.mean(0), rtol=1e-10)


@pytest.mark.parametrize(
    ("kernel", "likelihood"),
    [(name, "gaussian") for name in KERNELS] + [("se", name) for name in LIKELIHOODS],
)
def test_every_kernel_and_likelihood(kernel, likelihood):
    plain = make_model()
    emission = LIKELIHOODS[likelihood](plain.likelihood.C, plain.likelihood.d, np.ones(2))
    model = GPSSM.create(KERNELS[kernel](2, 3), plain.basis, plain.mean, emission, np.ones(2))
    posterior = make_posterior(model, leaves={}, chains=1, draws=2)
    outputs = run(posterior.to_casadi(), mean_state(posterior), U)
    np.testing.assert_allclose(outputs, mean_outputs(posterior, U), rtol=1e-10)


def test_inputs_act_late():
    posterior = make_posterior()
    late = replace(posterior, dataset=replace(posterior.dataset, delay=(2,)))
    known = np.concatenate([past_inputs(late), U])[:7]
    outputs = run(late.to_casadi(), mean_state(late), U)
    np.testing.assert_allclose(outputs, mean_outputs(posterior, known), rtol=1e-10)


def test_its_derivatives_are_those_of_jax():
    posterior = make_posterior()
    step, model = posterior.to_casadi(), mean_model(posterior, 20)
    x, u = casadi.MX.sym("x", step.size1_in(0)), casadi.MX.sym("u", 1)
    after, y = step(x, u)
    jacobian = casadi.Function(
        "jacobian", [x, u], [casadi.jacobian(y, u), casadi.jacobian(after, x)]
    )
    curvature = casadi.Function("curvature", [x, u], [casadi.hessian(y[0], x)[0]])
    point = (model.start, U[0])
    with jax.enable_x64(True):
        by_state, by_input = (jax.jit(jax.jacfwd(model.step, axis))(*point) for axis in (0, 1))
        second = jax.jit(jax.hessian(lambda x: model.step(x, U[0])[1][0]))(model.start)
    found = [np.asarray(part) for part in jacobian(*point)]
    np.testing.assert_allclose(found[0], by_input[1], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found[1], by_state[0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(np.asarray(curvature(*point)), second, rtol=1e-8, atol=1e-11)


def test_a_saved_function_needs_neither_jax_nor_this_library(tmp_path):
    raw = [Series(make_series(9).y)]
    posterior = make_posterior(raw=raw).condition(Series(make_series(6, seed=3).y))
    posterior.to_casadi(2).save(str(tmp_path / "plant.casadi"))
    np.save(tmp_path / "x.npy", mean_state(posterior, 2))
    outputs, modules = json.loads(run_program("casadi_step", cwd=tmp_path))
    assert not {"jax", "gpssm"} & {*modules}
    y = mean_model(posterior, 2).step(mean_state(posterior, 2), np.zeros(0))[1]
    np.testing.assert_allclose(outputs, y, rtol=1e-10)


@pytest.mark.filterwarnings("ignore")  # of do-mpc
def test_the_controller_of_the_guide_runs_in_do_mpc():
    pytest.importorskip("do_mpc")
    guide = (Path(__file__).parents[2] / "docs" / "control.md").read_text(encoding="utf-8")
    code = guide.split("## do-mpc")[1].split("``` { .python }\n")[1].split("```")[0]
    namespace = {"posterior": make_posterior(raw=[make_series(9, output_dim=1)]), "gpssm": gpssm}
    exec(code, namespace)
    assert -1 - 1e-6 <= namespace["plan"].item() <= 1 + 1e-6


def test_the_slave_of_the_guide_becomes_an_fmu(tmp_path, monkeypatch):
    builder = pytest.importorskip("pythonfmu.builder")
    guide = (Path(__file__).parents[2] / "docs" / "control.md").read_text(encoding="utf-8")
    (tmp_path / "slave.py").write_text(guide.split('slave = """')[1].split('"""')[0])
    posterior = make_posterior(raw=[make_series(9, output_dim=1)])
    posterior.to_casadi().save(str(tmp_path / "stage.casadi"))
    np.savetxt(tmp_path / "start.txt", mean_state(posterior))
    monkeypatch.syspath_prepend(str(tmp_path))
    slave = importlib.import_module("slave").Stage(instance_name="plant")
    outputs = []
    for row, force in enumerate(U[:, 0]):
        slave.force = float(force)
        assert slave.do_step(float(row), 1.0)
        outputs.append([slave.position])
    np.testing.assert_allclose(outputs, mean_outputs(posterior, U), rtol=1e-9)
    files = {tmp_path / "stage.casadi", tmp_path / "start.txt"}
    builder.FmuBuilder.build_FMU(tmp_path / "slave.py", tmp_path, project_files=files)
    (file,) = tmp_path.glob("*.fmu")
    with zipfile.ZipFile(file) as archive:
        assert {f"resources/{path.name}" for path in files} <= set(archive.namelist())
        description = archive.read("modelDescription.xml").decode()
    assert 'name="force"' in description
    assert 'name="position"' in description
