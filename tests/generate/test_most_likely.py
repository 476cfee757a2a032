"""The most likely tokens, of long rows from few of their chunks."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fdjax.generate.most_likely import CHUNK, most_likely

SHORT, LONG, LONGEST = 301, CHUNK**2 + 1, 10 * CHUNK**2 + CHUNK - 1


def _logits(kind: str, size: int) -> jax.Array:
    random = np.random.default_rng(size)
    logits = random.normal(size=(5, size)).astype(np.float32)
    if kind == "ties":
        logits = np.round(logits * 2) / 2
    if kind == "few":  # fewer that may come than are asked for
        logits[:, random.permutation(size)[3:]] = -np.inf
        logits[4] = -np.inf
    return jnp.asarray(logits)


@pytest.mark.parametrize("size", [SHORT, LONG, LONGEST])
@pytest.mark.parametrize("kind", ["any", "ties", "few"])
@pytest.mark.parametrize("count", [1, 5, 31, 200])
def test_they_are_those_of_a_sort(kind: str, count: int, size: int):
    logits = _logits(kind, size)
    values, tokens = jax.jit(most_likely, static_argnums=1)(logits, count)
    expected = lax.top_k(logits, count)
    np.testing.assert_array_equal(values, expected[0])
    np.testing.assert_array_equal(tokens, expected[1])


def test_all_of_a_row_may_be_asked_for():
    logits = _logits("ties", LONG)
    values, tokens = most_likely(logits, LONG)
    expected = lax.top_k(logits, LONG)
    np.testing.assert_array_equal(values, expected[0])
    np.testing.assert_array_equal(tokens, expected[1])


def test_no_long_row_is_sorted():
    def sizes(jaxpr: Any) -> Iterator[int]:
        for one in jaxpr.eqns:
            if one.primitive.name in ("top_k", "sort"):
                yield one.invars[0].aval.shape[-1]
            for inner in one.params.values():
                yield from sizes(inner.jaxpr) if hasattr(inner, "jaxpr") else ()

    logits = jnp.zeros((8, LONGEST))
    found = [*sizes(jax.make_jaxpr(lambda x: most_likely(x, 16))(logits).jaxpr)]
    assert len(found) == 3  # of maxima and of what is near, and of chunks in order
    assert max(found) <= 16 * CHUNK
    assert LONGEST in [*sizes(jax.make_jaxpr(jnp.sort)(logits).jaxpr)]
