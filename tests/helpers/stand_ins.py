"""Small files in the formats of the benchmarks with test records, for tests without the real
files.
"""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.signal

from gpssm.data import datasets

TEST_ROW = 6000  # where the second record of the table begins


def write_stand_ins(folder: Path, monkeypatch: pytest.MonkeyPatch, rows: int = 800) -> Path:
    """Write them and let `load` find them: a leaky integrator of its voltage, and a table of two columns and more."""
    rng = np.random.default_rng(0)
    for name in ("emps", "emps_pulses"):
        u = np.repeat(rng.normal(size=rows // 20), 20)
        y = scipy.signal.lfilter([0.01], [1.0, -0.99], u)
        columns = {
            "qm": y[:, None],
            "vir": u[:, None],
            "qg": y[:, None],
            "t": 1e-3 * np.arange(rows)[:, None],
        }
        scipy.io.savemat(folder / f"{name}.mat", columns | {"gtau": np.array([[35.15]])})
    table = rng.normal(size=(TEST_ROW + rows, 2)).round(6)
    lines = [f"{u},{y},{51200.0 if row == 0 else ''}," for row, (u, y) in enumerate(table)]
    (folder / "wiener_hammerstein.csv").write_text(
        "\n".join(['"uBenchMark","yBenchMark","fs",', *lines]) + "\n"
    )
    for name in ("emps", "emps-pulses", "wiener-hammerstein"):
        entry = datasets.REGISTRY[name]
        found = hashlib.sha256((folder / entry.file).read_bytes()).hexdigest()
        monkeypatch.setitem(datasets.REGISTRY, name, replace(entry, sha256=found))
    _, window = datasets.RECORDS["wiener-hammerstein"]
    monkeypatch.setitem(datasets.RECORDS, "wiener-hammerstein", (TEST_ROW, window))
    monkeypatch.setenv("GPSSM_DATA", str(folder))
    return folder
