"""Benchmarks: `run_sweep` fits and judges, `write_report` makes tables, `load_results` reads results."""

from gpssm.bench import (
    AUTO,
    PROTOCOLS,
    PUBLISHED,
    VARIANTS,
    Cell,
    Records,
    load_data,
    load_results,
    run_cell,
    run_sweep,
    write_report,
)

__all__ = [
    "AUTO",
    "PROTOCOLS",
    "PUBLISHED",
    "VARIANTS",
    "Cell",
    "Records",
    "load_data",
    "load_results",
    "run_cell",
    "run_sweep",
    "write_report",
]
