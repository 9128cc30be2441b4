"""Benchmarks: `run_sweep` fits and judges, `write_report` tabulates, `load_results` reads."""

from gpssm.bench.problems import GROUPS, SUITES, Problem, load_problem
from gpssm.bench.protocols import PROTOCOLS
from gpssm.bench.published import PUBLISHED
from gpssm.bench.sweep import (
    STACK,
    VARIANTS,
    load_results,
    make_cell,
    parse_settings,
    run_cell,
    run_sweep,
)
from gpssm.bench.tables import provenance, result_tables, summarise, write_report

__all__ = [
    "GROUPS",
    "PROTOCOLS",
    "PUBLISHED",
    "STACK",
    "SUITES",
    "VARIANTS",
    "Problem",
    "load_problem",
    "load_results",
    "make_cell",
    "parse_settings",
    "provenance",
    "result_tables",
    "run_cell",
    "run_sweep",
    "summarise",
    "write_report",
]
