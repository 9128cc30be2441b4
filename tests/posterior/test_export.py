"""The exported file against the model, in a process with only NumPy."""

import importlib
import json
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from builders import BASIS_NAMES, make_model, make_series
from gpssm.model.kernels import KERNELS
from gpssm.model.likelihoods import LIKELIHOODS
from gpssm.model.model import GPSSM
from posteriors import make_posterior, mean_outputs
from programs import run_program

U = 1 + np.random.default_rng(0).normal(size=(7, 1))


def check(posterior, folder):
    """Export, run in another process, compare."""
    posterior.export(folder / "plant.py", overwrite=True)
    np.save(folder / "u.npy", U)
    values, modules = json.loads(run_program("exported", cwd=folder))
    np.testing.assert_allclose(values, mean_outputs(posterior, U), rtol=1e-9)
    assert not {"jax", "gpssm"} & {*modules}


@pytest.mark.parametrize("basis", BASIS_NAMES)
def test_every_basis(basis, tmp_path):
    check(make_posterior(make_model(basis)), tmp_path)


@pytest.mark.parametrize(
    ("kernel", "likelihood"),
    [(name, "gaussian") for name in KERNELS] + [("se", name) for name in LIKELIHOODS],
)
def test_every_kernel_and_likelihood(kernel, likelihood):
    plain = make_model()
    seen = LIKELIHOODS[likelihood](plain.likelihood.C, plain.likelihood.d, np.ones(2))
    model = GPSSM.create(KERNELS[kernel](2, 3), plain.basis, plain.mean, seen, np.ones(2))
    posterior = make_posterior(model, leaves={}, chains=1, draws=2)
    namespace = {}
    exec(exported(posterior), namespace)
    np.testing.assert_allclose(namespace["run"](U), mean_outputs(posterior, U), rtol=1e-9)


def exported(posterior):
    """The text of the file."""
    with tempfile.TemporaryDirectory() as folder:
        posterior.export(f"{folder}/plant.py")
        return Path(folder, "plant.py").read_text()


def test_a_step_starts_from_where_the_state_is_and_draws_may_be_fewer(tmp_path):
    posterior = make_posterior().condition(make_series(6, seed=3))
    namespace = {}
    exec(exported(posterior), namespace)
    np.testing.assert_allclose(namespace["START"], posterior.current.state.mean.ravel(), rtol=1e-9)
    posterior.export(tmp_path / "two.py", 2)
    exec((tmp_path / "two.py").read_text(), namespace)
    assert namespace["START"].shape == (4,)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        posterior.export(tmp_path / "two.py")


def test_the_slave_of_the_guide_becomes_an_fmu(tmp_path, monkeypatch):
    builder = pytest.importorskip("pythonfmu.builder")
    guide = (Path(__file__).parents[2] / "docs" / "control.md").read_text(encoding="utf-8")
    (tmp_path / "slave.py").write_text(guide.split('slave = """')[1].split('"""')[0])
    raw = [make_series(9, output_dim=1)]
    posterior = make_posterior(raw=raw)
    posterior.export(tmp_path / "stage.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    slave = importlib.import_module("slave").Stage(instance_name="plant")
    outputs = []
    for row, force in enumerate(U[:, 0]):
        slave.force = float(force)
        assert slave.do_step(float(row), 1.0)
        outputs.append([slave.position])
    np.testing.assert_allclose(outputs, mean_outputs(posterior, U), rtol=1e-9)
    builder.FmuBuilder.build_FMU(
        tmp_path / "slave.py", tmp_path, project_files={tmp_path / "stage.py"}
    )
    (file,) = tmp_path.glob("*.fmu")
    with zipfile.ZipFile(file) as archive:
        assert {"resources/slave.py", "resources/stage.py"} <= set(archive.namelist())
        description = archive.read("modelDescription.xml").decode()
    assert 'name="force"' in description
    assert 'name="position"' in description
