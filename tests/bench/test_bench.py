"""The benchmark: what a cell may see, results that survive anything, cells on processes and clusters, reports."""

import csv
import json
import math
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from gpssm.bench import PROTOCOLS, PUBLISHED, VARIANTS, Cell, cells, load_results, run_cell, run_sweep, write_report
from gpssm.bench import sweep as sweep_module
from gpssm.bench.cells import FILE, append, key
from gpssm.bench.protocols import Rolling, Simulate
from gpssm.bench.published import DATASETS
from gpssm.bench.records import EVERY, Records, fingerprint, load_data
from gpssm.bench.tables import current, methods_of, number, rmse_table, summarise
from gpssm.core.files import digest
from gpssm.core.runtime import THREADS
from gpssm.data.datasets import load
from gpssm.data.series import Series, as_list
from gpssm.evaluation.stack import stack
from gpssm.fitting.fit import fit
from gpssm.methods import ARX
from stand_ins import write_stand_ins

SMALL = {"num_chains": 2, "num_draws": 20}
TINY = {"state_dim": 1, "num_inducing": 4, "start": "em", "num_chains": 1, "num_warmup": 3, "num_draws": 3}


def toy_series(length=120, seed=0):
    rng = np.random.default_rng(seed)
    u, y = rng.normal(size=length), np.zeros(length)
    for t in range(1, length):
        y[t] = 0.8 * y[t - 1] + u[t] + 0.1 * rng.normal()
    return Series(y, u)


def spoilt(series, first):
    """The series with other outputs and controls from a row on."""
    y, u = series.y.copy(), series.u.copy()
    y[first:], u[first:] = 7 - 3 * y[first:], u[first:] ** 2 + 5
    return replace(series, y=y, u=u)


def sweep(out, methods=("mean", "last"), seeds=2, protocols=("p30", "full", "rolling"), **options):
    settings = {name: SMALL for name in methods} | options.pop("settings", {})
    data = options.pop("datasets", {"toy": toy_series()})
    return run_sweep(data, methods, seeds, protocols, out, **({"progress": False} | options), settings=settings)


def make_toy(folder, seconds=0.0, deadly=None):
    """Work that leaves a file for each time it begins, sleeps, and may take its process with it."""

    def work(cell):
        import os
        import time

        from gpssm.core.runtime import num_threads

        (folder / f"{cell.method}-{cell.seed}-{os.getpid()}-{time.time_ns()}").touch()
        time.sleep(seconds)
        if cell.seed == deadly:
            os._exit(1)
        rest = {"status": "ok", "metrics": {"rmse": float(cell.seed)}, "threads": num_threads()}
        return [cell.identity(name) | rest for name in cell.protocols]

    return work


@pytest.fixture
def pretend(tmp_path, monkeypatch):
    """A function that puts work of `make_toy` in the place of fits, and gives the folder of what has begun."""

    def put(seconds=0.0, deadly=None):
        begun = tmp_path / "begun"
        begun.mkdir()
        monkeypatch.setattr(sweep_module, "run_cell", make_toy(begun, seconds, deadly))
        return begun

    return put


def raw_lines(folder):
    return (folder / FILE).read_text().splitlines()


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    sweep(folder, ["last"])
    return folder


@pytest.fixture(scope="module")
def posterior():
    """What the cell of `last` with seed 1 fits."""
    return fit(toy_series()[:60], method="last", seed=1, progress=False, **SMALL)


def test_a_sweep_has_a_complete_result_for_each_cell_and_protocol(swept):
    results = load_results(swept)
    cells = {(one["dataset"], one["method"], one["seed"], one["protocol"]) for one in results}
    assert len(cells) == len(results) == len(raw_lines(swept)) == 2 * 3
    for one in results:
        assert one["status"] == "ok"
        assert one["error"] is None
        assert {"rmse", "mae", "fit", "nlpd", "nmll_paper", "crps", "energy", "coverage_90"} <= set(one["metrics"])
        assert one["config"]["fit"]["num_draws"] == 20
        assert one["config"]["fit"]["kernel"] == "se"
        assert set(one["versions"]) == {"gpssm", "jax", "numpy", "python"}
        assert one["seconds"]["fit"]["wall"] > one["seconds"]["compile"] > 0
        assert one["seconds"]["fit"]["cpu"] > 0
        assert 50 < one["peak_megabytes"] < 1e5
        assert 0 <= one["share_left"] < 0.5


def test_figures_are_those_of_a_forecast_made_by_hand(swept, posterior):
    series = toy_series()
    by_hand = posterior.forecast(30, series.u[60:90], seed=1).score(series.y[60:])
    found = {one["protocol"]: one for one in load_results(swept) if one["seed"] == 1}
    assert {name: found["p30"]["metrics"][name] for name in by_hand} == pytest.approx(by_hand)
    whole = posterior.forecast(60, series.u[60:], seed=1).score(series.y[60:])
    assert found["full"]["metrics"]["rmse"] == pytest.approx(whole["rmse"])
    fewer = posterior.thinned(20)
    windows = [
        fewer.condition(series[60 : 60 + row], seed=1) if row else fewer.condition_at(series[60:], [0], seed=1)
        for row in (0, 10, 20, 30)
    ]
    windows[0] = next(windows[0])
    rmse = [
        one.forecast(30, series.u[60 + row : 90 + row], seed=1).score(series.y[60 + row :])["rmse"]
        for row, one in zip((0, 10, 20, 30), windows, strict=True)
    ]
    assert found["rolling"]["metrics"]["origins"] == 4
    assert found["rolling"]["metrics"]["rmse"] == pytest.approx(np.mean(rmse))
    assert found["rolling"]["metrics"]["rmse_sd_over_origins"] == pytest.approx(np.std(rmse))


@pytest.mark.parametrize("method", ["arx", *(pytest.param(name, marks=pytest.mark.slow) for name in ("lgssm", "ffvd"))])
def test_no_method_sees_the_test_half(method):
    settings = TINY if method == "ffvd" else SMALL
    series = (toy_series(), spoilt(toy_series(), 60), spoilt(toy_series(), 59))
    clean, corrupted, other = (run_cell(Cell("toy", method, 0, one, settings, ("p30",)))[0] for one in series)
    assert clean["error"] is None
    assert clean["draws"] == corrupted["draws"]
    assert clean["metrics"]["rmse"] != corrupted["metrics"]["rmse"]
    assert clean["draws"] != other["draws"]


def test_a_rolling_forecast_knows_the_rows_before_its_origin_and_no_others(posterior):
    test, protocol = toy_series()[60:], Rolling(horizon=10, step=10, num_paths=20)

    def paths(series):
        return {origin: one.paths for origin, one in protocol.forecasts(posterior, series, 0)}

    y = test.y.copy()
    y[20:] += 3.0
    clean, later = paths(test), paths(replace(test, y=y))
    assert list(clean) == [0, 10, 20, 30, 40, 50]
    for origin in (0, 10, 20):
        np.testing.assert_array_equal(clean[origin], later[origin])
    assert np.mean(later[30] - clean[30]) == pytest.approx(3, abs=0.3)


LEARNED = ("ffvd-lmc", "ffvd-cascade", "ffvd-chain")


@pytest.mark.filterwarnings("ignore:Paths that left")  # of three draws
@pytest.mark.parametrize("method", ["ffvd-shared", *(pytest.param(one, marks=pytest.mark.slow) for one in LEARNED)])
def test_variants_are_lines_of_a_table_and_learn_on_the_way(method):
    settings = TINY | {"state_dim": 2, "noise": "free", "num_warmup": 30}
    cell = Cell("toy", method, 1, toy_series(), settings)
    asked = cell.config("learn")["fit"]
    assert {name: asked[name] for name in VARIANTS[method] if name != "method"} | {"method": "ffvd"} == VARIANTS[method]
    test, now = toy_series()[60:], cell.fit(toy_series()[:60])
    found, errors = PROTOCOLS["learn"].judge(now, test, 1).metrics, []
    for origin in (0, 10, 20, 30):
        if origin:
            now = now.learn(test[origin - 10 : origin], forgetting="auto" if origin == 10 else None, seed=1)
        errors.append(now.forecast(30, test.u[origin : origin + 30], seed=1).score(test[origin:])["rmse"])
    assert found["rmse"] == pytest.approx(np.mean(errors))
    assert found["origins"] == 4


def test_what_has_no_weights_to_learn_is_not_judged_by_learning(tmp_path):
    assert Cell("toy", "arx", 0, toy_series(), SMALL).protocols == ("p30", "full", "rolling")
    assert "learn" not in Cell("toy", "ffvd-auto", 0, toy_series()).protocols
    with pytest.raises(ValueError, match="'mean' has no weights that learn follows"):
        sweep(tmp_path, ["mean"], protocols=["learn"])


@pytest.fixture(scope="module")
def records():
    """One record to train on, which is what `posterior` was fitted to, and another of 60 rows to run through."""
    return Records(toy_series()[:60], replace(toy_series(60, seed=5), window=10), "all rows of a toy")


def test_a_simulation_knows_the_first_rows_of_a_record_and_no_others(posterior, records):
    test = records.test
    found = Simulate().judge(posterior, test, 1).metrics
    by_hand = posterior.thinned(1000).condition(test[:10], new_experiment=True, seed=1)
    by_hand = by_hand.forecast(50, test.u[10:], seed=1)
    assert {name: found[name] for name in by_hand.score(test[10:])} == pytest.approx(by_hand.score(test[10:]))
    # As many paths as the rows allow.
    assert Simulate(num_paths=9999, most=1000 * 50 + 49).judge(posterior, test, 1).metrics == pytest.approx(found)
    y = test.y.copy()
    y[10:] += 3.0
    moved = Simulate().judge(posterior, replace(test, y=y), 1).metrics
    assert moved["mae"] == pytest.approx(np.mean(np.abs(y[10:] - by_hand.mean)))
    with pytest.raises(ValueError, match="11 steps needs as many test rows; there are 10"):
        Simulate().judge(posterior, test[:10], 1)


def test_a_data_set_is_judged_by_the_protocols_that_apply_to_it(tmp_path, posterior, records):
    both = {"halves": toy_series(), "records": records}
    results = sweep(tmp_path, ["last"], seeds=[1], protocols=("rolling", "simulate"), datasets=both)
    assert [(one["dataset"], one["protocol"], one["status"]) for one in results] == [
        ("halves", "rolling", "ok"),
        ("records", "simulate", "ok"),
    ]
    assert [one["draws"] for one in results] == [digest(posterior.draws)] * 2
    assert [one["data"] for one in results] == ["", "all rows of a toy"]
    assert results[1]["metrics"] == pytest.approx(Simulate().judge(posterior, records.test, 1).metrics)
    text = write_report(tmp_path).read_text()
    assert "records: all rows of a toy." in text
    rolling, simulation = text.split("## Rolling-30")[1].split("## Simulation")
    assert "|  | halves |" in rolling
    assert "|  | records |" in simulation.split("## Cost")[0]
    with pytest.raises(ValueError, match="'records' is judged by simulate; got none of them in p30, full"):
        sweep(tmp_path, ["last"], protocols=("p30", "full"), datasets=both)
    assert fingerprint(records) != fingerprint(records._replace(test=replace(records.test, window=11)))
    assert fingerprint(both["halves"]) == digest(both["halves"])


def test_records_of_the_benchmarks_say_which_rows_are_used(tmp_path, monkeypatch):
    write_stand_ins(tmp_path, monkeypatch)
    stage, circuit = load_data("emps"), load_data("wiener-hammerstein")
    assert (len(stage.train), stage.test.dt, stage.test.window) == (800 // EVERY, EVERY * 1e-3, 20 // EVERY)
    assert f"at every {EVERY}th row" in stage.words
    whole = load("wiener-hammerstein")
    np.testing.assert_array_equal(circuit.test.y, whole.y[6000:])
    assert all(np.isin(one.y, whole.y[:6000]).all() for one in as_list(circuit.train))
    assert circuit.test.window == 50
    assert load_data("sim:kink") == load("sim:kink")


def test_a_sweep_goes_on_where_it_stopped(tmp_path, pretend):
    begun = pretend()
    sweep(tmp_path, seeds=1, protocols=("p30",))
    assert len(list(begun.iterdir())) == 2
    before = raw_lines(tmp_path)
    sweep(tmp_path, seeds=1, protocols=("p30",))
    assert raw_lines(tmp_path) == before
    sweep(tmp_path, seeds=[0, 1], protocols=("full", "p30"))
    assert len(list(begun.iterdir())) == 2 + 4
    assert len(raw_lines(tmp_path)) == len(load_results(tmp_path)) == 2 * 2 * 2
    changed = sweep(tmp_path, methods=["mean"], seeds=1, protocols=("p30",), settings={"mean": {"num_draws": 21}})
    assert len(changed) == 8 + 1
    shown = [one for one in current(changed) if (one["method"], one["protocol"]) == ("mean", "p30")]
    assert [one["config"]["fit"]["num_draws"] for one in shown] == [21]
    assert len(current(changed)) == 8 - 2 + 1


def test_a_line_that_broke_off_is_lost_and_nothing_else(tmp_path, pretend):
    pretend()
    sweep(tmp_path, seeds=3, protocols=("p30",))
    whole = (tmp_path / FILE).read_text()
    for cut in (len(whole) - 1, len(whole) - 40, whole.rstrip().rfind("\n") + 2):
        (tmp_path / FILE).write_text(whole[:cut])
        assert len(load_results(tmp_path)) == 5
        results = sweep(tmp_path, seeds=3, protocols=("p30",))
        assert len(results) == len(raw_lines(tmp_path)) == 6
        assert all(json.loads(line) for line in raw_lines(tmp_path))
    (tmp_path / FILE).write_text(whole.replace("{", "", 1))
    with pytest.raises(ValueError, match=r"line 1 of .* is not JSON"):
        load_results(tmp_path)


def test_a_failure_is_recorded_and_stops_nothing_else(tmp_path):
    """A fit that fails leaves other methods, a protocol that fails leaves the others."""
    arguments = {
        "datasets": {"short": toy_series(40)},
        "methods": ["greedy", "last"],
        "seeds": 1,
        "settings": {"greedy": {"method": ARX(orders=(12, 12)), **SMALL}},
    }
    results = sweep(tmp_path, **arguments)
    assert [one["status"] for one in results] == ["failed"] * 3 + ["failed", "ok", "failed"]
    assert "ValueError: A regression on 12 past outputs" in results[0]["error"]
    assert "regress" in results[0]["traceback"]
    assert "30 steps needs as many test rows" in results[3]["error"]
    assert len(sweep(tmp_path, **arguments)) == len(raw_lines(tmp_path)) == 6
    assert len(sweep(tmp_path, **arguments, retry=True)) == 6
    assert len(raw_lines(tmp_path)) == 6 + 5


def test_an_ok_result_outlives_a_failure(tmp_path):
    identity = Cell("toy", "mean", 0, toy_series()).identity("p30")
    failed, good = identity | {"status": "failed", "error": "?"}, identity | {"status": "ok", "metrics": {"rmse": 1.0}}
    for lines in ([failed, good], [good, failed]):
        append(tmp_path / str(lines[0]["status"]), lines)
        assert [one["status"] for one in load_results(tmp_path / str(lines[0]["status"]))] == ["ok"]


@pytest.mark.slow
def test_processes_find_the_same(swept, tmp_path):
    found = {key(one): one for one in sweep(tmp_path, ["last"], seeds=1, jobs=2)}
    assert len(found) == 3
    for one in load_results(swept):
        if one["seed"] == 0:
            assert found[key(one)]["metrics"] == pytest.approx(one["metrics"], rel=1e-6)


def test_a_process_that_dies_costs_one_cell(tmp_path, pretend):
    pretend(0.05, deadly=1)
    results = sweep(tmp_path, methods=["mean"], seeds=3, protocols=("p30",), jobs=2)
    assert len(results) == len(raw_lines(tmp_path)) == 3
    assert {one["seed"]: one["status"] for one in results} == {0: "ok", 1: "failed", 2: "ok"}
    assert all("died" in one["error"] for one in results if one["seed"] == 1)
    assert {one["threads"] for one in results if one["status"] == "ok"} == {1}
    assert THREADS not in os.environ


@pytest.fixture
def cluster(tmp_path):
    """A scheduler and two workers, each a process of its own, as a user would start them."""
    pytest.importorskip("distributed", reason="needs the extra `cluster`: pip install 'gpssm[cluster]'")
    file = tmp_path / "scheduler.json"
    options = ["--no-dashboard"], ["--no-dashboard", "--no-nanny", "--nthreads", "1"]
    commands = [["scheduler", "--port", "0", *options[0]], *[["worker", *options[1]]] * 2]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "dask", *command, "--scheduler-file", str(file)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=tmp_path,
        )
        for command in commands
    ]
    try:
        # The file is there before it has been written to.
        _until(lambda: file.is_file() and file.read_text().rstrip().endswith("}"))
        yield json.loads(file.read_text())["address"], processes[1:]
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


def _until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_cluster_loses_and_doubles_nothing_when_a_worker_is_killed(cluster, tmp_path, pretend):
    address, processes = cluster
    begun = pretend(0.3)

    def killer():
        pids = {str(process.pid): process for process in processes}
        _until(lambda: len({path.name.split("-")[2] for path in begun.iterdir()}) == 2)
        time.sleep(0.1)
        latest = max(begun.iterdir(), key=lambda path: path.name.rsplit("-", 1)[1])
        pids[latest.name.split("-")[2]].kill()

    thread = threading.Thread(target=killer)
    thread.start()
    results = sweep(tmp_path / "out", seeds=6, protocols=("p30", "full"), cluster=address)
    thread.join()
    assert sum(process.poll() is None for process in processes) == 1
    assert len(raw_lines(tmp_path / "out")) == len(results) == 2 * 6 * 2
    assert len(list(begun.iterdir())) > 2 * 6  # the killed one's cell was begun again


def test_no_more_jobs_than_memory_holds(tmp_path, pretend, monkeypatch, capsys):
    monkeypatch.setattr(sweep_module, "_free_megabytes", lambda: 10_000.0)
    assert sweep_module.affordable(2, []) == 2
    assert sweep_module.affordable(32, []) == int(10_000 / sweep_module.JOB_MEGABYTES)
    assert sweep_module.affordable(32, [200.0, 4900.0]) == 2
    assert sweep_module.affordable(32, [1e6]) == 1
    monkeypatch.setattr(sweep_module, "_free_megabytes", lambda: None)
    assert sweep_module.affordable(32, []) == 32
    pretend()
    monkeypatch.setattr(sweep_module, "_free_megabytes", lambda: 1000.0)
    sweep(tmp_path, methods=["mean"], seeds=1, protocols=("p30",), jobs=8, progress="plain")
    assert capsys.readouterr().err.startswith("gpssm: 1 processes in place of 8: memory holds no more")


MEMBERS = {"members": [{"method": "mean"}, {"method": "last"}], "num_draws": 20, "num_chains": 1}


def test_the_automatic_method_is_a_stack_of_the_training_half(tmp_path):
    def automatic(out, series):
        arguments = {"datasets": {"toy": series}, "seeds": 1, "protocols": ("p30",), "settings": {"ffvd-auto": MEMBERS}}
        return sweep(out, ["ffvd-auto"], **arguments)

    (result,), (other,) = automatic(tmp_path / "a", toy_series()), automatic(tmp_path / "b", spoilt(toy_series(), 60))
    by_hand = stack(toy_series()[:60], ["mean", "last"], num_draws=20, num_chains=1)
    assert result["weights"] == {row["member"]: row["weight"] for row in by_hand.table}
    assert result["weights"] == other["weights"]  # whatever the test half holds
    assert result["metrics"]["rmse"] != other["metrics"]["rmse"]
    text = write_report(tmp_path / "a").read_text()
    assert "What ffvd-auto is made of" in text
    assert f"| last | {result['weights']['last']:.2f} |" in text
    with pytest.raises(ValueError, match="are none of"):
        Cell("toy", "ffvd-auto", 0, toy_series(), {"depth": 3})


def test_progress_tells_cells_failures_and_the_time_left(tmp_path, pretend, capsys):
    pretend()
    sweep(tmp_path, methods=["mean"], seeds=2, protocols=("p30",), progress="plain")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("gpssm: 1/2 mean on toy, seed 0: rmse p30 0  ")
    assert lines[-1].endswith("0 s left")
    sweep(tmp_path, methods=["mean"], seeds=3, protocols=("p30",), progress="plain")
    assert capsys.readouterr().err.startswith("gpssm: 2 cells were there already, 1 to run")
    sweep(tmp_path, methods=["mean"], seeds=5, protocols=("p30",), progress=True)
    shown = capsys.readouterr().err
    assert "mean on toy, seed 3: rmse p30 3" in shown
    assert "2/2" in shown


def test_a_report_has_tables_of_one_protocol_each_and_published_rows_apart(swept):
    text = write_report(swept).read_text()
    sections = {part.splitlines()[0].split(":")[0]: part for part in text.split("\n## ")}
    assert list(sections)[1:] == ["P30", "PFULL", "Rolling-30", "Cost and convergence"]
    entries = summarise(load_results(swept))
    (first,) = (one for one in entries if one[:4] == ("p30", "toy", "last", "rmse"))
    (row, *_) = (line for line in sections["P30"].splitlines() if line.startswith("| last"))
    assert f"{first.mean:.3g} ± {first.sd:.3g}" in row
    assert "published" not in text.split("published are copied")[1]
    with (swept / "summary.csv").open() as file:
        found = [one for one in csv.DictReader(file) if list(one.values())[:4] == list(first[:4])]
    assert [float(one["mean"]) for one in found] == [first.mean]
    assert f"{first.mean:.4g}" in rmse_table(entries)
    page = (swept / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 6
    assert 'src="http' not in page
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (swept / "figures").iterdir())
    assert len(list((swept / "figures").iterdir())) == 6


def test_the_order_of_a_report_is_not_that_in_which_cells_ended():
    lines = [fake_line(name, 0, 1.0, dataset) for name in ("arx", "own", "ffvd") for dataset in ("furnace", "dryer")]
    lines.insert(0, fake_line("mean", 0, 1.0, "furnace", "rolling"))
    for several in (lines, lines[::-1]):
        order = [one[:3] for one in summarise(several) if one.metric == "rmse"]
        assert order == [
            *(("p30", dataset, name) for dataset in ("dryer", "furnace") for name in ("own", "ffvd", "arx")),
            ("rolling", "furnace", "mean"),
        ]
        assert methods_of(summarise(several)) == ["own", "ffvd", "arx", "mean"]


def fake_line(method, seed, rmse, dataset="furnace", protocol="p30", coverage=0.9):
    identity = Cell(dataset, "mean", seed, toy_series()).identity(protocol) | {"method": method}
    if rmse is None:
        return identity | {"status": "failed", "error": "ValueError: <no>", "versions": {"gpssm": "0"}}
    return identity | {
        "status": "ok",
        "metrics": {"rmse": rmse, "nlpd": None, "crps": rmse, "coverage_90": coverage},
        "share_left": 0.0,
        "forecast_rhat": None,
        "seconds": {"fit": {"wall": 2.0, "cpu": 1.0}, "compile": 0.5, "protocol": {"wall": 1.0, "cpu": 1.0}},
        "peak_megabytes": 100.0,
        "versions": {"gpssm": "0"},
    }


def test_marks_spreads_failures_and_published_figures(tmp_path):
    figures = {"a": [0.5, 0.7], "b": [0.4, 0.4], "c": [0.9, None], "d": [None, None]}
    lines = [fake_line(name, seed, value) for name, values in figures.items() for seed, value in enumerate(values)]
    lines += [fake_line(name, 0, 1.0, protocol="full", coverage=share) for name, share in {"a": 1.0, "b": 0.85}.items()]
    append(tmp_path, lines)
    text = write_report(tmp_path).read_text()
    p30, full = text.split("## PFULL")
    table = p30.split("### RMSE")[1].split("###")[0]
    assert "| a | <u>0.6 ± 0.141</u> |" in table
    assert "| b | **0.4 ± 0** |" in table
    assert "| c | 0.9 (1 of 2 failed) |" in table
    assert "| d | failed |" in table
    assert "| FFVD-C-M, published (P30 only) | 0.548 ± 0.051 |" in table
    assert "EnVI" not in p30
    assert "| EnVI, published (PFULL only) | 1.39 |" in full
    assert "FFVD-C-M" not in full
    coverage = full.split("### Coverage")[1].split("###")[0]
    assert "| a | <u>1</u> |" in coverage
    assert "| b | **0.85** |" in coverage
    assert "- d on furnace, seed 1, p30: ValueError: <no>" in full
    page = (tmp_path / "report.html").read_text()
    assert "ValueError: &lt;no&gt;" in page
    assert "<tr class=published><th>FFVD-C-M, published (P30 only)</th><td>0.548 ± 0.051</td></tr>" in page


def test_numbers_are_short():
    assert [number(value) for value in (0.00301, -1234.5, 5.09e44, math.nan)] == ["0.00301", "-1234", "5.09e+44", "–"]


def test_memory_is_given_back(monkeypatch):
    cleared = []
    monkeypatch.setattr(cells.jax, "clear_caches", lambda: cleared.append(True))
    for kept, times in ((1e9, 0), (1.0, 1)):
        monkeypatch.setattr(cells, "KEPT_MEGABYTES", kept)
        run_cell(Cell("toy", "last", 0, toy_series(), SMALL, ("p30",)))
        assert len(cleared) == times


def test_published_figures():
    known = {(one.source, one.protocol, one.metric, one.method, one.dataset): (one.mean, one.sd) for one in PUBLISHED}
    assert len(known) == len(PUBLISHED) == 8 * 6 + 4 * 6 + 3 * 5 + 7
    best = {
        name: min(one.mean for one in PUBLISHED if one.dataset == name and one.method.startswith("FFVD") and one.sd)
        for name in DATASETS
    }
    assert list(best.values()) == [0.259, 0.009, 0.342, 0.065, 0.280, 0.548]
    assert known["FFVD", "p30", "nmll_paper", "VCDT", "furnace"] == (7.49, None)
    assert known["SIM", "simulate", "rmse", "dynoNet", "wiener-hammerstein"] == (0.0012, None)
    assert known["EnVI", "full", "rmse", "EnVI", "furnace"] == (1.388, None)


def test_mistakes_are_explained_before_anything_runs(tmp_path):
    for error, match, arguments in (
        (KeyError, "Unknown method 'arma'. Known: ffvd", {"methods": ["arma"]}),
        (KeyError, "Unknown protocols .*p31.*Known: p30", {"protocols": ["p31"]}),
        (ValueError, "are arguments of gpssm.fit; .*depth", {"settings": {"mean": {"depth": 2}}}),
        (ValueError, "are arguments of gpssm.fit; .*seed", {"settings": {"mean": {"seed": 2}}}),
        (ValueError, "not among the methods", {"settings": {"median": {}}}),
        (ValueError, "at least one", {"seeds": 0}),
        (ValueError, "jobs must be a whole number of at least 1", {"jobs": 0}),
        (TypeError, "list of names", {"datasets": "furnace"}),
        (ValueError, "no simulator", {"datasets": ["sim:nothing"]}),
    ):
        with pytest.raises(error, match=match):
            sweep(tmp_path, **arguments)
    assert not (tmp_path / FILE).exists()
    with pytest.raises(FileNotFoundError, match="run a sweep"):
        load_results(tmp_path)
    assert math.isnan(summarise([fake_line("a", 0, 1.0)])[1].mean)
