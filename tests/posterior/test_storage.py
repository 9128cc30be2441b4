"""Posteriors in files: exact round trips, no code, and detection of invalid files."""

import dataclasses
import errno
import itertools
import json
import os

import equinox as eqx
import h5netcdf
import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import gpssm
from builders import BASIS_NAMES, make_basis, make_model, make_series
from gpssm.data.dataset import Dataset
from gpssm.data.scaler import Scaler
from gpssm.data.series import Series
from gpssm.methods import METHODS
from gpssm.methods.spec import Spec
from gpssm.model.kernels import KERNELS, Active, Polynomial, make_kernel
from gpssm.model.likelihoods import (
    LIKELIHOODS,
    LINKS,
    Custom,
    FunctionGaussian,
    Link,
    LinkedGaussian,
    make_likelihood,
)
from gpssm.model.means import MEANS, Function, Identity, LinearMap, Zero
from gpssm.model.model import GPSSM
from gpssm.model.priors import InverseGamma, Normal
from gpssm.model.types import Draw, Info
from gpssm.posterior import storage
from gpssm.posterior.descriptions import CLASSES, describe, restore, user_parts
from gpssm.posterior.draws import CurrentState, FilterState, Seconds
from gpssm.posterior.posterior import Posterior
from programs import run_program

STATE_DIM, INPUT_DIM, OUTPUT_DIM = 2, 1, 2
DIM = STATE_DIM + INPUT_DIM


def there_and_back(thing, parts=None):
    description, arrays = describe(thing)
    return restore(json.loads(json.dumps(description)), arrays, parts)


def assert_same(first, second):
    """The same tree with the same static values, and the same arrays: kind, dtype, weak type and every bit."""
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for left, right in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert type(left) is type(right)
        if isinstance(left, np.ndarray | np.generic | jax.Array):
            assert (left.dtype, left.shape) == (right.dtype, right.shape)
            assert getattr(left, "weak_type", None) == getattr(right, "weak_type", None)
            assert np.asarray(left).tobytes() == np.asarray(right).tobytes()
        else:
            assert left is right or left == right


def with_parts(**parts):
    plain = make_model(state_dim=STATE_DIM, input_dim=INPUT_DIM, output_dim=OUTPUT_DIM)
    own = {
        name: parts.get(name, getattr(plain, name))
        for name in ("kernel", "basis", "mean", "likelihood")
    }
    return GPSSM.create(**own, process_std=jnp.array([0.1, 0.2]))


def likelihood(name):
    return make_likelihood(
        name, jnp.ones((OUTPUT_DIM, STATE_DIM)) / 3, jnp.arange(2.0), jnp.array([0.1, 0.7])
    )


KERNEL_SPECS = (*KERNELS, "se+linear*periodic")


@pytest.mark.parametrize("spec", KERNEL_SPECS)
def test_every_kernel(spec):
    model = with_parts(kernel=make_kernel(spec, STATE_DIM, DIM, variance=0.3, lengthscale=1.7))
    assert_same(model, there_and_back(model))


def test_kernels_on_some_coordinates_and_with_settings_of_their_own():
    cubic = Polynomial(jnp.zeros(STATE_DIM), jnp.ones((STATE_DIM, 2)), degree=3)
    model = with_parts(kernel=Active(cubic, (0, 2)) + Active(make_kernel("rq", STATE_DIM, 1), (1,)))
    again = there_and_back(model)
    assert_same(model, again)
    assert again.kernel.left.inner.degree == 3
    assert again.kernel.left.dims == (0, 2)


@pytest.mark.parametrize("name", BASIS_NAMES)
def test_every_basis(name):
    model = with_parts(basis=make_basis(name, STATE_DIM, INPUT_DIM))
    assert_same(model, there_and_back(model))


def drag(x, u):
    return 0.9 * x - 0.1 * x**3


MEAN_PARTS = {
    "identity": Identity(),
    "zero": Zero(),
    "linear": LinearMap(jnp.eye(2), jnp.ones((2, 1)), jnp.zeros(2)),
    "function": Function(drag),
}


@pytest.mark.parametrize("name", MEANS)
def test_every_mean(name):
    model = with_parts(mean=MEAN_PARTS[name])
    assert_same(
        model, there_and_back(model, {"mean.function": drag} if name == "function" else None)
    )


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_every_likelihood(name):
    model = with_parts(likelihood=likelihood(name))
    assert_same(model, there_and_back(model))


def test_links_of_the_library_go_by_name_and_are_the_same_objects():
    for name, link in LINKS.items():
        description, arrays = describe(link)
        assert description == {"link": name}
        assert restore(description, arrays) is link


def test_priors_and_roles():
    model = make_model().with_roles("sample", "kernel.*").with_roles("fix", "likelihood.*")
    model = model.with_priors(
        {"likelihood.C": Normal(jnp.ones((2, 2)), 0.3), "log_process_std": InverseGamma(2.0, 1)}
    )
    again = there_and_back(model)
    assert_same(model, again)
    assert again.roles == model.roles


def test_integers_booleans_single_precision_and_special_values_keep_every_bit():
    special = np.array([np.nan, -np.nan, np.inf, -0.0, 5e-324, 1 / 3, np.nextafter(1, 2)])
    thing = {
        "special": special,
        "single": jnp.arange(3, dtype=jnp.float32) / 3,
        "int": np.arange(4, dtype=np.int16).reshape(2, 2),
        "bool": (jnp.array([True, False]), np.bool_(True)),
        "numbers": [np.float64(0.1), np.int32(7), 0.1, -0.0, 2**70, True, None, "ünï"],
        "weak": (jnp.asarray(2), jnp.asarray(0.1)),
        "empty": (np.zeros((3, 0)), jnp.zeros((0,), jnp.int32)),
    }
    assert_same(thing, there_and_back(thing))


def test_a_number_made_in_single_precision_stays_single():
    with jax.enable_x64(False):
        prior = Normal(0.1, 1.0)
    again = there_and_back(prior)
    assert again.mean.dtype == jnp.float32
    assert_same(prior, again)


def test_a_series_keeps_its_names_and_gaps():
    series = Series(
        [[1.0, np.nan], [2.0, 3.0]], name="küche", dt=0.1, outputs=("θ °C", "b"), window=1
    )
    assert there_and_back(series) == series


def test_names_with_dots_and_slashes_of_their_own_do_not_clash():
    thing = {"a.b": np.ones(2), "a": {"b": np.zeros(3)}, "c/d": np.arange(2)}
    description, arrays = describe(thing)
    assert len(arrays) == 3
    assert not any("/" in name for name in arrays)
    assert_same(thing, restore(description, arrays))


class Spring(eqx.Module):
    stiffness: jax.Array
    order: int = eqx.field(static=True)

    def __call__(self, x, *_):
        return x - self.stiffness * x**self.order


def test_what_a_users_function_has_learned_is_stored_and_its_code_is_not():
    model = with_parts(mean=Function(Spring(jnp.array([0.3, 0.4]), 3)))
    assert "mean.function.stiffness" in describe(model)[1]
    fresh = Spring(jnp.zeros(2), 3)
    assert_same(model, there_and_back(model, {"mean.function": fresh}))
    with pytest.raises(ValueError, match=r"'mean.function'.*Spring.*\(2,\).*\(5,\)"):
        there_and_back(model, {"mean.function": Spring(jnp.zeros(5), 3)})


def test_a_users_own_kernel_is_a_part():
    class Constant(type(make_kernel("se", 1, 1))):
        def correlation(self, squared_distance):
            return jnp.ones_like(squared_distance)

    model = with_parts(kernel=Constant.build(STATE_DIM, DIM, variance=0.2))
    assert list(user_parts(describe(model)[0])) == ["kernel"]
    assert_same(model, there_and_back(model, {"kernel": Constant.build(STATE_DIM, DIM)}))


def test_missing_parts_are_named_all_at_once():
    own = LinkedGaussian(
        C=jnp.ones((2, 2)), d=jnp.zeros(2), log_std=jnp.zeros(2), link=Link(jnp.sin, jnp.arcsin)
    )
    model = with_parts(mean=Function(drag), likelihood=own)
    parts = {
        "mean.function": drag,
        "likelihood.link.forward": jnp.sin,
        "likelihood.link.inverse": jnp.arcsin,
    }
    assert_same(model, there_and_back(model, parts))
    with pytest.raises(ValueError, match=r"mean.function was test_storage.drag.*parts=") as caught:
        there_and_back(model)
    assert all(name in str(caught.value) for name in parts)


@pytest.mark.parametrize(
    ("own", "names"),
    [
        (FunctionGaussian(log_std=jnp.zeros(2), function=jnp.sin), ["likelihood.function"]),
        (Custom(drag, None, jnp.cos), ["likelihood.function", "likelihood.sampler"]),
    ],
)
def test_likelihoods_with_users_functions(own, names):
    model = with_parts(likelihood=own)
    assert list(user_parts(describe(model)[0])) == names
    functions = {name: getattr(own, name.split(".")[1]) for name in names}
    assert_same(model, there_and_back(model, functions))


def test_only_classes_of_the_table_can_be_made():
    assert all(cls.__module__.startswith("gpssm.") for cls in CLASSES.values())
    for name in ("os.system", "builtins.eval", "subprocess.Popen", "kernels.Unheard"):
        with pytest.raises(ValueError, match="no class"):
            restore({"class": name, "fields": {}}, {})


def test_what_cannot_be_stored_is_refused_by_name():
    with pytest.raises(TypeError, match=r"a\.1 is a complex"):
        describe({"a": [1.0, 1j]})


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
    defaults = {"spec": Spec(), "seconds": Seconds(0.1, 0.2, 0.3), "seed": 3}
    dataset = Dataset(tuple(raw), scaler)
    return Posterior(
        model, drawn, make_info(rng, draws), make_info(rng, WARMUP), dataset, **(defaults | fields)
    )


def fields(posterior):
    return {field.name: getattr(posterior, field.name) for field in dataclasses.fields(Posterior)}


def assert_same_posterior(first, second):
    assert type(first) is type(second) is Posterior
    one, other = fields(first), fields(second)
    for name in one.keys() - {"dataset"}:
        assert_same(one[name], other[name])
    assert one["dataset"] == other["dataset"]  # the names are not part of a series' tree
    assert_same(one["dataset"].experiments, other["dataset"].experiments)


@pytest.fixture
def posterior():
    return make_posterior((make_series(7),), make_model())


@pytest.fixture
def saved(posterior, tmp_path):
    posterior.save(tmp_path / "run.nc")
    return tmp_path / "run.nc"


def test_a_file_that_is_replaced_while_it_is_read_is_read_as_it_was(posterior, saved, monkeypatch):
    read_tree = storage.read_tree

    def late(source, path):
        dataclasses.replace(posterior, seed=posterior.seed + 1).save(path, overwrite=True)
        return read_tree(source, path)

    monkeypatch.setattr(storage, "read_tree", late)
    assert gpssm.load(saved).seed == posterior.seed
    monkeypatch.setattr(storage, "read_tree", read_tree)
    assert gpssm.load(saved).seed == posterior.seed + 1


def test_the_settings_of_every_method():
    for name in METHODS:
        spec = Spec(method=name)
        assert there_and_back(spec.plain()) == spec


def test_several_series_gaps_two_outputs_names_and_notes(tmp_path):
    gaps = make_series(9, missing=True)
    named = dataclasses.replace(
        gaps, name="Küche 1/2", dt=0.1, outputs=("θ (°C)", "druck.bar"), inputs=("ü",)
    )
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
    assert again.dataset.experiments[0].u.shape == (7, 0)


def test_arrays_whose_dtype_came_from_a_file(tmp_path):
    """As SciPy reads .mat files: equal to NumPy's own dtype, but by another name."""
    plain = make_series(7)
    foreign = np.dtype(">f8").newbyteorder("<")
    series = Series(plain.y.astype(foreign), plain.u.astype(foreign))
    assert repr(series.y.dtype) != repr(np.dtype(float))
    make_posterior((series,), make_model()).save(tmp_path / "posterior.nc")
    np.testing.assert_array_equal(
        gpssm.load(tmp_path / "posterior.nc").dataset.experiments[0].y, plain.y
    )


def test_special_values_and_a_cloud(posterior, tmp_path):
    posterior.draws.weights[0, 0] = [[np.nan, np.inf, -np.inf, -0.0, 5e-324, 1 / 3]] * 2
    rng = np.random.default_rng(0)
    shapes = [(2,), (2, 2), (), (4, 2), (4,)]
    state = FilterState(*(rng.normal(size=(CHAINS, DRAWS, *shape)) for shape in shapes))
    made = dataclasses.replace(posterior, current=CurrentState(state, 12, None, np.zeros((0, 1))))
    made.save(tmp_path / "run.nc")
    with pytest.warns(UserWarning, match="1 of 10 draws are not finite, in chain 0"):
        assert_same_posterior(made, gpssm.load(tmp_path / "run.nc"))


def test_arrays_large_enough_to_be_compressed(tmp_path):
    made = make_posterior((make_series(600),), make_model(), draws=10)
    made.save(tmp_path / "run.nc")
    assert_same_posterior(made, gpssm.load(tmp_path / "run.nc"))
    with h5netcdf.File(tmp_path / "run.nc", "r") as file:
        assert file["posterior/states"].compression == "gzip"
        assert file["posterior/weights"].compression is None


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
    with pytest.raises(KeyError, match=r"the parts mean.fonction.*mean.function"):
        gpssm.load(path, parts=parts | {"mean.fonction": wave})


def test_other_tools_can_read_it(posterior, saved):
    with xr.open_datatree(saved, engine="h5netcdf") as tree:
        draws = tree["posterior"]
        assert draws["states"].dims == ("chain", "draw", "time", "state")
        assert draws["weights"].dims == ("chain", "draw", "state", "inducing")
        np.testing.assert_array_equal(draws["weights"], posterior.draws.weights)
        assert tree["sample_stats"]["diverging"].dtype == bool
        np.testing.assert_array_equal(
            tree["observed_data"]["y"], posterior.dataset.experiments[0].y
        )
        assert tree.attrs["gpssm_version"] == gpssm.__version__
        assert {"jax_version", "numpy_version", "created", "data_hash"} <= set(tree.attrs)
        saved_spec = json.loads(tree.attrs["spec"])["fields"]
        assert saved_spec["state_dim"] == posterior.spec.state_dim
        assert saved_spec["method"]["dict"]["name"] == posterior.spec.method_name
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
    with pytest.raises(FileNotFoundError, match="No such file"):
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


@pytest.mark.parametrize(
    ("step", "remedy"), [(1, "Upgrade gpssm to read it"), (-1, "Load it with that version")]
)
def test_another_format(saved, step, remedy):
    version = storage.VERSION + step
    damage(saved, lambda file: file.attrs.__setitem__("format_version", version))
    with pytest.raises(ValueError, match=rf"has format {version}, written by gpssm.*{remedy}"):
        gpssm.load(saved)


CHANGES = {
    "an array without a variable": lambda file: file["posterior"]._h5group.__delitem__("weights"),
    "a field without a group": lambda file: file._h5group.__delitem__("sample_stats"),
    "a field without a description": lambda file: file.attrs.__delitem__("dataset"),
    "a changed number": lambda file: file["observed_data/y"].__setitem__((0, 0), 1.25),
    "a changed description": lambda file: file.attrs.__setitem__("seed", "4"),
    "no checksum": lambda file: file.attrs.__delitem__("checksum"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file(saved, change):
    damage(saved, CHANGES[change])
    with pytest.raises(ValueError, match="damaged"):
        gpssm.load(saved)


def alterations(path):
    """Edits of an open file by name: of numbers, types, names, places and attributes."""
    with h5py.File(path) as file:
        shapes = {}
        file.visititems(lambda name, item: shapes.update({name: getattr(item, "shape", None)}))
        arrays = {
            name: file[name][...]
            for name, shape in shapes.items()
            if shape is not None and file[name].attrs.get("CLASS") != b"DIMENSION_SCALE"
        }
        groups = [name for name, shape in shapes.items() if shape is None]
        attributes = dict(file.attrs)

    def replaced(name, array):
        def edit(file):
            del file[name]
            file[name] = array

        return edit

    for name, array in arrays.items():
        other = np.asarray(array).copy()
        other.flat[-1] = 1 - other.flat[-1]
        yield f"{name}: the last number", lambda file, n=name, o=other: file[n].write_direct(o)
        if np.any(array[..., ::-1] != array if array.ndim else False):
            reverse = np.ascontiguousarray(array[..., ::-1])
            yield f"{name}: reversed", lambda file, n=name, o=reverse: file[n].write_direct(o)
        yield f"{name}: as long doubles", replaced(name, np.asarray(array, np.longdouble))
        yield f"{name}: without names of axes", replaced(name, array)
        yield f"{name}: one axis more", replaced(name, array[None])
        yield f"{name}: gone", lambda file, n=name: file.__delitem__(n)
        yield f"{name}: another name", lambda file, n=name: file.move(n, f"{n}_other")
        yield f"{name}: an attribute", lambda file, n=name: file[n].attrs.update(units="m")
        yield f"{name}: copied", lambda file, n=name: file.copy(n, f"{n}_copy")
    for first, second in itertools.combinations(arrays, 2):
        one, two = arrays[first], arrays[second]
        if one.shape == two.shape and one.dtype == two.dtype and one.tobytes() != two.tobytes():

            def swap(file, first=first, second=second):
                file.move(first, "swap")
                file.move(second, first)
                file.move("swap", second)

            yield f"{first} and {second} swapped", swap
    for name in groups:
        yield f"{name}: gone", lambda file, n=name: file.__delitem__(n)
        yield f"{name}: another name", lambda file, n=name: file.move(n, f"{n}_other")
        yield f"{name}: an attribute", lambda file, n=name: file[n].attrs.update(units="m")
        yield f"{name}: a group in it", lambda file, n=name: file.create_group(f"{n}/other")
    yield "an empty group", lambda file: file.create_group("other")
    yield "an attribute", lambda file: file.attrs.update(other=1)
    for name, value in attributes.items():
        yield f"attribute {name}: gone", lambda file, n=name: file.attrs.__delitem__(n)
        for other in (f"{value} ", str(value)[:-1], "null", 7, "[]"):
            if str(other) != str(value):
                yield (
                    f"attribute {name}: {other!s:.20}",
                    lambda file, n=name, o=other: file.attrs.__setitem__(n, o),
                )


def test_every_altered_file_is_refused_or_as_it_was(tmp_path):
    raw = (make_series(5), make_series(5, seed=4))
    posterior = make_posterior(raw, make_model().with_roles("sample", "*"), draws=2)
    path = tmp_path / "run.nc"
    posterior.save(path)
    content = path.read_bytes()
    refusals = {}
    # Every fourth of some 830, to save time.
    for name, edit in itertools.islice(alterations(path), 0, None, 4):
        path.write_bytes(content)
        with h5py.File(path, "a") as file:
            edit(file)
        try:
            again = gpssm.load(path)
        except ValueError as error:
            refusals[name] = str(error)
        else:
            assert_same_posterior(posterior, again)
            refusals[name] = None
    assert len(refusals) > 200
    harmless = {name for name, refusal in refusals.items() if refusal is None}
    # A number has no axes, and the version of the writer is no attribute of netCDF.
    expected = ("without names of axes", "a group in it")
    assert all(name.endswith(expected) or "_NCProperties" in name for name in harmless)
    words = ("checksum does not match", "another program", "has format", "is damaged")
    assert all(any(word in refusals[name] for word in words) for name in refusals.keys() - harmless)


def test_flipped_bytes_are_found_or_do_no_harm(posterior, saved, tmp_path):
    content, errors = saved.read_bytes(), []
    for position in np.linspace(0, len(content) - 1, 30).astype(int):
        changed = bytearray(content)
        changed[position] ^= 0x40
        (tmp_path / "changed.nc").write_bytes(changed)
        try:
            again = gpssm.load(tmp_path / "changed.nc")
        except ValueError as error:
            errors.append(error)  # and with it all that its traceback holds open
            continue
        assert_same_posterior(posterior, again)
    assert len(errors) > 15
    (tmp_path / "changed.nc").write_bytes(content)
    assert_same_posterior(posterior, gpssm.load(tmp_path / "changed.nc"))


def forge(path, attributes=None, **arrays):
    """Change descriptions or numbers of a file, and make the checksum fit, as a stranger could."""
    with h5netcdf.File(path, "a") as file:
        file.attrs.update(attributes or {})
        for name, value in arrays.items():
            group, variable = name.split("/")
            file[group].variables[variable][...] = value
    with open(path, "rb") as source:
        checksum = storage.checksum(storage.read_tree(source, path))
    damage(path, lambda file: file.attrs.__setitem__("checksum", checksum))


def retold(change):
    def text(description):
        changed = json.loads(description)
        change(changed)
        return json.dumps(changed)

    return text


FORGED = {
    "not JSON": ("seed", lambda text: text + "}"),
    "another type": ("seed", lambda text: '"three"'),
    "no tag": ("model", lambda text: "{}"),
    "deep": ("spec", lambda text: "[" * 100_000 + "]" * 100_000),
    "a part that is none": ("info", lambda text: '{"dict": 3}'),
    "a class without its fields": ("model", retold(lambda found: found["fields"].pop("kernel"))),
    "a class of another kind": (
        "model",
        retold(lambda found: found["fields"].update(kernel=found["fields"]["mean"])),
    ),
    "an unknown array": (
        "draws",
        retold(lambda found: found["fields"]["weights"].update(array="nothing")),
    ),
    "an array that is none": (
        "draws",
        retold(lambda found: found["fields"]["weights"].update(shape=[10**9, 10**9])),
    ),
    "text of a petabyte": (
        "draws",
        retold(lambda found: found["fields"]["weights"].update(dtype=f"<U{2**30}")),
    ),
    "an unknown link": ("notes", lambda text: '{"link": "nothing"}'),
    "a scaler without spread": (
        "dataset",
        retold(
            lambda found: found["fields"]["scaler"]["fields"]["output_std"]["tuple"].append(0.0)
        ),
    ),
    "no method": ("spec", retold(lambda found: found["fields"].update(method={"dict": {}}))),
    "a size that is none": ("spec", retold(lambda found: found["fields"].update(state_dim=-1))),
    "no series": (
        "dataset",
        retold(lambda found: found["fields"].update(experiments={"tuple": []})),
    ),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_description_is_refused_in_our_words(saved, case):
    field, change = FORGED[case]
    with h5py.File(saved, "r") as file:
        text = file.attrs[field]
    forge(saved, {field: change(text)})
    with pytest.raises(ValueError, match=rf"run\.nc is damaged \(.*{field}"):
        gpssm.load(saved)


def test_draws_must_have_some_that_are_finite(saved):
    forge(saved, **{"posterior/weights": np.nan})
    with pytest.raises(ValueError, match=r"run\.nc is damaged \(.*no finite draw"):
        gpssm.load(saved)


def test_numbers_of_the_model_must_be_finite(saved):
    forge(saved, **{"model/log_process_std": np.array([0.0, np.inf])})
    with pytest.raises(ValueError, match=r"model\.log_process_std is not finite"):
        gpssm.load(saved)


def test_an_array_that_claims_petabytes_is_never_made(saved):
    with h5py.File(saved, "a") as file:
        del file["posterior"]["weights"]
        file["posterior"].create_dataset("weights", (2**25, 2**25), "f8", chunks=(1024, 1024))
    with pytest.raises(ValueError, match=r"/posterior/weights claims \(33554432, 33554432\)"):
        gpssm.load(saved)


def test_the_library_imports_without_what_files_and_exports_need():
    lazy = ("h5netcdf", "h5py", "xarray", "arviz_base", "arviz_stats", "pandas")
    assert run_program("loaded", "gpssm:fit,load", *lazy) == "[]\n"
