"""Benchmarks: `run_sweep` fits and scores, `write_report` tabulates, `load_results` reads."""

from gpssm.bench.problems import SUITES, BenchmarkProblem, load_problem
from gpssm.bench.protocols import PROTOCOLS
from gpssm.bench.published import published
from gpssm.bench.sweep import load_results, run_sweep
from gpssm.bench.tables import result_tables, summarise, write_report

__all__ = ["PROTOCOLS", "SUITES", "BenchmarkProblem", "load_problem"]
__all__ += ["load_results", "published", "result_tables", "run_sweep", "summarise", "write_report"]
