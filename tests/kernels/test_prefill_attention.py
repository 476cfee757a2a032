"""`prefill_attention` against dense attention in float64, whatever the pages hold."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.cases import struct
from fdjax.kernels.decode_attention import UnifiedMax
from fdjax.kernels.paged import KVCache, PageView, ScoreSpec
from fdjax.kernels.prefill_attention import (
    OP,
    PrefillAttention,
    handler,
    prefill_attention,
    reference,
)
from tests.support.decode_calls import WIDE, with_array
from tests.support.handlers import skip_without
from tests.support.numerics import assert_close
from tests.support.prefill_calls import (
    CALLS,
    CUDA_CALLS,
    Call,
    Drawn,
    check,
    check_against_the_reference,
    draw,
)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_the_reference_is_dense_attention(call: Call, packed: bool):
    drawn = draw(call, packed=packed)
    check(jax.jit(reference.prefill_attention)(drawn.call)[0], drawn)


@pytest.mark.cpu
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_the_cpu_handler_is_dense_attention(call: Call, packed: bool):
    skip_without("prefill_attention", "cpu")
    drawn = draw(call, packed=packed)
    with OP.using("cpu"):
        check(jax.jit(OP)(drawn.call)[0], drawn)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ragged", "heads_of_their_own", "window"])
def test_cudnn_equals_the_reference_whatever_pages_hold(name: str):
    drawn = draw(next(call for call in CALLS if call.name == name), packed=False)
    check_against_the_reference("cudnn", drawn, dtype=jnp.bfloat16)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=["bf16", "f16"])
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("call", CUDA_CALLS, ids=lambda call: call.name)
def test_cuda_equals_the_reference_whatever_pages_hold(
    call: Call, packed: bool, dtype: Any
):
    skip_without("prefill_attention", "gpu")
    check_against_the_reference("cuda", draw(call, packed=packed), dtype=dtype)


FULL_TABLES = [
    Call("full", (208, 64, 208), starts=(150, 0, 3), page_size=16, width=13),
    Call("cut", (3008, 50), starts=(2990, 0), page_size=16, width=188, head_dim=128),
]


@pytest.mark.parametrize("unified", [None, WIDE], ids=["synchronised", "unified"])
@pytest.mark.parametrize("call", FULL_TABLES, ids=lambda call: call.name)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("cuda", marks=pytest.mark.gpu),
        pytest.param("cpu", marks=pytest.mark.cpu),
    ],
)
def test_rows_have_no_more_tokens_than_their_table(
    name: str, call: Call, unified: UnifiedMax | None
):
    """What follows a row's pages is another row's, or nobody's memory."""
    skip_without("prefill_attention", "gpu" if name == "cuda" else "cpu")
    drawn, room = draw(call, packed=True), call.width * call.page_size
    view = drawn.call.pages
    beyond = jnp.array([2**31 - 1, room + 1, 5 * room], jnp.int32)[: view.num_rows]
    lengths = jnp.where(view.lengths < room, view.lengths, beyond)
    pages = dataclasses.replace(view, lengths=lengths)
    longer = dataclasses.replace(
        drawn, call=dataclasses.replace(drawn.call, pages=pages)
    )
    check_against_the_reference(name, longer, dtype=jnp.bfloat16, unified=unified)
    full, found = (_tokens_found(name, one, unified) for one in (drawn, longer))
    np.testing.assert_array_equal(full, found)


def _narrowed(call: PrefillAttention) -> PrefillAttention:
    call = dataclasses.replace(call, q=call.q.astype(jnp.bfloat16))
    return with_array(call, call.kv.cache.array.astype(jnp.bfloat16))


def _tokens_found(
    name: str, drawn: Drawn, unified: UnifiedMax | None
) -> np.ndarray[Any, Any]:
    """What queries that stand for a token find."""
    call = dataclasses.replace(_narrowed(drawn.call), unified=unified)
    with OP.using(name):
        out = np.asarray(jax.jit(functools.partial(OP))(call)[0], np.float32)
    rows = zip(drawn.firsts, drawn.expected, strict=True)
    return np.concatenate([out[first : first + len(rows)] for first, rows in rows])


@pytest.mark.gpu
@pytest.mark.parametrize("unified", [None, WIDE], ids=["synchronised", "unified"])
@pytest.mark.parametrize("heads", [8, 16, 32], ids=lambda heads: f"group{heads // 8}")
def test_rows_stand_beside_many_that_begin_before_their_sequence(
    heads: int, unified: UnifiedMax | None
):
    """So many tiles that no keys are cut; those of such rows have none."""
    skip_without("prefill_attention", "gpu")
    sizes: dict[str, Any] = {"num_heads": heads, "num_kv_heads": 8, "head_dim": 128}
    call = Call("good", (150, 40), starts=(7, 36), page_size=16, width=10, **sizes)
    drawn = draw(call, packed=True)
    good, bad = drawn.call, 80
    none = jnp.zeros(bad, jnp.int32)
    pages = PageView.packed(
        jnp.concatenate([jnp.tile(good.pages.page_table[:1], (bad, 1)),
                         good.pages.page_table]),
        jnp.concatenate([none, good.pages.lengths]),
        jnp.concatenate([none - 4, good.pages.first_positions]),
    )  # fmt: skip
    q = jnp.concatenate([jnp.ones((4 * bad, *good.q.shape[1:]), good.q.dtype), good.q])
    beside = dataclasses.replace(
        drawn,
        call=dataclasses.replace(good, q=q, pages=pages),
        firsts=[first + 4 * bad for first in drawn.firsts],
    )
    alone, found = (_tokens_found("cuda", one, unified) for one in (drawn, beside))
    assert_close(jnp.asarray(found, jnp.bfloat16), alone, reduction=128)


@pytest.mark.gpu
def test_a_page_beyond_2_to_the_31_elements():
    skip_without("prefill_attention", "gpu")
    shape = (2100, 32, 2, 16, 8, 128)
    sizes: dict[str, Any] = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
    large = Call("large", (40,), starts=(7,), page_size=16, width=3, **sizes)
    small = _narrowed(draw(large, packed=True).call)
    first = shape[0] - small.kv.cache.num_pages
    assert first * np.prod(shape[1:]) > 2**31

    @jax.jit
    def moved_behind(pages: jax.Array) -> jax.Array:
        return jnp.zeros(shape, pages.dtype).at[first:, 31].set(pages)

    array = moved_behind(small.kv.cache.array[:, small.kv.index])
    moved = dataclasses.replace(
        small,
        kv=KVCache.page_major(array).layer(31),
        pages=dataclasses.replace(
            small.pages, page_table=small.pages.page_table + first
        ),
    )
    with OP.using("cuda"):
        actual, _ = jax.jit(functools.partial(OP))(moved)
    expected, _ = jax.jit(reference.prefill_attention)(small)
    count = int(small.pages.lengths[0] - small.pages.first_positions[0])
    assert_close(actual[:count], expected[:count], reduction=64)


def test_a_row_without_tokens_gives_zeros():
    drawn = draw(CALLS[-1], packed=False)
    call = dataclasses.replace(drawn.call, q=jnp.ones_like(drawn.call.q))
    out, _ = reference.prefill_attention(call)
    assert np.all(np.asarray(out[: call.pages.room(len(out))]) == 0)


def test_why_cudnn_does_not_serve_is_said():
    said = OP.explain(draw(CALLS[0], packed=False).call)
    assert "cuDNN needs an NVIDIA GPU" in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": 84}, "head size 84; it takes 8 to 256 in steps of 8"),
        ({"head_dim": 264}, "head size 264"),
        ({"dtype": jnp.float32}, "q is float32"),
        (
            {"heads": (258, 2)},
            "258 query heads over 2 key/value",
        ),
        ({"page_size": 256}, "page size 256"),
    ],
)
def test_the_kernel_says_what_it_does_not_take(change: dict[str, Any], message: str):
    sizes: dict[str, Any] = {
        "head_dim": 64,
        "dtype": jnp.bfloat16,
        "heads": (4, 2),
        "page_size": 16,
    } | change
    heads, kv_heads = sizes["heads"]
    head_dim, dtype = sizes["head_dim"], sizes["dtype"]
    rows = struct(2, dtype=jnp.int32)
    call = PrefillAttention(
        struct(6, heads, head_dim, dtype=dtype),
        KVCache.page_major(
            struct(9, 3, 2, sizes["page_size"], kv_heads, head_dim, dtype=dtype)
        ).layer(0),
        PageView(struct(2, 4, dtype=jnp.int32), rows, rows, rows),
        ScoreSpec(None, 1.0, None, None),
    )
    refusal = handler.refuse_arguments(call, handler.CUDA_LIMITS)
    assert refusal is not None
    assert message in refusal


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": jnp.zeros((6, 5, 16))}, "5 query heads over 2"),
        ({"q": jnp.zeros((6, 4, 8))}, "head size is 8, kv's 16"),
        ({"q": jnp.zeros((6, 4, 16), jnp.bfloat16)}, "bfloat16, kv is float32"),
        ({"q": jnp.zeros((7, 4, 16))}, "7 queries for 2 rows"),
    ],
)
def test_operands_that_do_not_fit_are_named(change: dict[str, Any], message: str):
    operands: dict[str, Any] = {
        "q": jnp.zeros((6, 4, 16)),
        "kv": KVCache.page_major(jnp.zeros((4, 3, 2, 4, 2, 16))).layer(0),
        "pages": PageView(jnp.zeros((2, 2), jnp.int32), jnp.ones(2, jnp.int32)),
        "scale": 1.0,
    }
    with pytest.raises(ValueError, match=message):
        prefill_attention(**{**operands, **change})
