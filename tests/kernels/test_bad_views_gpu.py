"""Views that no row should have, on a GPU: rows beside them keep their results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.paged import KVCache, PageView, ScoreSpec
from fdjax.kernels.prefill_attention import OP, PrefillAttention
from tests.support.handlers import skip_without
from tests.support.numerics import assert_close

pytestmark = pytest.mark.gpu
ROWS, WIDTH, PAGE_SIZE, QUERIES = 6, 20, 16, 700
MOST = WIDTH * PAGE_SIZE
KV_HEADS, GROUP, HEAD_DIM = 2, 4, 64


def _rows(random: np.random.Generator) -> np.ndarray:
    """Length, position of the first new token, and its place, of good and bad rows."""
    rows = np.stack(
        [
            random.integers(-3, 2 * MOST, ROWS),
            random.integers(-2 * MOST, 2 * MOST, ROWS),
            random.integers(-5, QUERIES + 5, ROWS),
        ],
        axis=1,
    )
    rows[0] = (300, 200, 10)  # one that is as it should be
    rows[1, 0] = 2**31 - 1
    return rows


def _alone(rows: np.ndarray) -> np.ndarray:
    """Queries that stand in a sequence, of rows of which no other row claims any."""
    claimed, stand = np.zeros((2, ROWS, QUERIES), np.bool_)
    for row, (length, start, first) in enumerate(rows):
        end = first + min(length, MOST) - start
        if first >= 0 and end > first:
            claimed[row, first:end] = True
            stand[row, max(first, first - start) : end] = True
    shared = claimed & (claimed.sum(0) > 1)
    return stand[~shared.any(1)].any(0)


def _found(implementation: str, q: jax.Array, view: PageView) -> np.ndarray:
    shape = (ROWS * WIDTH, 1, 2, PAGE_SIZE, KV_HEADS, HEAD_DIM)
    pages = jax.random.normal(jax.random.key(0), shape, jnp.bfloat16)
    kv = KVCache.page_major(pages).layer(0)

    def run(q: jax.Array, view: PageView) -> jax.Array:
        with OP.using(implementation):
            spec = ScoreSpec(None, 0.1, None, None, None)
            return OP(PrefillAttention(q, kv, view, spec))[0]

    return np.asarray(jax.jit(run)(q, view).astype(jnp.float32))


# Of those whose rows do not all overlap.
@pytest.mark.parametrize("seed", [0, 1, 4, 6, 9, 18, 26, 40])
def test_rows_whose_queries_are_theirs_alone_keep_their_results(seed: int):
    skip_without(OP.name, "gpu")
    random = np.random.default_rng(seed)
    rows = _rows(random)
    table = random.permutation(ROWS * WIDTH).reshape(ROWS, WIDTH)
    lengths, starts, firsts = jnp.asarray(rows.T, jnp.int32)
    view = PageView(jnp.asarray(table, jnp.int32), lengths, starts, firsts)
    q = jax.random.normal(
        jax.random.key(seed), (QUERIES, KV_HEADS * GROUP, HEAD_DIM), jnp.bfloat16
    )
    served, defined = (_found(each, q, view) for each in ("cuda", "reference"))
    alone = _alone(rows)
    assert alone.any()
    assert_close(
        jnp.asarray(served[alone], jnp.bfloat16),
        jnp.asarray(defined[alone], jnp.bfloat16),
        reduction=MOST,
    )
