"""The benchmark: data available to a cell, results after interruptions, tables and reports."""

import json
import math
import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from gpssm.bench import (
    PROTOCOLS,
    SUITES,
    BenchmarkProblem,
    load_problem,
    load_results,
    published,
    result_tables,
    run_sweep,
    summarise,
    write_report,
)
from gpssm.bench import sweep as sweep_module
from gpssm.bench.problems import EMPS_STEP, halves, load_problems
from gpssm.bench.protocols import RollingProtocol, score
from gpssm.bench.sweep import make_cell, run_cell
from gpssm.bench.tables import provenance
from gpssm.core import metrics
from gpssm.data import datasets
from gpssm.data.series import Series
from gpssm.fitting.fit import fit
from gpssm.posterior.conditioning import condition_at
from gpssm.posterior.validation import RollingOrigin
from stand_ins import write_stand_ins

SMALL = {"num_chains": 1, "num_draws": 20}


def make_series(length=120, seed=0, outputs=1):
    rng = np.random.default_rng(seed)
    u = rng.normal(size=(length, 1))
    y = np.zeros((length, outputs))
    for t in range(1, length):
        y[t] = 0.8 * y[t - 1] + u[t] + 0.1 * rng.normal(size=outputs)
    return Series(y * 10.0 ** np.arange(outputs), u)


def sweep(out, methods=("mean", "last"), seeds=2, protocols=("p30",), **options):
    options = {"datasets": {"toy": make_series()}, "progress": False} | options
    settings = {name: SMALL for name in methods} | options.pop("settings", {})
    data = options.pop("datasets")
    return run_sweep(data, list(methods), seeds, protocols, out, settings=settings, **options)


def pretend(folder, deadly=None):
    """Work in place of a fit: it leaves a file for each cell, and may end its process."""

    def work(cell):
        import os

        (folder / f"{cell.method}-{cell.runtime.seed}-{len(list(folder.iterdir()))}").touch()
        if cell.runtime.seed == deadly:
            os._exit(1)
        figures = {name: {"rmse": 1.0} for name in cell.protocols}
        return sweep_module.blank_record(cell) | {
            "figures": figures,
            "threads": os.environ.get("GPSSM_THREADS"),
        }

    return work


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A folder with one file for each cell that was run, by work in place of fits."""
    folder = tmp_path / "begun"
    folder.mkdir()
    monkeypatch.setattr(sweep_module, "run_cell", pretend(folder))
    return folder


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    sweep(folder, ["last"], protocols=("p30", "simulation", "rolling"))
    return folder


@pytest.fixture(scope="module")
def posterior():
    """What the cell of `last` with seed 1 fits."""
    return fit(make_series()[:60], method="last", seed=1, progress=False, **SMALL)


# Judging


def test_a_result_has_all_figures_of_all_protocols(swept):
    results = load_results(swept)
    assert [(one["dataset"], one["method"], one["seed"]) for one in results] == [
        ("toy", "last", 0),
        ("toy", "last", 1),
    ]
    for record in results:
        assert record["errors"] == {}
        assert list(record["figures"]) == ["p30", "simulation", "rolling"]
        for figures in record["figures"].values():
            names = {"rmse", "crps", "nrmse", "ncrps", "coverage_90", "nlpd", "nmll_paper"}
            assert names <= set(figures)
        assert record["fit"]["spec"]["method"]["num_draws"] == 20
        assert record["fit"]["spec"]["kernel"] == "se"
        assert record["fit"]["cpu"] > 0
        assert record["fit"]["wall"] > record["fit"]["compile"] >= 0
        assert "jax" in record["code"]


def test_figures_agree_with_forecasts_made_by_hand(swept, posterior):
    series = make_series()
    figures = load_results(swept)[1]["figures"]
    for name, horizon in (("p30", 30), ("simulation", 60)):
        forecast = posterior.forecast(horizon, series.u[60 : 60 + horizon], seed=1)
        expected = forecast.score(series.y[60:])
        for figure in ("rmse", "crps", "ncrps", "coverage_90", "nlpd", "nmll_paper"):
            assert figures[name][figure] == pytest.approx(expected[figure])
        error = metrics.nrmse(forecast.mean, series.y[60 : 60 + horizon], series.y[60:])
        assert figures[name]["nrmse"] == pytest.approx(error)
    states = condition_at(posterior.thinned(20), series[60:], (0, 10, 20, 30), seed=1)
    forecasts = [
        state.forecast(30, series.u[row : row + 30], seed=1)
        for row, state in zip((60, 70, 80, 90), states, strict=True)
    ]
    errors = [one.mean - series.y[60 + 10 * i :][:30] for i, one in enumerate(forecasts)]
    expected = np.mean([np.sqrt(np.mean(error**2)) for error in errors])
    assert figures["rolling"]["rmse"] == pytest.approx(expected)
    pooled = np.sqrt(np.mean(np.square(errors))) / series.y[60:].std()
    assert figures["rolling"]["nrmse"] == pytest.approx(pooled)
    assert figures["rolling"]["origins"] == 4


def test_daisy_figures_are_means_over_outputs_in_standard_deviations():
    series = make_series(outputs=2)
    problem = BenchmarkProblem(series[:60], series[60:], "daisy")
    assert make_cell("toy", problem, "last", SMALL).protocols == ("daisy-rolling", "simulation")
    rng = np.random.default_rng(1)
    rows = [problem.test[:30], problem.test[30:]]
    forecasts = []
    for window in rows:
        paths = window.y + rng.normal(size=(50, 30, 2)) * (1.0, 5.0) + (0.3, 2.0)
        moments = (paths, np.ones_like(paths))
        parts = {"moments": moments, "moments_ahead": None, "diagnostics": None}
        forecasts.append(SimpleNamespace(paths=paths, mean=paths.mean(0), **parts))
    figures = score(list(zip(forecasts, rows, strict=True)), problem)
    nrmse = []
    ncrps = []
    for j in range(2):
        actual = np.concatenate([window.y[:, j] for window in rows])
        paths = np.concatenate([one.paths[..., j] for one in forecasts], axis=1)
        nrmse.append(metrics.rmse(paths.mean(0), actual) / problem.test.y[:, j].std())
        ncrps.append(metrics.crps(paths, actual) / problem.train.y[:, j].std())
    assert figures["nrmse"] == pytest.approx(np.mean(nrmse))
    assert figures["ncrps"] == pytest.approx(np.mean(ncrps))
    coverage = [
        metrics.coverage(one.paths, window.y, 0.9)
        for one, window in zip(forecasts, rows, strict=True)
    ]
    assert figures["coverage_90"] == pytest.approx(np.mean(coverage))


def test_no_method_sees_the_test_rows():
    def draws(first):
        series = make_series()
        y, u = series.y.copy(), series.u.copy()
        y[first:] = 7 - 3 * y[first:]
        u[first:] = u[first:] ** 2 + 5
        problem = halves(replace(series, y=y, u=u))
        return run_cell(make_cell("toy", problem, "arx", SMALL, 0, ("p30",)))["fit"]["draws"]

    clean, test_changed, train_changed = draws(120), draws(60), draws(59)
    assert clean == test_changed != train_changed


def test_a_rolling_forecast_is_given_the_rows_before_its_origin_only(posterior):
    test = make_series()[60:]
    later = test.y.copy()
    later[20:] += 3.0
    protocol = RollingProtocol(RollingOrigin(horizon=10, num_paths=20, same_seed=True))
    clean, changed = (
        [one.forecast.paths for one in protocol.forecasts(posterior, rows, 0)]
        for rows in (test, replace(test, y=later))
    )
    for row in range(3):
        np.testing.assert_array_equal(clean[row], changed[row])
    assert np.mean(changed[3] - clean[3]) == pytest.approx(3, abs=0.3)


def test_a_record_is_simulated_from_the_state_of_its_first_rows(posterior, tmp_path):
    test = replace(make_series(60, seed=5), window=10)
    problem = BenchmarkProblem(make_series()[:60], test, note="all rows")
    figures = PROTOCOLS["simulation"].judge(posterior, problem, 1)
    start = posterior.thinned(1000).condition(test[:10], new_experiment=True, seed=1)
    forecast = start.forecast(50, test.u[10:], seed=1)
    assert figures["rmse"] == pytest.approx(forecast.score(test[10:])["rmse"])
    few = replace(PROTOCOLS["simulation"], num_paths=9999, max_rows=1000 * 50 + 49)
    assert few.judge(posterior, problem, 1) == pytest.approx(figures)
    both = {"halves": make_series(), "record": problem}
    results = sweep(tmp_path, ["last"], 1, ("p30", "simulation"), datasets=both)
    assert [list(one["figures"]) for one in results] == [["p30", "simulation"], ["simulation"]]
    assert "record: all rows." in provenance(results)
    titles = [table.title for table in result_tables(summarise(results))]
    assert titles == [
        "Records: simulation of all test rows",
        "Other series: simulation of the first 30 test rows",
        "Other series: simulation of all test rows",
    ]


@pytest.mark.slow
def test_functions_may_learn_on_the_way():
    settings = {"state_dim": 2, "num_inducing": 4, "num_warmup": 30, "num_draws": 3}
    settings |= {"start": "em", "noise": "free", "num_chains": 1}
    settings |= {"method": "ffvd", "coupling": "shared"}
    cell = make_cell("toy", halves(make_series()), "shared", settings, 1)
    assert cell.spec.coupling == "shared"
    assert "learn" in cell.protocols
    state = fit(cell.problem.train, spec=cell.spec, runtime=cell.runtime)
    test = make_series()[60:]
    errors = []
    found = PROTOCOLS["learn"].judge(state, cell.problem, 1)
    for origin in (0, 10, 20, 30):
        if origin:
            forgetting = "auto" if origin == 10 else None
            state = state.learn(test[origin - 10 : origin], forgetting=forgetting, seed=1)
        forecast = state.forecast(30, test.u[origin : origin + 30], seed=1)
        errors.append(forecast.score(test[origin:])["rmse"])
    assert found["rmse"] == pytest.approx(np.mean(errors))


# Problems


def test_daisy_problems_have_at_most_500_rows_each(monkeypatch):
    for rows, sizes in ((1200, (500, 500)), (801, (400, 401)), (1000, (500, 500))):
        series = make_series(rows)
        monkeypatch.setattr("gpssm.bench.problems.load", lambda name, series=series: series)
        problem = load_problem("robot_arm")
        assert (len(problem.train), len(problem.test)) == sizes
        assert problem.suite == "daisy"
        np.testing.assert_array_equal(problem.test.y[0], series.y[sizes[0]])


def test_records_say_which_rows_are_used(tmp_path, monkeypatch):
    write_stand_ins(tmp_path, monkeypatch)
    stage, circuit = load_problems("records").values()
    assert (len(stage.train), stage.test.window) == (800 // EMPS_STEP, 20 // EMPS_STEP)
    assert stage.test.dt == EMPS_STEP * 1e-3
    assert "every 10th row" in stage.note
    whole = datasets.load("wiener-hammerstein")
    np.testing.assert_array_equal(circuit.test.y, whole.y[6000:])
    np.testing.assert_array_equal(circuit.train.y, whole.y[5200:6000])
    assert circuit.test.window == 50


def test_groups_and_names_of_data_sets(monkeypatch):
    monkeypatch.setattr("gpssm.bench.problems.load", lambda name: make_series(80))
    assert tuple(load_problems("daisy")) == datasets.DAISY
    assert list(load_problems(["all", "robot_arm"])) == [*SUITES["six"].datasets, "robot_arm"]
    problem = load_problem("sim:kink")
    assert problem.suite == "series"
    assert problem.fingerprint == load_problem("sim:kink").fingerprint
    assert problem.fingerprint != problem._replace(test=problem.test[:30]).fingerprint


# Sweeps


def test_a_sweep_continues_where_it_stopped(tmp_path, begun):
    sweep(tmp_path, seeds=1)
    assert len(list(begun.iterdir())) == 2
    sweep(tmp_path, seeds=1)
    assert len(list(begun.iterdir())) == 2
    results = sweep(tmp_path, seeds=[0, 1], protocols=("p30", "simulation"))
    assert len(list(begun.iterdir())) == 2 + 4
    assert [list(one["figures"]) for one in results] == [["p30", "simulation"]] * 4
    results = sweep(tmp_path, ["mean"], seeds=1, settings={"mean": {"num_draws": 21}})
    assert len(results) == 4 + 1
    summary = summarise(results).xs("mean", level="method")
    assert list(summary.seeds) == [1, 2]  # p30 has one seed of the latest settings


def test_shards_are_the_sweep_in_parts(tmp_path, begun):
    names = set()
    for part in (1, 2, 3):
        results = sweep(tmp_path / str(part), seeds=4, shard=(part, 3))
        assert len(results) in (2, 3)
        names |= {path.name for path in (tmp_path / str(part) / "cells").iterdir()}
    merged = load_results(*(tmp_path / str(part) for part in (1, 2, 3)))
    assert len(merged) == len(names) == 8
    path = write_report(*(tmp_path / str(part) for part in (1, 2, 3)), out=tmp_path / "all")
    assert path == tmp_path / "all" / "report.md"
    with pytest.raises(ValueError, match="1 <= i <= n; got 4 of 3"):
        sweep(tmp_path, shard=(4, 3))


def test_a_failure_is_recorded_and_stops_nothing_else(tmp_path):
    options = {
        "datasets": {"short": make_series(40)},
        "settings": {"greedy": {"method": "arx", "orders": (12, 12), **SMALL}},
        "protocols": ("p30", "simulation"),
    }
    results = sweep(tmp_path, ["greedy", "last"], 1, **options)
    greedy, last = (one for one in results)
    assert "A regression on 12 past outputs" in greedy["errors"]["fit"]
    assert "regress" in greedy["traceback"]
    assert "a forecast needs 30 test rows; there are 20" in last["errors"]["p30"]
    assert list(last["figures"]) == ["simulation"]
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}
    sweep(tmp_path, ["greedy", "last"], 1, **options)
    assert files == {path: path.stat().st_mtime_ns for path in files}
    sweep(tmp_path, ["greedy", "last"], 1, retry=True, **options)
    assert all(path.stat().st_mtime_ns > before for path, before in files.items())
    text = write_report(tmp_path).read_text()
    assert "0, 1 failed" in text
    assert "- Failed: last on short, seed 0, p30: ValueError" in text


@pytest.mark.slow
def test_a_process_that_dies_costs_one_cell(tmp_path, begun, monkeypatch):
    monkeypatch.setattr(sweep_module, "run_cell", pretend(begun, deadly=1))
    results = sweep(tmp_path, ["mean"], seeds=3, jobs=2)
    assert {one["seed"]: "fit" in one["errors"] for one in results} == {0: False, 1: True, 2: False}
    assert {one["threads"] for one in results if "threads" in one} == {"1"}
    assert "GPSSM_THREADS" not in os.environ


@pytest.mark.slow
def test_processes_compute_the_same(swept, tmp_path):
    protocols = ("p30", "simulation", "rolling")
    found = {one["seed"]: one for one in sweep(tmp_path, ["last"], 2, protocols, jobs=2)}
    for record in load_results(swept):
        assert found[record["seed"]]["fit"]["draws"] == record["fit"]["draws"]
        for name in protocols:
            assert found[record["seed"]]["figures"][name] == pytest.approx(record["figures"][name])


def test_progress_names_the_cells(tmp_path, begun, capsys):
    sweep(tmp_path, ["mean"], 1, progress="plain")
    assert capsys.readouterr().err.startswith("gpssm: sweep 1/1, toy-mean-0-")


def test_mistakes_are_explained_before_anything_runs(tmp_path):
    for error, match, arguments in (
        (KeyError, "Unknown method 'arma'", {"methods": ["arma"]}),
        (ValueError, "a protocol must be one of p30, .*; got 'p31'", {"protocols": ["p31"]}),
        (TypeError, "mean has no setting 'depth'", {"settings": {"mean": {"depth": 2}}}),
        (TypeError, "mean has no setting 'seed'", {"settings": {"mean": {"seed": 2}}}),
        (ValueError, "a method with settings must", {"settings": {"median": {}}}),
        (ValueError, "is scored by none of learn", {"protocols": ["learn"]}),
        (ValueError, "at least one", {"seeds": 0}),
        (ValueError, "jobs must be a whole number of at least 1", {"jobs": 0}),
        (ValueError, "a simulator must be", {"datasets": ["sim:unheard"]}),
    ):
        with pytest.raises(error, match=match):
            sweep(tmp_path, **arguments)
    assert not (tmp_path / "cells").exists()
    with pytest.raises(FileNotFoundError, match="run a sweep"):
        load_results(tmp_path)


# Tables


def make_result(method, seed, figures, dataset="winding", suite="daisy", code="gpssm 1"):
    record = {"dataset": dataset, "suite": suite, "method": method, "seed": seed, "code": code}
    record |= {"identity": "x", "note": "", "errors": {}, "finished": f"{seed}"}
    record |= {"fit": {"cpu": 12.5, "weights": {}}, "figures": figures, "protocols": list(figures)}
    return record


def daisy(nrmse, ncrps):
    figures = {"rmse": 9.0, "nrmse": nrmse, "ncrps": ncrps, "coverage_90": 0.9}
    return {"daisy-rolling": figures, "simulation": figures}


def test_ratios_are_against_the_best_baseline_of_each_set():
    results = [
        make_result("ffvd", 0, daisy(0.10, 0.05)),
        make_result("ffvd", 1, daisy(0.14, 0.07)),
        make_result("arx", 0, daisy(0.24, 0.04)),
        make_result("lgssm", 0, daisy(0.20, 0.08)),
        make_result("last", 0, daisy(0.01, 0.01)),  # is no baseline
        make_result("ffvd", 0, daisy(0.2, 0.1), "evaporator"),
        make_result("lstm", 0, daisy(0.5, 0.4), "evaporator"),
        make_result("ffvd", 0, daisy(0.2, 0.1), "exchanger"),
    ]
    summary = summarise(results)
    ratio = summary.ratio["daisy"]
    assert ratio["daisy-rolling", "winding", "ffvd"] == pytest.approx(0.06 / 0.04)
    assert ratio["simulation", "winding", "ffvd"] == pytest.approx(0.12 / 0.20)
    assert ratio["daisy-rolling", "winding", "arx"] == 1
    assert ratio["daisy-rolling", "evaporator", "ffvd"] == pytest.approx(0.25)
    assert math.isnan(ratio["daisy-rolling", "exchanger", "ffvd"])
    assert summary.nrmse_sd["daisy", "simulation", "winding", "ffvd"] == pytest.approx(
        0.02 * 2**0.5
    )
    simulation, of_simulation, rolling, of_rolling = result_tables(summary)
    assert simulation.title == "DaISy suite: simulation of all test rows"
    rows = {row[0]: row[1:] for row in of_rolling.rows}
    assert of_rolling.columns[1:] == ["geometric mean", "worst", "sets"]
    assert rows["ffvd"] == ["0.612", "1.5 (winding)", "2"]  # the root of 1.5 · 0.25
    assert rows["lgssm"] == ["2", "2 (winding)", "1"]
    assert "CRPS" in of_rolling.title
    assert "NRMSE" in of_simulation.title
    assert [row[0] for row in rolling.rows if not row[0].startswith(" ")] == [
        "exchanger",
        "evaporator",
        "winding",
    ]


def test_tables_fit_into_80_columns():
    long = "vcdt-factorised"
    results = [
        make_result(method, seed, daisy(0.0123 * (seed + 1), 0.0456 * (seed + 1)), name)
        for name in datasets.DAISY
        for method in ("arx", long)
        for seed in (0, 1)
    ]
    for table in result_tables(summarise(results)):
        assert max(len(line) for line in str(table).splitlines()) <= 80
        assert table.markdown.count("\n| ") == len(table.rows) + 2


def test_published_figures_stand_beside_ours_and_are_not_ranked():
    figures = {"p30": {"rmse": 0.5, "crps": 0.2, "nlpd": None, "coverage_90": 0.9}}
    results = [make_result("arx", 0, figures, "furnace", "six")]
    table, ratios = result_tables(summarise(results))
    rows = {row[0].strip(): row for row in table.rows}
    assert rows["FFVD-C-M*"][1] == "0.548 ± 0.051"
    assert "EnVI*" not in rows
    assert [row[0] for row in ratios.rows] == ["arx"]
    assert published("six", "simulation", "furnace")["EnVI"] == pytest.approx(
        (1.388, math.nan), nan_ok=True
    )
    assert published("records", "simulation", "wiener-hammerstein")["dynoNet"] == pytest.approx(
        (0.0012, math.nan), nan_ok=True
    )
    assert len(published("six", "p30", "drive")) == 9
    assert published("six", "p30", "flutter").keys() == published("six", "p30", "drive").keys() - {
        "RGPSSM"
    }


def test_a_report_is_a_page_and_a_file_of_figures(swept):
    import pandas

    path = write_report(swept)
    text = path.read_text()
    assert "## Other series: 30-step forecasts from every 10th test row\n" in text
    summary = pandas.read_csv(swept / "summary.csv")
    assert list(summary.protocol) == ["p30", "simulation", "rolling"]
    rmse = [json.loads(json.dumps(one))["figures"]["p30"]["rmse"] for one in load_results(swept)]
    assert summary.rmse[0] == pytest.approx(np.mean(rmse))
    assert summary.rmse_sd[0] == pytest.approx(np.std(rmse, ddof=1))
