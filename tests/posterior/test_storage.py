"""Files of posteriors: every bit comes back, and a bad file is told from a good one."""

import dataclasses
import errno
import json
import os
import subprocess
import sys

import h5netcdf
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from test_serialise import assert_same

import gpssm
from builders import make_model, make_series
from gpssm.data.scaler import Scaler
from gpssm.methods import METHODS
from gpssm.model.likelihoods import Custom
from gpssm.model.means import Function
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw, Info
from gpssm.posterior import storage
from gpssm.posterior.draws import CurrentState, Seconds
from gpssm.posterior.posterior import Posterior

CHAINS, DRAWS, WARMUP = 2, 5, 3


def make_info(rng, number):
    real = [rng.normal(size=(CHAINS, number)) for _ in range(4)]
    return Info(real[0], real[1], rng.random((CHAINS, number)) < 0.3, real[2], real[3])


def make_posterior(raw, model, draws=DRAWS, spread=0.1, scaling="standard", **fields):
    """A posterior by hand: states and weights at random, and the leaves that are not fixed near the model's own."""
    rng = np.random.default_rng(8)

    def normal(*shape):
        return rng.normal(size=(CHAINS, draws, *shape))

    scaler = Scaler.fit(list(raw), outputs=scaling)
    roles = dict(model.roles)
    free = {name: np.asarray(leaf) for name, leaf in model.leaves().items() if roles[name] != "fix"}
    drawn = Draw(
        tuple(spread * normal(len(one) + 1, model.state_dim) for one in raw),
        normal(model.state_dim, model.basis.size),
        {name: leaf + spread * normal(*leaf.shape) for name, leaf in free.items()},
    )
    defaults = {"config": {"method": "ffvd"}, "seconds": Seconds(0.1, 0.2, 0.3), "seed": 3}
    scaled = tuple(scaler.scale(one) for one in raw)
    return Posterior(
        model, drawn, make_info(rng, draws), make_info(rng, WARMUP), scaled, raw, scaler, **(defaults | fields)
    )


def fields(posterior):
    return {field.name: getattr(posterior, field.name) for field in dataclasses.fields(Posterior)}


def assert_same_posterior(first, second):
    assert type(first) is type(second) is Posterior
    one, other = fields(first), fields(second)
    for name in one.keys() - {"series", "raw", "scaler"}:
        assert_same(one[name], other[name])
    assert one["scaler"] == other["scaler"]
    for name in ("series", "raw"):  # the names are not part of a series' tree
        assert one[name] == other[name]
        assert_same(one[name], other[name])


@pytest.fixture
def posterior():
    return make_posterior((make_series(7),), make_model())


@pytest.fixture
def saved(posterior, tmp_path):
    posterior.save(tmp_path / "run.nc")
    return tmp_path / "run.nc"


@pytest.mark.parametrize("name", METHODS)
def test_every_method(name, tmp_path):
    config = {"method": name} | dataclasses.asdict(METHODS[name])
    made = make_posterior((make_series(7),), make_model(), config=config)
    made.save(tmp_path / "run.nc")
    assert gpssm.load(tmp_path / "run.nc").config == config


def test_several_series_gaps_two_outputs_names_and_notes(tmp_path):
    gaps = make_series(9, missing=True)
    named = dataclasses.replace(gaps, name="Küche 1/2", dt=0.1, outputs=("θ (°C)", "druck.bar"), inputs=("ü",))
    raw = (named, make_series(5, seed=4))
    model = make_model("stacked").with_roles("sample", "*")
    made = make_posterior(raw, model, notes=("ρ̂ > 1.01", "zweite\nZeile"), seed=np.int64(4))
    made.save(str(tmp_path / "größe.nc"))
    assert_same_posterior(made, gpssm.load(str(tmp_path / "größe.nc")))


def test_no_controls_and_no_free_leaves(tmp_path):
    model = make_model(input_dim=0).with_roles("fix", "*")
    made = make_posterior((make_series(7, input_dim=0),), model)
    made.save(tmp_path / "run.nc")
    again = gpssm.load(tmp_path / "run.nc")
    assert_same_posterior(made, again)
    assert again.draws.leaves == {}
    assert again.raw[0].u.shape == (7, 0)


def test_special_values_and_a_cloud(posterior, tmp_path):
    posterior.draws.weights[0, 0] = [[np.nan, np.inf, -np.inf, -0.0, 5e-324, 1 / 3]] * 2
    rng = np.random.default_rng(0)
    particles, log_weights = rng.normal(size=(CHAINS, DRAWS, 4, 2)), rng.normal(size=(CHAINS, DRAWS, 4))
    cloud = CurrentState(particles, log_weights, 12, True, rng.uniform(1, 2, (CHAINS, DRAWS)))
    made = dataclasses.replace(posterior, current=cloud)
    made.save(tmp_path / "run.nc")
    assert_same_posterior(made, gpssm.load(tmp_path / "run.nc"))


def test_arrays_large_enough_to_be_compressed(tmp_path):
    made = make_posterior((make_series(600),), make_model(), draws=10)
    made.save(tmp_path / "run.nc")
    assert_same_posterior(made, gpssm.load(tmp_path / "run.nc"))
    with h5netcdf.File(tmp_path / "run.nc", "r") as file:
        assert file["draws/states.0"].compression == "gzip"
        assert file["draws/weights"].compression is None


def test_a_fit_forecasts_the_same_after_loading(tmp_path):
    rng = np.random.default_rng(1)
    u = rng.normal(size=(41, 1))
    y = np.convolve(u[:, 0], [0.5, 0.3, 0.1])[:41, None] + 0.1 * rng.normal(size=(41, 1))
    made = gpssm.fit(
        gpssm.Series(y[:40], u[:40]), state_dim=2, num_inducing=8, num_warmup=20, num_draws=10, num_chains=2,
        progress=False,
    )  # fmt: skip
    made.save(tmp_path / "run.nc")
    again = gpssm.load(tmp_path / "run.nc")
    assert_same_posterior(made, again)
    paths, loaded = (one.forecast(u=u[40:], num_paths=20).paths for one in (made, again))
    np.testing.assert_array_equal(paths, loaded)


def wave(x, u):
    return jnp.sin(x)


def test_a_users_functions_are_handed_over(tmp_path):
    plain = make_model()
    own = GPSSM.create(plain.kernel, plain.basis, Function(wave), Custom(wave), jnp.ones(2))
    made = make_posterior((make_series(7),), own)
    path = tmp_path / "run.nc"
    made.save(path)
    parts = {"mean.function": wave, "likelihood.function": wave}
    assert_same_posterior(made, gpssm.load(path, parts=parts))
    with pytest.raises(ValueError, match=r"likelihood.function was test_storage.wave.*parts="):
        gpssm.load(path, parts={"mean.function": wave})
    with pytest.raises(KeyError, match=r"no part mean.fonction.*mean.function"):
        gpssm.load(path, parts=parts | {"mean.fonction": wave})


def test_other_tools_can_read_it(posterior, saved):
    with xr.open_dataset(saved, group="draws", engine="h5netcdf") as draws:
        assert draws["states.0"].dims == ("chain", "draw", "time", "state")
        assert draws["weights"].dims == ("chain", "draw", "state", "inducing")
        np.testing.assert_array_equal(draws["weights"], posterior.draws.weights)
    with xr.open_datatree(saved, engine="h5netcdf") as tree:
        assert tree.attrs["gpssm_version"] == gpssm.__version__
        assert {"jax_version", "numpy_version", "created", "data_hash"} <= set(tree.attrs)
        assert json.loads(tree.attrs["config"]) == {"dict": {"method": "ffvd"}}
        assert json.loads(tree.attrs["seed"]) == 3


def test_an_existing_file_is_replaced_only_when_told(posterior, saved):
    before = saved.read_bytes()
    with pytest.raises(FileExistsError, match="overwrite=True"):
        posterior.save(saved)
    assert saved.read_bytes() == before
    dataclasses.replace(posterior, seed=99).save(saved, overwrite=True)
    assert gpssm.load(saved).seed == 99


def test_a_full_disk_leaves_the_old_file(posterior, saved, monkeypatch):
    before = saved.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"run\.nc could not be written \(No space left") as caught:
        posterior.save(saved, overwrite=True)
    assert caught.value.errno == errno.ENOSPC
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == ["run.nc"]


def test_a_folder_that_is_not_there(posterior, tmp_path):
    with pytest.raises(FileNotFoundError, match="could not be written"):
        posterior.save(tmp_path / "nowhere" / "run.nc")
    with pytest.raises(FileNotFoundError, match="no such file"):
        gpssm.load(tmp_path / "run.nc")


def test_not_a_netcdf_file(tmp_path):
    for content in (b"", b"CDF\x01", b"t,y\n0,1\n"):
        (tmp_path / "run.nc").write_bytes(content)
        with pytest.raises(ValueError, match="not a netCDF-4 file"):
            gpssm.load(tmp_path / "run.nc")


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9, 0.999])
def test_a_truncated_file(saved, share):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match="damaged"):
        gpssm.load(saved)


def test_a_file_of_another_program(tmp_path):
    xr.Dataset({"y": ("time", np.arange(3.0))}).to_netcdf(tmp_path / "other.nc", engine="h5netcdf")
    with pytest.raises(ValueError, match="another program"):
        gpssm.load(tmp_path / "other.nc")


def damage(path, change):
    with h5netcdf.File(path, "a") as file:
        change(file)


def test_a_newer_format(saved):
    damage(saved, lambda file: file.attrs.__setitem__("format_version", storage.VERSION + 1))
    with pytest.raises(ValueError, match="Upgrade gpssm"):
        gpssm.load(saved)


CHANGES = {
    "an array without a variable": lambda file: file["draws"]._h5group.__delitem__("weights"),
    "a field without a group": lambda file: file._h5group.__delitem__("info"),
    "a field without a description": lambda file: file.attrs.__delitem__("raw"),
    "a changed number": lambda file: file["raw/0.y"].__setitem__((0, 0), 1.25),
    "a changed description": lambda file: file.attrs.__setitem__("seed", "4"),
    "no hash": lambda file: file.attrs.__delitem__("content_hash"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file(saved, change):
    damage(saved, CHANGES[change])
    with pytest.raises(ValueError, match="damaged"):
        gpssm.load(saved)


def test_flipped_bytes_are_found_or_do_no_harm(posterior, saved, tmp_path):
    content, errors = saved.read_bytes(), []
    for position in np.linspace(0, len(content) - 1, 60).astype(int):
        changed = bytearray(content)
        changed[position] ^= 0x40
        (tmp_path / "changed.nc").write_bytes(changed)
        try:
            again = gpssm.load(tmp_path / "changed.nc")
        except ValueError as error:
            errors.append(error)  # and with it all that its traceback holds open
            continue
        assert_same_posterior(posterior, again)
    assert len(errors) > 30
    (tmp_path / "changed.nc").write_bytes(content)
    assert_same_posterior(posterior, gpssm.load(tmp_path / "changed.nc"))


def test_the_library_imports_without_what_files_and_exports_need():
    lazy = ("h5netcdf", "h5py", "xarray", "arviz_base", "pandas")
    check = f"import gpssm.posterior, sys; print([name for name in {lazy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
