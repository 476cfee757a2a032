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
from tests.support.decode_calls import with_array
from tests.support.dense_attention import dense_attention, scatter_pages
from tests.support.handlers import skip_without
from tests.support.numerics import assert_close


@dataclasses.dataclass(frozen=True)
class Call:
    """A ragged batch and what it is asked for."""

    name: str
    lengths: tuple[int, ...]
    starts: tuple[int, ...] | None = None
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 16
    page_size: int = 4
    options: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    alibi: bool = False
    sinks: bool = False
    width: int = 4


CALLS = [
    Call("ragged", (1, 4, 5, 11)),
    Call("heads_of_their_own", (7, 3), num_kv_heads=6, page_size=8),
    Call("one_kv_head", (9,), num_heads=8, num_kv_heads=1, head_dim=10),
    Call("window", (11, 2), options={"window": 3}),
    Call("soft_cap", (11, 2), options={"soft_cap": 5.0}),
    Call("alibi", (6, 13), alibi=True),
    Call("sinks", (6, 13), sinks=True),
    Call("continued", (9, 12), starts=(4, 12)),
    Call("continued_in_a_window", (9, 12), starts=(4, 10), options={"window": 2}),
    Call("empty_row", (0, 5)),
]


FITS = UnifiedMax(0.0, -55.0, 55.0)
# The largest scores of these calls lie about 1 to 12.
TOO_LOW = UnifiedMax(-70.0, -5.0, 55.0)
TOO_HIGH = UnifiedMax(50.0, -2.0, 9.0)
SOME = UnifiedMax(2.0, -40.0, 4.0)


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A call, what dense attention makes of each row, and where in `q` rows begin."""

    call: PrefillAttention
    expected: list[np.ndarray]
    firsts: list[int]


def draw(call: Call, *, packed: bool) -> Drawn:
    """Random arrays; slots that hold no token are NaN, and so are queries of no row.

    Args:
        call: what to draw.
        packed: rows follow one another, with padding at the end; else every row has the
            same room.
    """
    random = np.random.default_rng(len(call.name))
    heads = (call.num_kv_heads, call.head_dim)
    sequences = [
        (random.normal(size=(n, *heads)), random.normal(size=(n, *heads)))
        for n in call.lengths
    ]
    kv, table = scatter_pages(
        sequences,
        num_pages=call.width * len(call.lengths) + 3,
        page_size=call.page_size,
        num_layers=3,
        layer=1,
        width=call.width,
        seed=1,
    )
    starts = call.starts or (0,) * len(call.lengths)
    counts = [n - s for n, s in zip(call.lengths, starts, strict=True)]
    room = max(*counts, 1)
    firsts = np.cumsum([0, *counts])[:-1] if packed else np.arange(len(counts)) * room
    num_queries = sum(counts) + 3 if packed else len(counts) * room
    q = np.full((num_queries, call.num_heads, call.head_dim), np.nan, np.float32)
    slopes = np.linspace(0.1, 0.9, call.num_heads) if call.alibi else None
    sinks = np.linspace(-1.0, 2.0, call.num_heads) if call.sinks else None
    options: dict[str, Any] = {"scale": 0.3, **call.options}
    expected: list[np.ndarray] = []
    for first, count, start, (k, v) in zip(
        firsts, counts, starts, sequences, strict=True
    ):
        own = random.normal(size=(count, *q.shape[1:])).astype(np.float32)
        q[first : first + count] = own
        expected.append(
            dense_attention(
                own, k, v, start=start, slopes=slopes, sinks=sinks, **options
            )
        )
    pages = PageView(
        jnp.asarray(table),
        jnp.asarray(call.lengths, jnp.int32),
        None if call.starts is None else jnp.asarray(call.starts, jnp.int32),
        jnp.asarray(firsts, jnp.int32) if packed else None,
    )
    drawn = PrefillAttention(
        jnp.asarray(q),
        KVCache.page_major(jnp.asarray(kv)).layer(1),
        pages,
        ScoreSpec(
            None if slopes is None else jnp.asarray(slopes, jnp.float32),
            scale=options["scale"],
            soft_cap=options.get("soft_cap"),
            window=options.get("window"),
            sinks=None if sinks is None else jnp.asarray(sinks, jnp.float32),
        ),
    )
    return Drawn(drawn, expected, firsts.tolist())


def check(out: jax.Array, drawn: Drawn) -> None:
    """Compares the queries that stand for a token."""
    for first, expected in zip(drawn.firsts, drawn.expected, strict=True):
        if len(expected):
            assert_close(out[first : first + len(expected)], expected, reduction=64)


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


@pytest.mark.cpu
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_what_leaves_the_bounds_is_counted(call: Call, packed: bool):
    skip_without("prefill_attention", "cpu")
    drawn = draw(call, packed=packed)
    starts = call.starts or (0,) * len(call.lengths)
    heads = call.num_heads * (np.asarray(call.lengths) - np.asarray(starts))

    def counts(unified: UnifiedMax | None) -> list[np.ndarray[Any, Any]]:
        one = dataclasses.replace(drawn.call, unified=unified)
        found = [np.asarray(jax.jit(reference.prefill_attention)(one)[1])]
        with OP.using("cpu"):
            out, recomputed = jax.jit(OP)(one)
        check(out, drawn)
        return [*found, np.asarray(recomputed)]

    for unified, expected in ((None, 0 * heads), (FITS, 0 * heads), (TOO_LOW, heads)):
        for found in counts(unified):
            np.testing.assert_array_equal(found, expected)
    by_definition, by_handler = counts(SOME)
    np.testing.assert_array_equal(by_handler, by_definition)
    assert (by_definition <= heads).all()


def check_against_the_reference(
    name: str, drawn: Drawn, *, dtype: Any, unified: UnifiedMax | None = None
) -> np.ndarray[Any, Any]:
    """Runs one implementation and compares queries that stand for a token.

    Returns:
        How many query heads of each row were computed again.
    """
    call = dataclasses.replace(
        drawn.call, q=drawn.call.q.astype(dtype), unified=unified
    )
    call = with_array(call, call.kv.cache.array.astype(dtype))
    with OP.using(name):
        actual, recomputed = jax.jit(OP)(call)
    expected, _ = jax.jit(reference.prefill_attention)(call)
    for first, rows in zip(drawn.firsts, drawn.expected, strict=True):
        if len(rows):
            own = slice(first, first + len(rows))
            assert_close(actual[own], expected[own], reduction=64)
    return np.asarray(recomputed)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ragged", "heads_of_their_own", "window"])
def test_cudnn_equals_the_reference_whatever_pages_hold(name: str):
    drawn = draw(next(call for call in CALLS if call.name == name), packed=False)
    check_against_the_reference("cudnn", drawn, dtype=jnp.bfloat16)


# Tiles of 128 rows and of 64 keys, and their edges; every size of head that has a
# kernel of its own, and some between.
CUDA_CALLS = [
    *(call for call in CALLS if call.head_dim % 8 == 0),
    Call("tiles", (200, 64, 63, 65, 1), starts=(3, 0, 0, 0, 0), page_size=16, width=13),
    Call("long_prefix", (700,), starts=(690,), page_size=16, width=44, head_dim=128),
    Call("mqa", (130, 40), page_size=16, width=9, num_heads=16, num_kv_heads=1),
    Call("mha", (300,), page_size=32, width=10, num_heads=3, num_kv_heads=3),
    Call("d64", (150, 70), page_size=8, width=19, head_dim=64),
    Call("mqa_d128", (130, 40), page_size=16, width=9, num_kv_heads=1, head_dim=128),
    Call("mha_d64", (300,), page_size=32, width=10, num_kv_heads=6, head_dim=64),
    Call("d80", (150, 70), page_size=8, width=19, head_dim=80),
    Call("d128", (150, 70), page_size=16, width=10, head_dim=128),
    Call("d256", (150, 70), page_size=16, width=10, head_dim=256),
    Call("wide_window", (300, 20), page_size=16, width=19, options={"window": 100}),
    Call("many", tuple(range(1, 71)), page_size=16, width=5, num_heads=8),
    # So few queries after so many keys that these are cut into pieces.
    Call(
        "pieces",
        (3000, 500, 0, 700),
        starts=(2990, 0, 0, 699),
        page_size=16,
        width=188,
        head_dim=128,
    ),
    Call(
        "pieces_d64",
        (2900, 140),
        starts=(2890, 130),
        page_size=32,
        width=91,
        head_dim=64,
    ),
    Call("pieces_d256", (1900,), starts=(1850,), page_size=16, width=119, head_dim=256),
    Call(
        "pieces_without_engine",
        (2500,),
        starts=(2400,),
        page_size=12,
        width=209,
        head_dim=80,
    ),
    Call(
        "pieces_of_everything",
        (2500, 20),
        starts=(2400, 3),
        page_size=16,
        width=157,
        head_dim=128,
        options={"window": 1700, "soft_cap": 7.0},
        alibi=True,
        sinks=True,
    ),
    Call("pages_of_8", (900,), starts=(400,), page_size=8, width=113, head_dim=128),
    Call("pages_of_128", (900,), starts=(400,), page_size=128, width=8, head_dim=256),
    Call(
        "everything",
        (300, 20),
        starts=(37, 3),
        page_size=16,
        width=19,
        head_dim=128,
        options={"window": 90, "soft_cap": 7.0},
        alibi=True,
        sinks=True,
    ),
]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=["bf16", "f16"])
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("call", CUDA_CALLS, ids=lambda call: call.name)
def test_cuda_equals_the_reference_whatever_pages_hold(
    call: Call, packed: bool, dtype: Any
):
    skip_without("prefill_attention", "gpu")
    check_against_the_reference("cuda", draw(call, packed=packed), dtype=dtype)


UNIFIED_CALLS = [
    call
    for call in CUDA_CALLS
    if call.head_dim in (64, 128, 256) and call.page_size in (8, 16, 32, 64, 128)
]


@pytest.mark.gpu
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("call", UNIFIED_CALLS, ids=lambda call: call.name)
def test_a_unified_maximum_changes_no_result(call: Call, packed: bool):
    """Whether it suits all rows, none, or some of a tile."""
    skip_without("prefill_attention", "gpu")
    drawn = draw(call, packed=packed)
    starts = call.starts or (0,) * len(call.lengths)
    heads = call.num_heads * (np.asarray(call.lengths) - np.asarray(starts))
    check = functools.partial(
        check_against_the_reference, "cuda", drawn, dtype=jnp.bfloat16
    )
    # With ALiBi's slopes, pieces of a row's keys that lie far back leave any bounds.
    assert call.alibi or not check(unified=FITS).any()
    np.testing.assert_array_equal(check(unified=TOO_LOW), heads)
    np.testing.assert_array_equal(check(unified=TOO_HIGH), heads)
    check(unified=SOME)


@pytest.mark.gpu
def test_some_rows_of_a_tile_are_computed_again():
    skip_without("prefill_attention", "gpu")
    call = next(call for call in UNIFIED_CALLS if call.name == "d128")
    drawn = draw(call, packed=True)
    # Of three heads that share keys, one in the first 40 tokens has large scores.
    q = drawn.call.q.at[:40, 1].multiply(12.0)
    large = dataclasses.replace(drawn, call=dataclasses.replace(drawn.call, q=q))
    bounds = UnifiedMax(0.0, -40.0, 25.0)
    again = check_against_the_reference(
        "cuda", large, dtype=jnp.bfloat16, unified=bounds
    )
    assert 0 < again[0] < call.num_heads * call.lengths[0]
    assert again[1] == 0


@pytest.mark.gpu
def test_float16_is_synchronised():
    """It does not hold the weights."""
    skip_without("prefill_attention", "gpu")
    call = next(call for call in UNIFIED_CALLS if call.name == "d128")
    again = check_against_the_reference(
        "cuda", draw(call, packed=True), dtype=jnp.float16, unified=TOO_LOW
    )
    assert not again.any()


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
