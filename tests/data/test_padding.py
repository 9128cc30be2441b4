"""Padded series: few lengths, little waste, one program for many numbers of rows."""

import jax
import numpy as np

import builders
from compilations import compilations
from gpssm.data.padding import (
    LONGEST,
    Padded,
    moves,
    num_moves,
    pad,
    pad_path,
    padded_length,
    real_states,
)


def test_few_lengths_with_little_waste():
    rows = np.arange(1, LONGEST + 1)
    padded = np.array([padded_length(int(count)) for count in rows])
    assert np.all(padded >= rows)
    assert np.all(np.diff(padded) >= 0)
    assert np.all(padded - rows < np.maximum(4, rows / 8))
    assert len(np.unique(padded)) <= 64
    assert np.array_equal(
        [padded_length(int(count)) for count in np.unique(padded)], np.unique(padded)
    )
    assert padded_length(LONGEST + 1) == LONGEST + 1


def test_rows_that_pad_say_nothing():
    series, states = builders.make_series(13, missing=True), builders.make_states(13)
    padded, path = pad(series), pad_path(states)
    assert len(padded) == 16
    assert path.shape == (17, 2)
    np.testing.assert_array_equal(padded.y[:13], series.y)
    np.testing.assert_array_equal(padded.u[:13], series.u)
    assert np.isnan(padded.y[13:]).all()
    np.testing.assert_array_equal(padded.u[13:], np.repeat(series.u[-1:], 3, 0))
    np.testing.assert_array_equal(path[:14], states)
    np.testing.assert_array_equal(path[14:], np.repeat(states[-1:], 3, 0))
    np.testing.assert_array_equal(moves(padded, float), np.arange(16) < 13)
    np.testing.assert_array_equal(real_states(padded, float), np.arange(17) < 14)
    assert num_moves([padded, series]) == 26
    long = builders.make_series(LONGEST + 1)
    assert pad(long) is long


def test_a_program_serves_many_numbers_of_rows():
    def count(series):
        assert isinstance(series, Padded)
        return num_moves([series])

    several, compiled = [pad(builders.make_series(rows)) for rows in (13, 14, 16)], jax.jit(count)
    with compilations() as seen:
        assert [int(compiled(one)) for one in several] == [13, 14, 16]
    assert len(seen) == 1
