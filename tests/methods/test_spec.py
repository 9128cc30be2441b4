"""The specification of a fit: comparison, changes, serialisation, and reproduction of a
posterior.
"""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gpssm
from gpssm.data.series import Series
from gpssm.methods import FFVD, METHODS
from gpssm.methods.spec import ChainStart, Spec
from gpssm.model.kernels import make_kernel
from gpssm.model.means import Function
from gpssm.model.wiring import Wiring
from gpssm.posterior import descriptions
from gpssm.starts.physics import Physics, Unknown

# Chains of so few draws are stuck, or worse than their start: what is tested is that they are the same again.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

ROWS = 72


def make_record(rows: int = ROWS, seed: int = 0) -> Series:
    """A linear system with two states, driven by steps."""
    rng = np.random.default_rng(seed)
    u = np.repeat(rng.normal(size=-(-rows // 8)), 8)[:rows]
    x, y = np.zeros(2), []
    for value in u:
        x = np.array([[0.9, 0.2], [-0.2, 0.9]]) @ x + np.array([0.1, 0.4]) * value
        y.append(x[0])
    return Series(np.array(y) + 0.05 * rng.normal(size=rows), u)


def same_way(kernel):
    return lambda x, u: kernel * x


SPECS = {
    "defaults": Spec(),
    "numbers": Spec(
        "ffvd-m", state_dim=3, num_inducing=7, noise=0.01, delay=(2,), windows=2, calibrate=True
    ),
    "names": Spec(
        kernel="se+matern32",
        mean="identity",
        likelihood="student-t",
        basis="fourier",
        fixed=["kernel.*"],
    ),
    "method": Spec(method=FFVD(num_warmup=7, rank=3)),
    "parts": Spec(kernel=make_kernel("se", 2, 3, 1.0, 2.0), mean=Function(same_way(0.9))),
    "wiring": Spec(wiring=Wiring([[1, 1, 0], [0, 1, 1]])),
    "states": Spec(start=[np.arange(6.0).reshape(3, 2)]),
    "chains": Spec(start=[ChainStart("em", "free"), ChainStart("em+shooting", 0.02)]),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_spec_is_what_its_dictionary_says(name):
    spec = SPECS[name]
    written = spec.to_dict()
    assert list(written) == [field.name for field in dataclasses.fields(Spec)]
    again = Spec.from_dict(written)
    assert again == spec
    assert hash(again) == hash(spec)
    assert again is not spec
    assert [other for other in SPECS if SPECS[other] == spec] == [name]
    json.dumps(spec.describe(), allow_nan=False)


@pytest.mark.parametrize("name", [name for name in SPECS if name != "parts"])
def test_a_file_holds_a_spec(name):
    description, arrays = descriptions.describe(SPECS[name].plain())
    assert descriptions.restore(json.loads(json.dumps(description)), arrays) == SPECS[name]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_named_by_the_registry(method):
    spec = Spec(method=method)
    assert spec.method_name == method
    assert spec.to_dict()["method"] == {"name": method, **dataclasses.asdict(METHODS[method])}
    assert Spec.from_dict(spec.to_dict()).settings == METHODS[method]


def test_a_spec_cannot_be_changed_but_replaced():
    spec = Spec(state_dim=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.state_dim = 3
    other = spec.replace(kernel="matern52", num_draws=np.int64(7), num_warmup=None)
    assert (spec.kernel, spec.settings) == ("se", METHODS["auto"])
    assert (other.kernel, other.state_dim) == ("matern52", 2)
    assert other.settings == dataclasses.replace(METHODS["ffvd"], num_draws=7)
    assert other != spec
    assert other.replace(kernel="se", method="auto") == spec
    assert spec != "ffvd"
    assert len({spec, Spec(state_dim=2), other}) == 2


def test_arrays_are_compared_by_their_values():
    states = np.zeros((5, 2))
    assert Spec(start=states) == Spec(start=states.copy())
    assert Spec(start=states) != Spec(start=states + 1)
    assert Spec(start=[states]) == Spec(start=(states.copy(),))
    assert Spec(start=states).gives_states
    assert not Spec(start=["em", "em+shooting"]).gives_states


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"n_states": 2}, TypeError, "no setting 'n_states'. Did you mean 'state_dim'?"),
        ({"order": 2}, TypeError, "Did you mean 'state_dim'?"),
        ({"chains": 2}, TypeError, "Did you mean 'num_chains'?"),
        ({"kernl": "se"}, TypeError, "Did you mean 'kernel'?"),
        ({"method": "fvd"}, KeyError, "Did you mean 'ffvd'?"),
        ({"method": 3}, TypeError, "method must be a name"),
        ({"mean": "function"}, KeyError, "Unknown mean 'function'"),
        ({"basis": "stacked"}, KeyError, "Unknown basis 'stacked'"),
        ({"start": "magic"}, KeyError, "Unknown start 'magic'"),
        ({"noise": -1.0}, ValueError, "noise must be"),
        ({"state_dim": 0}, ValueError, "state_dim must be"),
        ({"hyper": "guess"}, ValueError, "hyper must be one of"),
        ({"fixed": "kernel.*"}, TypeError, "fixed must be a list"),
        ({"coupling": "lmc", "rank": 1, "method": "ffvd-m"}, ValueError, "use coupling='shared'"),
    ],
)
def test_what_cannot_be_is_refused(settings, kind, message):
    with pytest.raises(kind) as caught:
        gpssm.fit(make_record(20), progress=False, **settings)
    assert message in str(caught.value)


def test_a_dictionary_with_other_names_is_refused():
    with pytest.raises(TypeError, match="Did you mean 'state_dim'"):
        Spec.from_dict({"n_states": 2})


def test_a_method_that_is_in_no_registry_stays_a_dictionary():
    spec = Spec.from_dict({"method": {"name": "mine", "size": 0.1}})
    assert spec.method_name == "mine"
    assert spec == Spec.from_dict(spec.to_dict())
    with pytest.raises(KeyError, match="pass its settings"):
        _ = spec.settings
    assert spec.replace(method=FFVD()).settings == FFVD()


def test_resolving_gives_numbers():
    record = make_record()
    resolved = Spec(state_dim="auto", num_inducing="auto").resolve([record])
    assert resolved.state_dim in range(1, 7)
    assert resolved.num_inducing == ROWS // 5
    assert resolved.resolve([record]) == resolved
    assert Spec(num_inducing="auto").resolve([make_record(20)]).num_inducing == 10
    wired = Spec(state_dim="auto", wiring=[[1, 1, 0], [0, 1, 1]]).resolve([record])
    assert wired.state_dim == 2
    assert isinstance(wired.wiring, Wiring)
    assert wired.resolve([record]) == wired
    with pytest.raises(ValueError, match="too large for"):
        Spec(state_dim=20).resolve([make_record(20)])


METHOD = FFVD(num_warmup=24, num_draws=4, thin=1, num_leapfrog=2, rank=2)
SIZES = {"method": METHOD, "state_dim": 2, "num_inducing": 6}
RUN = {"seed": 3, "num_chains": 2, "progress": False}


def level_physics():
    """y follows a leak and the input; an unknown function of the level is added to it."""

    def states(y, u):
        path = np.interp(
            np.arange(len(y)), np.flatnonzero(np.isfinite(y[:, 0])), y[np.isfinite(y[:, 0]), 0]
        )
        return np.concatenate([path[:1], path])[:, None]

    return Physics(
        step=lambda x, u, theta: 0.9 * x + 0.1 * u,
        unknown=Unknown(feature=lambda x, u: x[0], into=0, at=np.linspace(-2, 2, 6), size=0.3),
        outputs=np.eye(1),
        states=states,
        scale=[1.0],
    )


@pytest.fixture(scope="module")
def sister():
    return gpssm.fit(make_record(seed=1), start="em", **SIZES, seed=0, num_chains=1, progress=False)


@pytest.fixture(scope="module")
def compared():
    """A fit whose chains have the starts that were compared, if they are several."""
    return gpssm.fit(
        make_record(), start=["em", "em+shooting"], **SIZES, seed=3, num_chains=4, progress=False
    )


CASES = {
    "a named start": {"start": "em"},
    "the output-error start": {"start": "output-error", "noise": "small"},
    "states": {"start": 0.1 * np.random.default_rng(0).normal(size=(ROWS + 1, 2))},
    "windows": {"start": "em", "windows": 2},
    "states and windows": {"start": np.zeros((ROWS + 1, 2)), "windows": 2},
    "auto sizes": {"start": "em", "state_dim": "auto", "num_inducing": "auto", "delay": "auto"},
    "each chain of its own": {"start": [ChainStart("em", 0.02), ChainStart("em+shooting", "free")]},
}


def assert_same_draws(first, second):
    jax.tree.map(np.testing.assert_array_equal, first.draws, second.draws)
    assert first.spec == second.spec


@pytest.mark.parametrize("case", CASES)
def test_a_fit_by_its_spec_is_the_same_fit(case, tmp_path):
    first = gpssm.fit(make_record(), **SIZES | CASES[case], **RUN)
    assert_same_draws(first, gpssm.fit(make_record(), spec=first.spec, **RUN))
    first.save(tmp_path / "fit.nc")
    assert gpssm.load(tmp_path / "fit.nc").spec == first.spec


def test_a_fit_of_compared_starts_is_the_same_fit_by_its_spec(compared):
    taken = [row["start"] for row in compared.comparison for _ in range(row.get("chains") or 0)]
    assert len(taken) == 4
    if len({(row["start"], row["noise"]) for row in compared.comparison if row.get("chains")}) > 1:
        assert all(isinstance(start, ChainStart) for start in compared.spec.start)
        assert sorted(start.name for start in compared.spec.start) == sorted(taken)
    else:
        assert compared.spec.start == taken[0]
    again = gpssm.fit(make_record(), spec=compared.spec, seed=3, num_chains=4, progress=False)
    assert_same_draws(compared, again)
    assert again.comparison == ()


def test_a_fit_with_a_prior_is_the_same_fit_by_its_spec(sister):
    sizes = {"num_warmup": 12, "num_draws": 4}
    first = gpssm.fit(make_record()[:60], prior=sister, prior_strength=0.5, **sizes, **RUN)
    assert first.spec.prior is sister
    assert_same_draws(first, gpssm.fit(make_record()[:60], spec=first.spec, **RUN))


def test_a_fit_with_physics_is_the_same_fit_by_its_spec(tmp_path):
    first = gpssm.fit(make_record(), physics=level_physics(), method=METHOD, **RUN)
    assert (first.spec.state_dim, first.spec.num_inducing) == (1, 6)
    assert_same_draws(first, gpssm.fit(make_record(), spec=first.spec, **RUN))
    # A file has physics by name, and says that it is to be given again.
    assert first.spec.plain().physics == "Physics"
    with pytest.raises(TypeError, match="pass it again"):
        gpssm.fit(make_record(), spec=first.spec.plain(), **RUN)


def test_fits_from_several_starts_and_with_prior_or_physics_can_be_calibrated(compared, sister):
    record = make_record()
    chains = [ChainStart("em", "free"), ChainStart("em", 0.02)]
    fits = [
        compared,
        gpssm.fit(record, start=chains, **SIZES, **RUN),
        gpssm.fit(record, prior=sister, num_warmup=12, num_draws=4, **RUN),
        gpssm.fit(record, physics=level_physics(), method=METHOD, **RUN),
        gpssm.fit(record, start=np.zeros((ROWS + 1, 2)), **SIZES, **RUN),
    ]
    for posterior in fits:
        assert np.all(posterior.calibrate().calibration.factors >= 1)


def test_jax_arrays_in_a_spec_are_compared_by_their_values():
    first, second = (Spec(kernel=make_kernel("se", 2, 3, 1.0, jnp.asarray(2.0))) for _ in range(2))
    assert first == second
    assert first != Spec(kernel=make_kernel("se", 2, 3, 1.0, jnp.asarray(3.0)))
