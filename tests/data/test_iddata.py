"""An iddata of MATLAB, saved as a struct: names, units and sampling time come with it."""

import numpy as np
import pytest
import scipy.io

import gpssm
from gpssm.data.series import Series

Y, U = np.random.default_rng(0).normal(size=(2, 12, 2))


def make_struct(**changes):
    """What `get(data)` returns in MATLAB, with empty fields as MATLAB has them."""
    fields = {
        "Domain": "Time",
        "Name": "",
        "OutputData": Y,
        "OutputName": np.array(["level", "flow"], dtype=object),
        "OutputUnit": np.array(["m", ""], dtype=object),
        "TimeUnit": "seconds",
        "InputData": U[:, :1],
        "InputName": np.array(["pump"], dtype=object),
        "InputUnit": np.array(["V"], dtype=object),
        "Period": np.inf,
        "InterSample": "zoh",
        "Ts": 0.2,
        "Tstart": np.array([]),
        "SamplingInstants": np.zeros((0, 0)),
        "ExperimentName": "Exp1",
        "Notes": np.array([], dtype=object),
        "UserData": np.array([]),
    }
    return fields | {"y": Y, "u": U[:, :1]} | changes


EXPECTED = Series(
    Y,
    U[:, :1],
    name="tank",
    dt=0.2,
    outputs=["level", "flow"],
    inputs="pump",
    units={"level": "m", "pump": "V"},
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tank.mat"


@pytest.mark.parametrize("nested", [True, False])
def test_a_struct_or_its_fields_are_read(path, nested):
    fields = {name: value for name, value in make_struct().items() if np.size(value)}
    scipy.io.savemat(path, {"s": fields, "n": 3} if nested else fields)
    series = gpssm.read(path)
    assert series == EXPECTED
    assert gpssm.read(path, name="other", dt=0.4).dt == 0.4


def test_the_long_names_of_fields_and_a_single_column(path):
    fields = {"OutputData": Y[:, :1], "Ts": 1, "OutputName": "level", "Name": "mill"}
    scipy.io.savemat(path, {"data": fields})
    assert gpssm.read(path) == Series(Y[:, 0], name="mill", dt=1.0, outputs="level")


def test_without_a_sampling_time_the_instants_are_the_times(path):
    struct = make_struct(Ts=np.zeros((0, 0)), SamplingInstants=0.5 + np.arange(12.0)[:, None])
    scipy.io.savemat(path, {"s": struct})
    np.testing.assert_array_equal(gpssm.read(path).time, 0.5 + np.arange(12))


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"a": Y}, r"contains 0 iddata structs.* s = get\(data\); save.*the file has a"),
        ({"s": make_struct(), "t": make_struct()}, "contains 2 iddata structs"),
        ({"s": make_struct(Domain="Frequency")}, "frequency-domain data"),
        ({"s": make_struct(y=np.array([Y, Y[:5]], dtype=object))}, r"2 experiments: .*getexp"),
        ({"s": make_struct(u=U[:5, :1])}, r"tank\.mat: y and u must have one row"),
    ],
)
def test_what_is_no_iddata_is_refused(path, variables, message):
    scipy.io.savemat(path, variables)
    with pytest.raises(ValueError, match=message):
        gpssm.read(path)


def test_other_files_need_outputs(tmp_path):
    with pytest.raises(ValueError, match=r"name the outputs by outputs=\[\.\.\.\]"):
        gpssm.read(tmp_path / "tank.csv")
    with pytest.raises(FileNotFoundError, match=r"no file .*absent\.mat"):
        gpssm.read(tmp_path / "absent.mat")


def test_a_damaged_file_is_refused_in_words(path):
    scipy.io.savemat(path, {"s": make_struct()})
    path.write_bytes(path.read_bytes()[:400])
    with pytest.raises(ValueError, match=r"cannot be read as a \.mat file"):
        gpssm.read(path)
