"""Benchmarks: `run_sweep` fits and scores, `write_report` tabulates, `load_results` reads."""

from gpssm.bench import (
    PROTOCOLS,
    PUBLISHED,
    SUITES,
    BenchmarkProblem,
    load_problem,
    load_results,
    result_tables,
    run_sweep,
    summarise,
    write_report,
)

__all__ = [
    "PROTOCOLS",
    "PUBLISHED",
    "SUITES",
    "BenchmarkProblem",
    "load_problem",
    "load_results",
    "result_tables",
    "run_sweep",
    "summarise",
    "write_report",
]
