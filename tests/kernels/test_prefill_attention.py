"""`prefill_attention` against dense attention in float64, whatever the pages hold."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.paged import ScoreSpec
from fdjax.kernels.prefill_attention import (
    OP,
    PrefillAttention,
    blocked,
    prefill_attention,
    reference,
)
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


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A call and what dense attention makes of each row."""

    call: PrefillAttention
    expected: list[np.ndarray]


def draw(call: Call) -> Drawn:
    """Random arrays; slots that hold no token are NaN."""
    random = np.random.default_rng(len(call.name))
    heads = (call.num_kv_heads, call.head_dim)
    sequences = [
        (random.normal(size=(n, *heads)), random.normal(size=(n, *heads)))
        for n in call.lengths
    ]
    width = 4
    kv, table = scatter_pages(
        sequences,
        num_pages=16,
        page_size=call.page_size,
        num_layers=3,
        layer=1,
        width=width,
        seed=1,
    )
    starts = call.starts or (0,) * len(call.lengths)
    num_queries = max(n - s for n, s in zip(call.lengths, starts, strict=True))
    shape = (len(starts), max(num_queries, 1), call.num_heads, call.head_dim)
    q = random.normal(size=shape).astype(np.float32)
    slopes = np.linspace(0.1, 0.9, call.num_heads) if call.alibi else None
    sinks = np.linspace(-1.0, 2.0, call.num_heads) if call.sinks else None
    options: dict[str, Any] = {"scale": 0.3, **call.options}
    expected = [
        dense_attention(
            q[row, : n - start],
            k,
            v,
            start=start,
            slopes=slopes,
            sinks=sinks,
            **options,
        )
        for row, (n, start, (k, v)) in enumerate(
            zip(call.lengths, starts, sequences, strict=True)
        )
    ]
    drawn = PrefillAttention(
        jnp.asarray(q),
        jnp.asarray(kv),
        jnp.asarray(table),
        jnp.asarray(call.lengths, jnp.int32),
        ScoreSpec(
            None if slopes is None else jnp.asarray(slopes, jnp.float32),
            scale=options["scale"],
            soft_cap=options.get("soft_cap"),
            window=options.get("window"),
            sinks=None if sinks is None else jnp.asarray(sinks, jnp.float32),
        ),
        layer=1,
        starts=None if call.starts is None else jnp.asarray(call.starts, jnp.int32),
    )
    return Drawn(drawn, expected)


def check(out: jax.Array, drawn: Drawn) -> None:
    """Compares the queries that stand for a token."""
    for row, expected in enumerate(drawn.expected):
        count = len(expected)
        if count:
            assert_close(out[row, :count], expected, reduction=64)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_the_reference_is_dense_attention(call: Call):
    drawn = draw(call)
    check(OP(drawn.call), drawn)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_blocks_equal_the_reference(call: Call, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(blocked, "BLOCK_QUERIES", 3)
    drawn = draw(call)
    check(jax.jit(blocked.run)(drawn.call), drawn)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ragged", "heads_of_their_own", "window"])
def test_cudnn_equals_the_reference_whatever_pages_hold(name: str):
    call = draw(next(call for call in CALLS if call.name == name)).call
    call = dataclasses.replace(
        call, q=call.q.astype(jnp.bfloat16), kv=call.kv.astype(jnp.bfloat16)
    )
    assert OP.choice(call) == "cudnn"
    actual, expected = jax.jit(OP)(call), reference.prefill_attention(call)
    for row, count in enumerate(call.lengths.tolist()):
        assert_close(actual[row, :count], expected[row, :count], reduction=64)


def test_a_row_without_tokens_gives_zeros():
    drawn = draw(CALLS[-1])
    out = reference.prefill_attention(drawn.call)
    assert np.all(np.asarray(out[0]) == 0)


def test_a_cpu_is_served_by_the_reference():
    drawn = draw(CALLS[0])
    said = OP.explain(drawn.call)
    assert said.startswith("prefill_attention: reference")
    assert "cuDNN needs an NVIDIA GPU" in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": jnp.zeros((2, 3, 5, 16))}, "5 query heads over 2"),
        ({"q": jnp.zeros((2, 3, 4, 8))}, "head size is 8, kv's 16"),
        ({"q": jnp.zeros((2, 3, 4, 16), jnp.bfloat16)}, "bfloat16, kv is float32"),
        ({"lengths": jnp.zeros(3, jnp.int32)}, r"q has 2 rows.*\(3,\)"),
        ({"layer": 3}, "layer 3 of a kv array of 3"),
    ],
)
def test_operands_that_do_not_fit_are_named(change: dict[str, Any], message: str):
    operands: dict[str, Any] = {
        "q": jnp.zeros((2, 3, 4, 16)),
        "kv": jnp.zeros((4, 3, 2, 4, 2, 16)),
        "page_table": jnp.zeros((2, 2), jnp.int32),
        "lengths": jnp.ones(2, jnp.int32),
        "layer": 0,
        "scale": 1.0,
    }
    with pytest.raises(ValueError, match=message):
        prefill_attention(**{**operands, **change})
