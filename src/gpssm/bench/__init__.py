"""Benchmarks: `run_sweep` fits and judges, `write_report` makes tables of it, `load_results` reads what was found."""

from gpssm.bench.cells import AUTO, VARIANTS, Cell, load_results, run_cell
from gpssm.bench.protocols import PROTOCOLS
from gpssm.bench.published import PUBLISHED
from gpssm.bench.records import Records, load_data
from gpssm.bench.report import write_report
from gpssm.bench.sweep import run_sweep

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
