"""Sums and maps over rows do not depend on the chunks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpssm.core import loops


@pytest.mark.parametrize(
    "count", [6, 7, 9, 11]
)  # 6 rows are taken at once; of the others 1, 0 and 2 are left over
def test_rows_in_chunks(count, monkeypatch):
    monkeypatch.setattr(loops, "CHUNK", 3)
    rows = (jnp.asarray(np.random.default_rng(0).normal(size=(count, 2))), jnp.arange(float(count)))

    def each(rows):
        return jnp.sin(rows[0]) * rows[1][:, None], rows[1] ** 2

    def add_up(rows):
        return jax.tree.map(lambda part: jnp.sum(part, 0), each(rows))

    found = jax.jit(lambda rows: loops.map_rows(each, rows))(rows)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-12), found, each(rows)
    )

    def value(x, add):
        return jnp.sum(add(add_up, (x, rows[1]))[0])

    ours, plain = (
        jax.jit(jax.value_and_grad(lambda x, add=add: value(x, add)))(rows[0])
        for add in (loops.sum_rows, lambda function, rows: function(rows))
    )
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-12), ours, plain)
