"""`prefill_attention` with a unified maximum: the same results, and what is counted."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.decode_attention import UnifiedMax
from fdjax.kernels.paged import KVCache, PageView, ScoreSpec
from fdjax.kernels.prefill_attention import OP, PrefillAttention, reference
from tests.support.handlers import skip_without
from tests.support.numerics import assert_close
from tests.support.prefill_calls import (
    CALLS,
    CUDA_CALLS,
    Call,
    check,
    check_against_the_reference,
    draw,
)

FITS = UnifiedMax(0.0, -55.0, 55.0)
# The largest scores of these calls lie about 1 to 12.
TOO_LOW = UnifiedMax(-70.0, -5.0, 55.0)
TOO_HIGH = UnifiedMax(50.0, -2.0, 9.0)
SOME = UnifiedMax(2.0, -40.0, 4.0)
UNIFIED_CALLS = [
    call
    for call in CUDA_CALLS
    if call.head_dim in (64, 128, 256) and call.page_size in (8, 16, 32, 64, 128)
]


@pytest.mark.cpu
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_what_leaves_the_bounds_is_counted(call: Call, packed: bool):
    skip_without("prefill_attention", "cpu")
    drawn = draw(call, packed=packed)
    heads = call.new_heads

    @jax.jit  # in one program, where definitions share what does not depend on bounds
    def found(call: PrefillAttention) -> list[tuple[jax.Array, ...]]:
        bounds = (None, FITS, TOO_LOW, SOME)
        ones = [dataclasses.replace(call, unified=unified) for unified in bounds]
        with OP.using("cpu"):
            return [(reference.prefill_attention(one)[1], *OP(one)) for one in ones]

    results = found(drawn.call)
    for _, out, _ in results:
        check(out, drawn)
    for (by_definition, _, by_handler), expected in zip(
        results, (0 * heads, 0 * heads, heads), strict=False
    ):
        np.testing.assert_array_equal(by_definition, expected)
        np.testing.assert_array_equal(by_handler, expected)
    by_definition, _, by_handler = results[-1]
    np.testing.assert_array_equal(by_handler, by_definition)
    assert (np.asarray(by_definition) <= heads).all()


@pytest.mark.gpu
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("call", UNIFIED_CALLS, ids=lambda call: call.name)
def test_a_unified_maximum_changes_no_result(call: Call, packed: bool):
    """Whether it suits all rows, none, or some of a tile."""
    skip_without("prefill_attention", "gpu")
    drawn = draw(call, packed=packed)
    heads = call.new_heads
    check = functools.partial(
        check_against_the_reference, "cuda", drawn, dtype=jnp.bfloat16
    )
    # With ALiBi's slopes, pieces of a row's keys that lie far back leave any bounds.
    assert call.alibi or not check(unified=FITS).any()
    np.testing.assert_array_equal(check(unified=TOO_LOW), heads)
    np.testing.assert_array_equal(check(unified=TOO_HIGH), heads)
    check(unified=SOME)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("d128", slice(0, 40)),
        # Of one block of a pair alone: tiles are of 32 tokens, the last ones first.
        ("pairs", slice(32, 64)),
        ("pairs", slice(70, 75)),
    ],
)
def test_some_rows_of_a_tile_are_computed_again(name: str, tokens: slice):
    skip_without("prefill_attention", "gpu")
    call = next(call for call in UNIFIED_CALLS if call.name == name)
    drawn = draw(call, packed=True)
    # Of heads that share keys, one in some tokens of the first row has large scores.
    q = drawn.call.q.at[tokens, 1].multiply(12.0)
    large = dataclasses.replace(drawn, call=dataclasses.replace(drawn.call, q=q))
    bounds = UnifiedMax(0.0, -40.0, 25.0)
    again = check_against_the_reference(
        "cuda", large, dtype=jnp.bfloat16, unified=bounds
    )
    assert 0 < again[0] < call.new_heads[0]
    assert not again[1:].any()


@pytest.mark.gpu
def test_float16_is_synchronised():
    """It does not hold the weights."""
    skip_without("prefill_attention", "gpu")
    call = next(call for call in UNIFIED_CALLS if call.name == "d128")
    again = check_against_the_reference(
        "cuda", draw(call, packed=True), dtype=jnp.float16, unified=TOO_LOW
    )
    assert not again.any()


@pytest.mark.gpu
def test_a_block_may_have_more_items_than_notes():
    """Those beyond are computed once, synchronised."""
    skip_without("prefill_attention", "gpu")
    tokens, heads, head_dim = 140_000, 128, 64  # tiles of a token: 1,060 for each SM
    keys = jax.random.split(jax.random.key(0), 2)
    pages = -(-tokens // 16)
    cache = jax.random.normal(keys[0], (pages, 1, 2, 16, 1, head_dim), jnp.bfloat16)
    call = PrefillAttention(
        jax.random.normal(keys[1], (tokens, heads, head_dim), jnp.bfloat16),
        KVCache.page_major(cache).layer(0),
        PageView.packed(
            jnp.arange(pages, dtype=jnp.int32)[None],
            jnp.full(1, tokens, jnp.int32),
            jnp.zeros(1, jnp.int32),
        ),
        ScoreSpec(None, 0.2, None, window=3),
    )
    with OP.using("cuda"):
        run = jax.jit(OP)
        plain, _ = run(call)
        again, everything = run(dataclasses.replace(call, unified=TOO_HIGH))
        kept, nothing = run(dataclasses.replace(call, unified=FITS))
    assert bool(jnp.array_equal(again, plain))
    assert_close(kept[-9:], np.asarray(plain[-9:], np.float32), reduction=64)
    differs = jnp.max(jnp.abs(kept.astype(jnp.float32) - plain.astype(jnp.float32)))
    assert float(differs) < 0.05
    # What is never tried is not counted.
    assert 0.9 * tokens * heads < int(everything[0]) < tokens * heads
    assert int(nothing[0]) == 0
