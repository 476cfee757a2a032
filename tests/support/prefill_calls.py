"""Ragged batches for `prefill_attention`, drawn, and what they are compared with."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels.decode_attention import UnifiedMax
from fdjax.kernels.paged import KVCache, PageView, ScoreSpec
from fdjax.kernels.prefill_attention import OP, PrefillAttention, reference
from tests.support.decode_calls import with_array
from tests.support.dense_attention import dense_attention, scatter_pages
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

    @property
    def new_heads(self) -> np.ndarray[Any, Any]:
        """Query heads of each row's new tokens."""
        starts = self.starts or (0,) * len(self.lengths)
        return self.num_heads * (np.asarray(self.lengths) - np.asarray(starts))


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
    # Pairs of blocks (ffi/prefill_attention/pair.cuh): tiles of a row and of two, one
    # without a partner, and rows without new tokens; more than each pair takes at once.
    Call(
        "pairs",
        (150, 70, 9, 33, 1, 96),
        starts=(0, 5, 9, 32, 0, 0),
        num_heads=8,
        page_size=16,
        width=10,
        head_dim=128,
    ),
    Call("half_a_pair", (20,), num_heads=8, page_size=16, width=2, head_dim=128),
    Call(
        "pairs_of_short_rows",
        tuple(range(1, 71)),
        num_heads=16,
        page_size=16,
        width=5,
        head_dim=128,
    ),
    Call(
        "pairs_in_rounds",
        (700, 545),
        starts=(0, 32),
        num_heads=32,
        num_kv_heads=8,
        page_size=16,
        width=44,
        head_dim=128,
    ),
    Call(
        "pairs_of_everything",
        (500, 190),
        starts=(37, 3),
        num_heads=32,
        page_size=32,
        width=16,
        head_dim=128,
        options={"window": 150, "soft_cap": 7.0},
        alibi=True,
        sinks=True,
    ),
    Call(
        "pairs_of_pieces",
        (3000, 500, 0, 700),
        starts=(2890, 0, 0, 640),
        num_heads=8,
        page_size=16,
        width=188,
        head_dim=128,
    ),
    Call("pages_of_1", (150, 70, 1), starts=(7, 0, 0), page_size=1, width=152),
    Call(
        "pages_of_1_window",
        (300, 20),
        page_size=1,
        width=300,
        head_dim=128,
        options={"window": 100},
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
