import hashlib
import http.server
import os
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from gpssm.data import datasets as benchmarks
from gpssm.data.datasets import DAISY, REGISTRY, SIMULATORS, load, load_records, simulate
from stand_ins import write_stand_ins

SIX = {
    "actuator": 1024,
    "ballbeam": 1000,
    "drive": 500,
    "dryer": 1000,
    "flutter": 1024,
    "furnace": 296,
}
ROWS = SIX | {
    "drive-2": 500,
    "drive-3": 500,
    "emps": 24_841,
    "emps-pulses": 24_841,
    "wiener-hammerstein": 188_000,
}
DAISY_ROWS = {
    "robot_arm": 1024,
    "exchanger": 4000,
    "evaporator": 6305,
    "winding": 2500,
    "heating_system": 801,
    "glassfurnace": 1247,
}
FOLDER = os.environ.get("GPSSM_DATA")
needs_files = pytest.mark.skipif(
    not FOLDER, reason="set GPSSM_DATA to the folder of the benchmark files"
)


@needs_files
@pytest.mark.parametrize("name", [name for name in REGISTRY if name not in DAISY])
def test_benchmarks(name):
    series = load(name)
    assert len(series) == ROWS[name]
    assert (series.output_dim, series.input_dim, series.name) == (1, 1, name)
    assert np.isfinite(series.y).all()
    assert series.dt == benchmarks.REGISTRY[name].dt


@needs_files
@pytest.mark.parametrize("name", DAISY)
def test_daisy_plants(name):
    series = load(name)
    # Input and output dimensions, and the first row, read by eye.
    sizes, u, y = {
        "robot_arm": ((1, 1), 0.22183165, -0.1770363),
        "exchanger": ((1, 1), 0.3, 98.6281),
        "evaporator": ((3, 3), 1.0112465, -0.31526751),
        "winding": ((5, 2), -1.2025481, 0.54410528),
        "heating_system": ((1, 1), 9.0, 129.32),
        "glassfurnace": ((3, 6), -0.14468, 0.054008),
    }[name]
    assert len(series) == DAISY_ROWS[name]
    assert ((series.input_dim, series.output_dim), series.u[0, 0], series.y[0, 0]) == (sizes, u, y)
    assert np.isfinite(series.y).all()
    assert set(series.units) <= {*series.inputs, *series.outputs}
    assert series.dt == benchmarks.REGISTRY[name].dt


@needs_files
def test_inputs_and_outputs_are_not_exchanged():
    # First rows of the files, read by eye.
    first = {
        "ballbeam": (-1.963499e-03, -4.885198e-03),
        "dryer": (6.41, 4.7660989),
        "furnace": (-0.109, 53.8),
        "wiener-hammerstein": (-0.11605, 0.083432),
    }
    for name, (u, y) in first.items():
        assert (load(name).u[0, 0], load(name).y[0, 0]) == (u, y)
    assert load("drive").y.min() >= 0.0  # a speed without sign
    assert load("drive") != load("drive-2") != load("drive-3")
    # A stage that moves between 0 and a quarter of a metre, by voltages of some volts.
    assert -0.001 < load("emps").y.min() < load("emps").y.max() < 0.25
    assert 4 < load("emps").u.max() < load("emps-pulses").u.max() < 10


@needs_files
@pytest.mark.parametrize(
    "damage", [lambda data: data[:-20], lambda data: data.replace(b"1", b"2", 1)]
)
def test_a_damaged_benchmark_is_refused(tmp_path, monkeypatch, damage):
    original = (Path(str(FOLDER)) / "dryer.dat").read_bytes()
    (tmp_path / "dryer.dat").write_bytes(damage(original))
    monkeypatch.setenv("GPSSM_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"dryer\.dat is not the benchmark 'dryer': its SHA-256"):
        load("dryer")


@needs_files
def test_records_of_the_real_files():
    for name, rows, window in (
        ("emps", (24_841, 24_841), 20),
        ("wiener-hammerstein", (100_000, 88_000), 50),
    ):
        train, test = load_records(name)
        assert (len(train), len(test), train.window, test.window) == (*rows, None, window)


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    """Small files in the formats of the two benchmarks with records, in a folder that GPSSM_DATA names."""
    return write_stand_ins(tmp_path, monkeypatch)


def test_two_files_are_two_records(stand_ins):
    train, test = load_records("emps")
    assert (train, test) == (load("emps"), replace(load("emps-pulses"), window=20))
    for name, found in (("emps.mat", train), ("emps_pulses.mat", test)):
        columns = scipy.io.loadmat(stand_ins / name)
        np.testing.assert_array_equal(found.y, columns["qm"])
        np.testing.assert_array_equal(found.u, columns["vir"])
    assert (train.dt, train.outputs, train.inputs) == (0.001, ("position",), ("motor voltage",))


def test_one_file_is_two_records_by_rows(stand_ins):
    train, test = load_records("wiener-hammerstein")
    y = np.loadtxt(stand_ins / "wiener_hammerstein.csv", delimiter=",", skiprows=1, usecols=1)
    np.testing.assert_array_equal(np.concatenate([train.y, test.y])[:, 0], y)
    assert (len(train), len(test), test.window) == (6000, len(y) - 6000, 50)


def test_a_damaged_test_record_is_refused(stand_ins):
    (stand_ins / "emps_pulses.mat").write_bytes((stand_ins / "emps.mat").read_bytes())
    with pytest.raises(ValueError, match=r"emps_pulses\.mat is not the benchmark 'emps-pulses'"):
        load_records("emps")
    (stand_ins / "emps_pulses.mat").unlink()
    with pytest.raises(FileNotFoundError, match=r"https://.*EMPS/data/DATA_EMPS_PULSES\.mat there"):
        load_records("emps")
    with pytest.raises(
        ValueError, match=r"separate test record must be one of emps, .*; got 'dryer'"
    ):
        load_records("dryer")


def test_an_absent_benchmark_says_where_to_put_it(tmp_path, monkeypatch):
    monkeypatch.setenv("GPSSM_DATA", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=r"does not contain drive\.mat\. Put the file from https://"
    ):
        load("drive-2")


def test_unknown_names_list_the_known():
    with pytest.raises(
        ValueError, match=r"a benchmark must be one of actuator, ballbeam.*; got 'cars'"
    ):
        load("cars")
    with pytest.raises(ValueError, match=r"a simulator must be one of kink, .*; got 'cars'"):
        simulate("cars")


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A local web server with one small benchmark, in place of the public mirrors; yields its folder."""
    (folder := tmp_path / "served").mkdir()
    data = b"rate,level\n1.0,2.0\n3.0,4.0\n"
    (folder / "small.csv").write_bytes(data)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    entry = replace(
        benchmarks.REGISTRY["furnace"],
        name="small",
        file="small.csv",
        inputs={"rate": 0},
        outputs={"level": 1},
        sha256=hashlib.sha256(data).hexdigest(),
    )
    monkeypatch.setitem(benchmarks.REGISTRY, "small", entry)
    address = f"http://127.0.0.1:{server.server_port}/"
    monkeypatch.setattr(benchmarks, "MIRRORS", (address + "absent/", address))
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / "cache" / name))
    monkeypatch.delenv("GPSSM_DATA", raising=False)
    yield folder
    server.shutdown()
    server.server_close()
    thread.join()


def test_download_falls_back_to_the_next_mirror_and_is_kept(mirror):
    series = load("small")
    assert (series.y.ravel().tolist(), series.u.ravel().tolist()) == ([2.0, 4.0], [1.0, 3.0])
    (mirror / "small.csv").unlink()
    assert load("small") == series


def test_a_download_with_other_content_is_refused(mirror):
    (mirror / "small.csv").write_text("rate,level\n1.0,2.5\n3.0,4.0\n")
    with pytest.raises(ConnectionError, match=r"GPSSM_DATA to a folder that contains small\.csv"):
        load("small")


def test_no_network(mirror, monkeypatch):
    monkeypatch.setattr(benchmarks, "MIRRORS", ("http://127.0.0.1:9/",))
    with pytest.raises(ConnectionError, match="could not be downloaded"):
        load("small")


@pytest.mark.parametrize("name", SIMULATORS)
def test_simulators_follow_the_model_that_they_state(name):
    truth = simulate(name, num_steps=3000, seed=1)
    series, states = truth.series, truth.states
    assert (len(series), len(states), series.name) == (3000, 3001, name)
    assert truth.C.shape == (series.output_dim, states.shape[1])
    process = states[1:] - truth.transition(states[:-1], series.u)
    noise = series.y - states[1:] @ truth.C.T - truth.d
    # A standard deviation from 3000 draws is within 5 % at four standard errors; so are mean and lag-one sum.
    for errors, std in ((process, truth.process_std), (noise, truth.noise_std)):
        np.testing.assert_allclose(errors.std(axis=0), std, rtol=0.055)
        np.testing.assert_array_less(np.abs(errors.mean(axis=0)), 4 * std / np.sqrt(3000))
        np.testing.assert_array_less(
            np.abs((errors[1:] * errors[:-1]).mean(axis=0)), 4 * std**2 / np.sqrt(3000)
        )
    assert np.abs(states).max() < 100.0


@pytest.mark.parametrize("name", SIMULATORS)
def test_seeds_reproduce_and_differ(name):
    first, again, other = (simulate(name, num_steps=15, seed=seed) for seed in (3, 3, 4))
    assert first.series == again.series
    np.testing.assert_array_equal(first.states, again.states)
    assert not np.allclose(first.series.y, other.series.y)
    assert len(repr(first)) < 500


@pytest.mark.parametrize("name", SIMULATORS)
def test_transitions_take_one_state_or_many(name):
    truth = simulate(name, num_steps=6)
    many = truth.transition(truth.states[:-1], truth.series.u)
    one = truth.transition(truth.states[2], truth.series.u[2])
    np.testing.assert_allclose(many[2], one, rtol=1e-12)


@pytest.mark.parametrize("name", SIMULATORS)
def test_noise_can_be_switched_off_but_not_be_negative(name):
    truth = simulate(name, num_steps=10, process_std=0.0, noise_std=0.0)
    np.testing.assert_allclose(
        truth.states[1:], truth.transition(truth.states[:-1], truth.series.u), atol=1e-12
    )
    np.testing.assert_allclose(truth.series.y, truth.states[1:] @ truth.C.T + truth.d)
    with pytest.raises(ValueError, match="must not be negative"):
        simulate(name, noise_std=-1.0)


def test_kink_is_the_published_function():
    x = np.linspace(-3.0, 3.0, 7)
    published = 0.8 + (x + 0.2) * (1.0 - 5.0 / (1.0 + np.exp(-2.0 * x)))
    truth = simulate("kink")
    np.testing.assert_allclose(truth.transition(x, np.zeros(0)), published, rtol=1e-12)
    assert len(truth.series) == 20


def test_first_states_are_standard_normal():
    first = np.array([simulate("kink", num_steps=1, seed=seed).states[0, 0] for seed in range(400)])
    assert abs(first.mean()) < 4 / np.sqrt(400)
    assert abs(first.std() - 1.0) < 4 / np.sqrt(800)


def test_linear_gaussian_has_the_asked_dimensions_and_radius():
    truth = simulate("linear_gaussian", state_dim=3, output_dim=2, input_dim=0, spectral_radius=0.5)
    A = truth.transition(np.eye(3), np.zeros((3, 0))).T
    np.testing.assert_allclose(np.abs(np.linalg.eigvals(A)).max(), 0.5)
    assert (truth.series.output_dim, truth.series.input_dim, truth.states.shape) == (2, 0, (201, 3))
    with pytest.raises(ValueError, match="spectral_radius must"):
        simulate("linear_gaussian", spectral_radius=1.0)


def test_duffing_without_cubic_term_is_the_matrix_exponential():
    import scipy.linalg

    truth = simulate("duffing", cubic=0.0, damping=0.3, stiffness=2.0, dt=0.05)
    # Augmented with the held force: d/dt (p, v, u) = (v, u − 0.3 v − 2 p, 0).
    step = scipy.linalg.expm(0.05 * np.array([[0.0, 1.0, 0.0], [-2.0, -0.3, 1.0], [0.0, 0.0, 0.0]]))
    state, force = np.array([0.7, -0.4]), np.array([1.3])
    expected = (step @ np.concatenate([state, force]))[:2]
    np.testing.assert_allclose(truth.transition(state, force), expected, atol=1e-8)


def test_duffing_steps_converge_at_fourth_order():
    state, force = np.array([1.5, -1.0]), np.array([0.8])

    def after_one_second(dt):
        transition, x = simulate("duffing", num_steps=2, dt=dt).transition, state
        for _ in range(round(1.0 / dt)):
            x = transition(x, force)
        return x

    exact = after_one_second(0.005)
    errors = [np.abs(after_one_second(dt) - exact).max() for dt in (0.1, 0.05)]
    assert 3.6 < np.log2(errors[0] / errors[1]) < 4.6


def test_simulations_have_names_with_options():
    assert tuple(REGISTRY)[:6] == tuple(SIX)
    assert load("sim:kink:num_steps=50:seed=3") == simulate("kink", num_steps=50, seed=3).series
    assert load("sim:duffing:noise_std=0.5") != load("sim:duffing")
    for wrong in ("sim:kink:num_steps", "sim:kink:num_steps=many", "sim:nothing", "nothing"):
        with pytest.raises(ValueError, match=r"sim:NAME|a simulator must be|a benchmark must be"):
            load(wrong)
