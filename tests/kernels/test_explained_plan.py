"""`explain` of attention of rows that decode: the plan, as far as lengths are known."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.decode_attention import OP, DecodeAttention
from fdjax.kernels.paged import KVCache, PageView, ScoreSpec, SharedPrefixes
from fdjax.kernels.shared_prefix import find_groups, plan_prefixes

HEADS, GROUP, SIZE, PAGE = 8, 4, 128, 16
WITHOUT_LENGTHS = "a plan for 256 clusters of 1 block of 8 warps"
pytestmark = pytest.mark.usefixtures("on_h200")


def _call(lengths: list[int], prefixes: SharedPrefixes | None = None) -> Any:
    """Rows with the heads of Llama-3-8B, which all have the same pages."""
    rows, width = len(lengths), -(-max(lengths, default=1) // PAGE)
    pages = PageView.decoding(
        jnp.tile(jnp.arange(width, dtype=jnp.int32), (rows, 1)),
        jnp.array(lengths, jnp.int32),
        prefixes=prefixes,
    )
    array: Any = jax.ShapeDtypeStruct((width, 1, 2, PAGE, HEADS, SIZE), jnp.bfloat16)
    cache = KVCache.page_major(array)
    q: Any = jax.ShapeDtypeStruct((rows, HEADS * GROUP, SIZE), jnp.bfloat16)
    scores = ScoreSpec(None, 1.0, None, None, None)
    return DecodeAttention(q, cache.layer(0), pages, scores, unified=None)


def test_lengths_that_are_known_have_a_plan():
    told = OP.explain(_call([512] * 63 + [32768]))
    assert told.startswith("decode_attention: cuda, a plan for 256 clusters of 1 block")
    assert "of them pieces of rows; the busiest cluster does 1.0" in told


def test_whole_rows_have_no_pieces():
    told = OP.explain(_call([1016] * 64))
    assert told.endswith(": 256 items; the busiest cluster does 1.00 of the mean")


def test_while_a_program_is_traced_lengths_are_not_known():
    call, found = _call([512] * 64), list[str]()

    def traced(call: DecodeAttention) -> jax.Array:
        found.append(OP.explain(call))
        return call.pages.lengths

    jax.eval_shape(traced, call)
    assert found == [f"decode_attention: cuda, {WITHOUT_LENGTHS}"]


def test_rows_that_are_none_or_gone_have_no_plan():
    assert "of the mean" not in OP.explain(_call([])), "no rows"
    gone = _call([512] * 64)
    gone.pages.lengths.delete()
    assert OP.explain(gone).endswith(WITHOUT_LENGTHS)


def test_what_rows_share_is_in_no_plan():
    lengths = [2048] * 64
    table = np.tile(np.arange(128, dtype=np.int32), (64, 1))
    table[:, 120:] = 128 + np.arange(64 * 8).reshape(64, 8)
    table[-1] = 1000 + np.arange(128)  # shares nothing
    groups = find_groups(table, lengths, page_size=PAGE)
    shared = plan_prefixes(groups, rows=64, num_kv_heads=HEADS, group=GROUP)
    alone, once = (OP.explain(_call(lengths, one)) for one in (None, shared))
    assert "pieces" not in alone, "rows are as long as each other"
    assert "of them pieces of rows" in once, "beside 128 tokens each, one has 2,048"
    # Held by a program that is traced, they are known as well.
    call = _call(lengths, shared)
    told: list[str] = []
    jax.eval_shape(lambda: told.append(OP.explain(call)))
    assert told == [once]
    jax.eval_shape(lambda call: told.append(OP.explain(call)), call)
    assert told[-1].endswith(WITHOUT_LENGTHS)
