"""The set-up of the machine."""

import os

import pytest

from gpssm.core.runtime import THREADS, num_threads


def test_threads_are_the_cores_unless_a_variable_says_how_many(monkeypatch):
    monkeypatch.delenv(THREADS, raising=False)
    assert num_threads() == len(os.sched_getaffinity(0))
    monkeypatch.setenv(THREADS, "3")
    assert num_threads() == 3
    monkeypatch.setenv(THREADS, "none")
    with pytest.raises(ValueError, match="GPSSM_THREADS must be a whole number"):
        num_threads()
