"""Posteriors as trees of arrays, stored exactly in netCDF files or handed to ArviZ.

A tree uses the groups and names of ArviZ where they exist, and a group for each other field of
`Posterior` with arrays:

    posterior            states, weights, and the parameters that vary by their dotted names
    sample_stats         lp, acceptance_rate, diverging, energy, n_steps
    warmup_sample_stats  the same of the warm-up
    observed_data        y, in the user's units
    constant_data        u
    model, current, ...  arrays by their dotted names

If there are several experiments, names include their number: states_0, states_1, ... An attribute
for each field describes in JSON how it is assembled from its arrays (`descriptions.py`). Other
attributes are the format, the versions of the software, and a checksum of all arrays, names and
attributes. Any netCDF tool can read the files:

    xarray.open_datatree("run.nc")["posterior"]["weights"]  # (chain, draw, state, inducing)

Files may come from strangers or have been edited. No code in a file is run, no array is allocated
that is larger than the file can hold, and unless types, shapes and values are those of a valid
posterior, the file is rejected with the name of the invalid part.
"""

import datetime
import functools
import importlib.metadata
import io
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import gpssm
from gpssm.core.arguments import check_arguments
from gpssm.core.files import check_target, digest, write_atomically
from gpssm.core.messages import warn
from gpssm.core.runtime import in_double_precision
from gpssm.core.text import check_path, demand, demand_shape
from gpssm.data.clock import Clock
from gpssm.data.dataset import Dataset
from gpssm.data.series import Series
from gpssm.methods.spec import Spec
from gpssm.model.likelihoods import Custom, GaussianNoise
from gpssm.model.model import GPSSM
from gpssm.model.types import Draw, Info
from gpssm.posterior.calibration import Calibration
from gpssm.posterior.descriptions import Arrays, NotAsSaved, describe, restore, user_parts
from gpssm.posterior.draws import (
    CurrentState,
    FilterState,
    Learned,
    Seconds,
    check_states,
    map_draws,
    split_chains,
)
from gpssm.posterior.forecast import smooth

if TYPE_CHECKING:
    import xarray as xr

    from gpssm.posterior.posterior import Posterior

FORMAT = "gpssm posterior"
VERSION = 3
SIGNATURE = b"\x89HDF\r\n\x1a\n"

# What each field of a posterior is.
FIELDS: dict[str, tuple[type, ...]] = {
    "model": (GPSSM,),
    "draws": (Draw,),
    "info": (Info,),
    "warmup": (Info,),
    "dataset": (Dataset,),
    "spec": (Spec,),
    "comparison": (tuple,),
    "seconds": (Seconds,),
    "seed": (int, np.integer),
    "notes": (tuple,),
    "current": (type(None), CurrentState),
    "calibration": (type(None), Calibration),
    "learned": (type(None), Learned),
}

# Groups and names of ArviZ.
STATISTICS = {"info": "sample_stats", "warmup": "warmup_sample_stats"}
NAMES = {
    "log_target": "lp",
    "acceptance": "acceptance_rate",
    "divergent": "diverging",
    "gradients": "n_steps",
}
# Leading axes of all arrays of a group, and the axes of an array by a part of its name.
LEADING = dict.fromkeys(
    ("posterior", *STATISTICS.values(), "current", "learned"), ("chain", "draw")
)
AXES = {
    "states": ("time", "state"),
    "weights": ("state", "inducing"),
    "covariance": ("component", "other_component"),
    "particles": ("particle", "state"),
    "log_weights": ("particle",),
    "y": ("time", "output"),
    "u": ("time", "input"),
    "past": ("time", "input"),
    "log_process_std": ("state",),
    "log_variance": ("state",),
    "log_lengthscale": ("state", "coordinate"),
    "locations": ("inducing", "coordinate"),
    "frequencies": ("frequency", "coordinate"),
    "indices": ("inducing", "coordinate"),
    "center": ("coordinate",),
    "half_width": ("coordinate",),
    "log_scale": ("state", "feature"),
    "transition": ("state", "previous"),
    "input_map": ("state", "input"),
    "offset": ("state",),
    "C": ("output", "state"),
    "d": ("output",),
    "log_std": ("output",),
    "log_excess": ("output",),
    "factors": ("step", "output"),
    "coverage": ("step", "output"),
    "effective": ("step",),
}


def save(posterior: "Posterior", path: str | Path, *, overwrite: bool = False) -> None:
    """Save the posterior exactly in a netCDF file for `gpssm.load`.

    The file is written atomically. User-defined functions (a mean, a likelihood, a link) are saved
    only by name and must be passed to `load`.

    Parameters
    ----------
    posterior
        The posterior.
    path
        The file.
    overwrite
        Whether to replace an existing file.
    """
    target = check_target(path, overwrite)
    image = to_bytes(to_tree(posterior))
    write_atomically(target, lambda file: file.write(image))


def read(path: str | Path, parts: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the fields of `Posterior` from a file.

    Parameters
    ----------
    path
        A file written by `save`.
    parts
        User-defined functions of the model by dotted name.
    """
    if not (parts is None or isinstance(parts, Mapping)):
        raise TypeError(
            f"parts must be a dictionary of user-defined functions by dotted name; got {parts!r}"
        )
    path = check_path(path)
    try:
        # Opened only once, as another process may replace the file in the meantime.
        with open(path, "rb") as file:
            return read_open(file, path, parts)
    except OSError as error:
        message = f"{path} cannot be opened ({error.strerror}); posterior.save(path) writes files"
        raise type(error)(error.errno, message) from None


def read_open(file: BinaryIO, path: Path, parts: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the fields of `Posterior` from an open file.

    Parameters
    ----------
    file
        The file.
    path
        Its path, for messages.
    parts
        As in `read`.
    """
    if file.read(len(SIGNATURE)) != SIGNATURE:
        raise ValueError(
            f"{path} is not a netCDF-4 file. Pass the path of a file written by posterior.save."
        )
    tree = read_tree(file, path)
    if tree.attrs.get("checksum") != checksum(tree):
        raise _damaged(
            path, "its checksum does not match: arrays, names or attributes were changed"
        )
    return from_tree(tree, path, parts)


def to_tree(posterior: "Posterior") -> "xr.DataTree":
    """Return a posterior as a tree of arrays."""
    import xarray as xr

    arrays: Arrays = {}
    descriptions: dict[str, str] = {}
    numbered = len(posterior.dataset.experiments) > 1
    for field in FIELDS:
        value = posterior.spec.plain() if field == "spec" else getattr(posterior, field)
        description, parts = describe(value, functools.partial(_locate, field, numbered))
        descriptions[field] = json.dumps(description)
        arrays |= parts
    groups: dict[str, Arrays] = {}
    for name, array in arrays.items():
        group, _, variable = name.partition("/")
        groups.setdefault(group, {})[variable] = array
    tree = xr.DataTree.from_dict(
        {group: _dataset(group, variables) for group, variables in groups.items()}
    )
    versions = {f"{name}_version": importlib.metadata.version(name) for name in ("jax", "numpy")}
    tree.attrs = {
        "format": FORMAT,
        "format_version": VERSION,
        "gpssm_version": gpssm.__version__,
        **versions,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "data_hash": digest(list(posterior.dataset.experiments)),
        **descriptions,
    }
    tree.attrs["checksum"] = checksum(tree)
    return tree


def from_tree(
    tree: "xr.DataTree", path: Path, parts: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the fields of a posterior from a tree, or raise if they are invalid.

    Parameters
    ----------
    tree
        The tree.
    path
        The file of the tree, for messages.
    parts
        User-defined functions of the model by dotted name.
    """
    arrays = {
        f"{node.name}/{name}": variable.values
        for node in tree.children.values()
        for name, variable in node.variables.items()
    }
    descriptions = {}
    needed = set()
    for field in FIELDS:
        with _damage(path, f"its part {field!r} has no description"):
            descriptions[field] = json.loads(tree.attrs[field])
            needed |= user_parts(descriptions[field]).keys()
    unknown = set(parts or {}) - needed
    if unknown:
        raise KeyError(
            f"{path} does not use the parts {', '.join(sorted(unknown))}. Required parts: "
            f"{', '.join(sorted(needed)) or 'none'}."
        )
    fields = {}
    for field, description in descriptions.items():
        with _damage(path, f"its part {field!r} cannot be assembled"):
            fields[field] = restore(description, arrays, parts)
    with _damage(path, "its parts are inconsistent"):
        finite = _check_fields(fields, traceable=not needed)
    if not finite.all():
        chains = ", ".join(map(str, np.flatnonzero(~finite.all(1))))
        warn(
            f"{path}: {np.sum(~finite)} of {finite.size} draws are not finite, in chain {chains}; "
            "posterior.thinned(chain=k) selects a single chain",
        )
    return fields


def checksum(tree: "xr.DataTree") -> str:
    """Return a hash of all arrays, names and attributes of a tree but the checksum itself."""
    content = {
        node.path: (
            {key: str(value) for key, value in node.attrs.items() if key != "checksum"},
            {
                name: (variable.dims, str(variable.attrs), variable.values)
                for name, variable in node.variables.items()
            },
        )
        for node in tree.subtree
    }
    return digest(content)


def _locate(field: str, numbered: bool, name: str) -> str:
    """Return the group and name in a tree of the array with a dotted name in a field."""
    place = name.split(".")
    # A slash would denote a group of the file.
    group, variable = field, name.replace("/", "|")
    number = f"_{place[1]}" if numbered and len(place) > 1 else ""
    match field, place:
        case "draws", ["states", _]:
            group, variable = "posterior", f"states{number}"
        case "draws", _:
            group, variable = "posterior", variable.removeprefix("leaves.")
        case (("info" | "warmup"), _):
            group, variable = STATISTICS[field], NAMES.get(name, name)
        case "dataset", ["experiments", _, "y"]:
            group, variable = "observed_data", f"y{number}"
        case "dataset", ["experiments", _, "u"]:
            group, variable = "constant_data", f"u{number}"
    return f"{group}/{variable or 'value'}"


def _dataset(group: str, variables: Arrays) -> "xr.Dataset":
    """Return the arrays of a group with names for their axes."""
    import xarray as xr

    sizes: dict[str, int] = {}
    named = {}
    for name, array in variables.items():
        encoding: dict[str, Any] = {"_FillValue": None}
        if array.nbytes >= 2**16:  # compression of smaller ones is not worth its time
            encoding |= {"zlib": True, "complevel": 4, "shuffle": True}
        axes = _name_axes(name, array.shape, sizes, LEADING.get(group, ()))
        named[name] = xr.Variable(axes, array, encoding=encoding)
    return xr.Dataset(named)


def _name_axes(
    name: str, shape: tuple[int, ...], sizes: dict[str, int], leading: tuple[str, ...]
) -> tuple[str, ...]:
    """Return names for the axes of an array: those for a part of its name, or axis_0, axis_1, ...

    Parameters
    ----------
    name, shape
        Name and shape of the array. A number at the end of the name also applies to its time axis.
    sizes
        Sizes of the axes of the group so far, to which those of the array are added. If sizes
        differ, the name includes the size: time, time_40.
    leading
        The leading axes of the arrays of the group.
    """
    if len(shape) < len(leading) or name == "past":  # past inputs are the same for all draws
        leading = ()
    rank = len(shape) - len(leading)
    number = "".join(re.findall(r"_\d+$", name))
    candidates = (AXES.get(part, ()) for part in reversed(name.removesuffix(number).split(".")))
    axes = next(
        (axes for axes in candidates if rank and len(axes) == rank),
        tuple(f"axis_{index}" for index in range(rank)),
    )
    numbered = [axis + number if axis == "time" else axis for axis in (*leading, *axes)]
    names = tuple(
        axis if sizes.get(axis, size) == size else f"{axis}_{size}"
        for axis, size in zip(numbered, shape, strict=True)
    )
    sizes |= zip(names, shape, strict=True)
    return names


def to_bytes(tree: "xr.DataTree") -> bytes:
    """Return the contents of a file with a tree.

    They are assembled in memory, as HDF5 does not handle a full disk.
    """
    import h5netcdf
    from xarray.backends import H5NetCDFStore

    buffer = io.BytesIO()
    with h5netcdf.File(buffer, "w") as file:
        file.attrs.update(tree.attrs)
        for group in tree.children.values():
            group.to_dataset().dump_to_store(H5NetCDFStore(file, group=group.name, mode="a"))
    return buffer.getvalue()


def read_tree(source: BinaryIO, path: Path) -> "xr.DataTree":
    """Return the tree in an open file, or raise if the format is not supported."""
    import h5netcdf
    import h5py
    import xarray as xr
    from xarray.backends import H5NetCDFStore

    # h5py always closes the file; h5netcdf keeps a damaged one open, and HDF5 then returns its
    # contents instead of what is written there later.
    with _damage(path), h5py.File(source, "r") as opened:
        attributes = dict(opened.attrs)
    if attributes.get("format") != FORMAT:
        raise ValueError(
            f"{path} was written by another program. Pass the path of a file written by "
            "posterior.save."
        )
    with _damage(path):
        version = int(np.asarray(attributes["format_version"]).item())
    if version != VERSION:
        remedy = "Upgrade gpssm to read it."
        if version < VERSION:
            remedy = "Load it with that version, or fit and save again."
        raise ValueError(
            f"{path} has format {version}, written by gpssm {attributes.get('gpssm_version')}; "
            f"this is gpssm {gpssm.__version__}, which reads format {VERSION}. {remedy}"
        )
    with _damage(path), h5py.File(source, "r") as opened, h5netcdf.File(opened, "r") as file:
        groups = {}
        for group in file.groups:
            for name in file[group].variables:
                _check_size(opened[f"{group}/{name}"])
            store = H5NetCDFStore(file, group=group)
            groups[group] = xr.open_dataset(
                store, mask_and_scale=False, decode_times=False, decode_coords=False
            ).load()
        tree = xr.DataTree.from_dict(groups)
        tree.attrs = dict(file.attrs)
    return tree


def _check_size(array: Any) -> None:
    """Raise if an array of a file is not numeric, or larger than the file can hold."""
    demand(array.name, array.dtype.kind in "biuf", f"has the type {array.dtype}")
    demand(
        array.name,
        array.nbytes <= 1100 * array.id.get_storage_size(),  # gzip reaches 1 : 1032
        f"claims {array.shape} of {array.dtype}, more than the file can hold",
    )


@contextmanager
def _damage(path: Path, reason: str = "it cannot be read and may be truncated") -> Iterator[None]:
    """Convert all errors of reading into one type, since that of HDF5 depends on the damage."""
    try:
        yield
    except NotAsSaved:
        raise
    except Exception as error:
        raise _damaged(path, f"{reason}: {str(error)[:200] or type(error).__name__}") from error


def _damaged(path: Path, reason: str) -> ValueError:
    return ValueError(f"{path} is damaged ({reason}). Use an intact copy, or fit and save again.")


def _check_fields(fields: Mapping[str, Any], traceable: bool) -> np.ndarray:
    """Raise unless types, shapes and values of the fields are those of a posterior.

    Parameters
    ----------
    fields
        The fields of `Posterior`.
    traceable
        Whether the model has no user-defined part, so that its parts can be evaluated together.

    Returns
    -------
    array (chain, draw)
        Whether each draw is finite.
    """
    for name, kinds in FIELDS.items():
        demand(name, isinstance(fields[name], kinds), f"is a {type(fields[name]).__name__}")
    demand("notes", all(isinstance(note, str) for note in fields["notes"]), "are not text")
    numeric = all(isinstance(value, int | float | np.number) for value in fields["seconds"])
    demand("seconds", numeric, "are no numbers")
    draws, dataset = fields["draws"], fields["dataset"]
    _check_draws(fields)
    axes = draws.weights.shape[:2]
    dim = draws.states[0].shape[-1]
    if (current := fields["current"]) is not None:
        _check_filter("current", current, axes, dim)
        demand("current.clock", isinstance(current.clock, Clock | None), "is no clock")
        past = (max(dataset.delay, default=0), len(dataset.inputs))
        demand_shape("current.past", current.past, *past)
    if (learned := fields["learned"]) is not None:
        _check_filter("learned", learned, axes, dim + math.prod(draws.weights.shape[2:]))
        demand("learned.particles", learned.state.particles is None, "cannot be")
        demand_shape("learned.rates", learned.rates, *axes)
        valid = np.all((learned.rates > 0) & (learned.rates <= 1))
        demand("learned.rates", valid, "are not in (0, 1]")
    if (calibration := fields["calibration"]) is not None:
        shape = (calibration.horizon or 1, len(dataset.outputs))
        demand_shape("calibration.factors", calibration.factors, *shape)
        demand_shape("calibration.coverage", calibration.coverage, *shape)
        demand_shape("calibration.effective", calibration.effective, shape[0])
        demand("calibration.factors", np.isfinite(calibration.factors).all(), "are not finite")
    _check_model(fields["model"], dataset.experiments[0], traceable)
    finite = np.all(
        [
            np.isfinite(array).all(axis=tuple(range(2, array.ndim)))
            for array in (draws.weights, *draws.states, *draws.leaves.values())
        ],
        axis=0,
    )
    demand("draws", finite.any(), "has no finite draw")
    return finite


def _check_filter(
    name: str, filtered: CurrentState | Learned, axes: tuple[int, ...], size: int
) -> None:
    """Check the filter state of each draw, with this number of coordinates."""
    demand(f"{name}.rows", type(filtered.rows) is int and filtered.rows >= 0, "is no number")
    demand(f"{name}.state", isinstance(filtered.state, FilterState), "is not the state of a filter")
    coordinates = {"mean": (size,), "covariance": (size, size), "surprise": ()}
    particles = filtered.state.particles
    if particles is not None:
        number = np.shape(particles)[-2:-1]
        coordinates |= {"particles": (*number, size), "log_weights": number}
    for part, shape in coordinates.items():
        demand_shape(f"{name}.state.{part}", getattr(filtered.state, part), *axes, *shape)


def _check_draws(fields: Mapping[str, Any]) -> None:
    """Check the draws of states, weights and leaves, and the diagnostics of the sampler."""
    model, draws, dataset = fields["model"], fields["draws"], fields["dataset"]
    demand_shape("model.log_process_std", model.log_process_std, None)
    demand_shape("draws.weights", draws.weights, None, None, *model.weights_shape)
    axes = draws.weights.shape[:2]
    demand("draws", all(axes), "is empty")
    number = len(dataset.experiments)
    demand("draws.states", len(draws.states) == number, "have another number of series")
    first = dataset.first_states or (0,) * number
    for index, states in enumerate(draws.states):
        length = len(dataset.experiments[index]) + 1 - first[index]
        demand_shape(f"draws.states.{index}", states, *axes, length, model.state_dim)
    leaves = model.leaves()
    names = {name for name, _ in model.roles}
    demand("model", names == {*leaves} == {*model.priors}, "has leaves that differ from its roles")
    for name, leaf in draws.leaves.items():
        demand_shape(f"draws.leaves.{name}", leaf, *axes, *leaves[name].shape)
    warmup = (axes[0], fields["warmup"].log_target.shape[1])
    for part, shape in (("info", axes), ("warmup", warmup)):
        for name, values in fields[part]._asdict().items():
            if not (name == "bias" and values is None):
                demand_shape(f"{part}.{name}", values, *shape)


def _check_model(model: GPSSM, series: Series, traceable: bool) -> None:
    """Check that leaves are finite and, if possible, that the parts are consistent."""
    for name, leaf in model.leaves().items():
        demand(f"model.{name}", np.isfinite(leaf).all(), "is not finite")
    if not traceable:
        return
    x, u = (
        jax.ShapeDtypeStruct((1, width), model.log_process_std.dtype)
        for width in (model.state_dim, series.input_dim)
    )
    step = jax.eval_shape(lambda x, u: model.transition()(x, u), x, u)
    output = jax.eval_shape(model.likelihood.moments, x)[0]
    demand_shape("model.mean", step.mean, 1, model.state_dim)
    demand_shape("model.basis", step.gain, model.state_dim, 1, model.basis.size)
    demand_shape("model.likelihood", output, 1, series.output_dim)


@check_arguments
@in_double_precision
def to_arviz(posterior: "Posterior", *, seed: int = 0) -> "xr.DataTree":
    """Return the posterior as an xarray DataTree for ArviZ, with these groups.

        posterior             states, weights, the parameters that vary by their dotted names, and
                              on their natural scale those that are logarithms; `noise_std` in the
                              user's units
        sample_stats          lp, acceptance_rate, diverging, energy, n_steps
        posterior_predictive  y ~ p(y_t | x_{t+1}), one for each draw, in the user's units
        log_likelihood        log p(y_t | x_{t+1}) of each row, in the user's units; rows without
        any output are omitted observed_data         y in the user's units constant_data         u
        in the user's units, if there is one

    A state has the time of the output it emits, so x₀ is one step before the first row. With
    several series, names include the number of the series: y_0, time_0, y_1, ... The log likelihood
    is conditional on the states, which were inferred from all rows, so leave-one-out scores such as
    `arviz_stats.loo(tree)` are too optimistic.

    Parameters
    ----------
    posterior
        The posterior, with the states of all rows.
    seed
        Seed of the predictive draws.
    """
    import xarray as xr

    check_states(posterior, "to_arviz")
    stored = to_tree(posterior)
    names = ("posterior", "sample_stats", "observed_data", "constant_data")
    groups = {name: stored[name].to_dataset() for name in names if name in stored.children}
    groups["posterior"] = groups["posterior"].assign(_natural(posterior, groups["posterior"]))
    likelihood = posterior.model.likelihood
    # A user-defined density without a sampler has no predictive draws.
    if not (isinstance(likelihood, Custom) and likelihood.sampler is None):
        predictive = {}
        for index, (suffix, _) in enumerate(_numbered(posterior)):
            y = smooth(posterior, index, noise=True, seed=seed).paths
            axes = ("chain", "draw", f"time{suffix}", "output")
            predictive[f"y{suffix}"] = (axes, split_chains(y, posterior.draws))
        groups["posterior_predictive"] = xr.Dataset(predictive)
    groups["log_likelihood"] = xr.Dataset(_log_likelihood(posterior))
    tree = xr.DataTree.from_dict(
        {name: _labelled(posterior, name, dataset) for name, dataset in groups.items()}
    )
    tree.attrs = {
        "inference_library": "gpssm",
        "inference_library_version": gpssm.__version__,
        "created_at": stored.attrs["created"],
    }
    return tree


def _natural(posterior: "Posterior", dataset: "xr.Dataset") -> Mapping[str, Any]:
    """Return the parameters that are logarithms on their natural scale."""
    natural: dict[str, Any] = {}
    for name in posterior.draws.leaves:
        head, dot, last = name.rpartition(".")
        if last.startswith("log_"):
            natural[f"{head}{dot}{last.removeprefix('log_')}"] = np.exp(dataset[name])
    if "likelihood.std" in natural and isinstance(posterior.model.likelihood, GaussianNoise):
        scale = np.array(posterior.dataset.scaler.output_std)
        natural["noise_std"] = natural["likelihood.std"] * scale
    return natural


def _labelled(posterior: "Posterior", group: str, dataset: "xr.Dataset") -> "xr.Dataset":
    """Return a group with times, names of outputs and inputs, and numbers along the other axes."""
    labels: dict[Any, Any] = {name: np.arange(size) for name, size in dataset.sizes.items()}
    labels |= {"output": list(posterior.dataset.outputs), "input": list(posterior.dataset.inputs)}
    first = -1 if group == "posterior" else 0
    for suffix, series in _numbered(posterior):
        rows = np.arange(first, len(series))
        if series.axis is not None:
            rows = series.axis.times(len(rows), first)
        if group == "log_likelihood":
            rows = rows[np.isfinite(series.y).any(-1)]
        labels[f"time{suffix}"] = rows
    return dataset.assign_coords({name: labels[name] for name in dataset.sizes})


def _numbered(posterior: "Posterior") -> list[tuple[str, Series]]:
    """Return the experiments with the suffixes of their names in a tree."""
    experiments = posterior.dataset.experiments
    many = len(experiments) > 1
    return [(f"_{k}" if many else "", series) for k, series in enumerate(experiments)]


def _log_likelihood(posterior: "Posterior") -> dict[str, Any]:
    """Return log p(y_t | x_{t+1}) of the rows of each experiment with their axes, in its units."""
    dataset = posterior.dataset
    outputs = [jnp.asarray(series.y) for series in dataset.scaled]
    densities = map_draws(_log_densities, posterior.model, posterior.draws, outputs)
    variables = {}
    for (suffix, series), values in zip(_numbered(posterior), densities, strict=True):
        present = np.isfinite(series.y)
        if present.any():
            # p(y) = p(scaled y) / Π output_std, over the outputs observed
            values = values - present @ np.log(dataset.scaler.output_std)
            axes = ("chain", "draw", f"time{suffix}")
            variables[f"y{suffix}"] = (axes, values[..., present.any(-1)])
    return variables


def _log_densities(
    model: GPSSM, draw: Draw, outputs: list[Float[Array, "_ Dy"]]
) -> list[Float[Array, " _"]]:
    pairs = zip(draw.states, outputs, strict=True)
    return [model.likelihood.log_prob(states[1:], y) for states, y in pairs]
