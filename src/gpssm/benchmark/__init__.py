"""Benchmarks: `run_sweep` fits and judges, `write_report` makes tables of it, `load_results` reads what was found."""

from gpssm.benchmark.auto import AUTO, load_selections
from gpssm.benchmark.cells import Cell, run_cell
from gpssm.benchmark.protocols import PROTOCOLS
from gpssm.benchmark.published import PUBLISHED
from gpssm.benchmark.report import write_report
from gpssm.benchmark.results import load_results
from gpssm.benchmark.sweep import run_sweep

__all__ = [
    "AUTO",
    "PROTOCOLS",
    "PUBLISHED",
    "Cell",
    "load_results",
    "load_selections",
    "run_cell",
    "run_sweep",
    "write_report",
]
