"""Benchmarks: `run_sweep` fits and scores, `write_report` tabulates, `load_results` reads."""

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

__all__ = [
    "PROTOCOLS",
    "SUITES",
    "BenchmarkProblem",
    "load_problem",
    "load_results",
    "published",
    "result_tables",
    "run_sweep",
    "summarise",
    "write_report",
]
