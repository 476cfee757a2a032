"""RoPE and the write of keys and values: every implementation, and in place."""

import dataclasses
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.cases import Case, struct, tagged
from fdjax.kernels.paged import KVCache
from fdjax.kernels.rope_kv_write import (
    OP,
    RopeKVWrite,
    cases,
    reference,
    rope_kv_write,
)
from fdjax.kernels.rope_kv_write.arguments import Written
from fdjax.notation import Array
from tests.support.handlers import skip_without
from tests.support.numerics import assert_close

IMPLS = [name for name in OP.names if name != "reference"]
CI = tagged(cases.CASES, "ci")
SMALL = CI[0]
MARKS = {"cuda": (pytest.mark.gpu,), "cpu": (), "reference": ()}


def _taken() -> list[Any]:
    """Each implementation with each case; those too large for a CPU are a GPU's."""
    return [
        pytest.param(name, case, id=f"{name}-{case.name}", marks=MARKS[name])
        for name in IMPLS
        for case in (CI if name == "cpu" else cases.CASES)
    ]


# One compilation a case instead of one an operation.
_reference = jax.jit(reference.rope_kv_write)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """An implementation that this machine has; all of them take every case."""
    if request.param != "reference":
        skip_without("rope_kv_write", "gpu" if request.param == "cuda" else "cpu")
    return request.param


each_impl, each_way = (
    pytest.mark.parametrize(
        "name", [pytest.param(name, marks=MARKS[name]) for name in names], indirect=True
    )
    for names in (IMPLS, OP.names)
)


def _with(call: RopeKVWrite, **changes: Any) -> RopeKVWrite:
    return dataclasses.replace(call, **changes)


def _run(cache: KVCache, call: RopeKVWrite, *, layer: int) -> Written:
    """The operation on a cache of its own, which can be donated."""
    return OP(_with(call, kv=cache.layer(layer)))


# --- Every implementation -------------------------------------------------------------


@pytest.mark.parametrize(("name", "case"), _taken(), indirect=["name"])
def test_agrees_with_the_definition(name: str, case: Case[RopeKVWrite]):
    call = cases.arguments(case)
    query, kv = _reference(call)
    with OP.using(name):
        run = jax.jit(_run, donate_argnums=0, static_argnames="layer")
        actual_query, actual_kv = run(
            call.kv.cache, _with(call, kv=None), layer=call.kv.index
        )
    assert_close(actual_query, query, reduction=2)
    assert_close(actual_kv.array, kv.array, reduction=2)


@each_way
@pytest.mark.parametrize("slot", [-1, -(2**31), 3 * cases.PAGE_SIZE, 2**31 - 1])
def test_slots_outside_the_array_write_nothing(name: str, slot: int):
    call = cases.arguments(SMALL)
    before = call.kv.cache
    assert before.num_pages * before.page_size == 3 * cases.PAGE_SIZE
    with OP.using(name):
        query, after = OP(_with(call, slots=jnp.full_like(call.slots, slot)))
    np.testing.assert_array_equal(np.asarray(after.array), np.asarray(before.array))
    assert np.asarray(query, np.float32).any()


def _tokens(call: RopeKVWrite, chosen: Any) -> RopeKVWrite:
    """The same call for some of its tokens."""
    each = {"qkv": call.qkv, "positions": call.positions, "slots": call.slots}
    return _with(call, **{field: array[chosen] for field, array in each.items()})


@each_way
def test_padding_among_tokens_moves_no_other_token(name: str):
    call = cases.arguments(SMALL)
    _, expected = _reference(_tokens(call, jnp.array([0, 2, 4])))
    with OP.using(name):
        _, actual = OP(_with(call, slots=call.slots.at[1].set(-1).at[3].set(-7)))
    assert_close(actual.array, expected.array, reduction=2)


@each_impl
@pytest.mark.parametrize("tokens", [0, 1])
def test_few_tokens(name: str, tokens: int):
    call = _tokens(cases.arguments(SMALL), slice(tokens))
    expected = _reference(call)
    with OP.using(name):
        actual = OP(call)
    assert_close(actual[0], expected[0], reduction=2)
    assert_close(actual[1].array, expected[1].array, reduction=2)


def _flushed(x: np.ndarray) -> np.ndarray:
    """In float32, whose subnormals XLA flushes to zero on a CPU."""
    x = x.astype(np.float32)
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.float32(0), x)


@each_impl
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_every_value_of_16_bits_is_read_and_rounded_right(name: str, dtype: Any):
    bits = np.arange(2**16, dtype=np.uint16)
    x = np.stack([bits.view(dtype), np.zeros(2**16, dtype)], axis=-1)
    qkv = jnp.concatenate([jnp.asarray(x), jnp.zeros((2, 2), dtype)])[None]
    layer = KVCache.page_major(jnp.zeros((1, 1, 2, 1, 1, 2), dtype)).layer(0)
    zero, one = jnp.zeros(1, jnp.int32), jnp.ones(1, jnp.int32)
    for angle in (0.0, 0.3):
        args = (qkv, layer, one, zero, jnp.array([angle], jnp.float32))
        with OP.using(name):
            query, _ = rope_kv_write(*args, interleaved=True)
        with np.errstate(all="ignore"):
            scaled = x[:, 0].astype(np.float32) * np.cos(np.float32(angle))
            expected = scaled.astype(dtype)
        np.testing.assert_array_equal(
            _flushed(np.asarray(query)[0, :, 0]), _flushed(expected)
        )


@each_impl
def test_vmap_is_refused_because_one_kv_array_is_updated(name: str):
    call = cases.arguments(SMALL)
    with OP.using(name), pytest.raises(NotImplementedError, match="vmap_method"):
        jax.vmap(lambda x: OP(_with(call, qkv=x))[0])(jnp.stack([call.qkv] * 2))


# --- In place -------------------------------------------------------------------------


def _step(kv: KVCache, call: RopeKVWrite, *, layers: int) -> Written:
    """Every layer of a step writes, as a decoder does."""
    total = jnp.zeros((), jnp.float32)
    for layer in range(layers):
        query, kv = _run(kv, call, layer=layer)
        total += query.astype(jnp.float32).sum()
    return total, kv


def _loop(kv: KVCache, call: RopeKVWrite, *, layers: int) -> Written:
    def body(step: Any, carry: Written) -> Written:
        moved = _with(call, positions=call.positions + step)
        total, kv = _step(carry[1], moved, layers=layers)
        return carry[0] + total, kv

    return jax.lax.fori_loop(0, 3, body, (jnp.zeros((), jnp.float32), kv))


@each_impl
@pytest.mark.parametrize("function", [_step, _loop], ids=["unrolled", "fori_loop"])
def test_a_donated_kv_array_is_updated_in_place(name: str, function: Any):
    call = cases.arguments(SMALL)
    kv, rest = call.kv.cache, _with(call, kv=None)
    step = jax.jit(function, donate_argnums=0, static_argnames="layers")
    expected = np.asarray(function(kv, rest, layers=2)[1].array, np.float32)
    with OP.using(name):
        compiled = step.lower(kv, rest, layers=2).compile()
        pointer = kv.array.unsafe_buffer_pointer()
        after = step(kv, rest, layers=2)[1].array
    assert after.unsafe_buffer_pointer() == pointer
    assert kv.array.is_deleted()
    np.testing.assert_array_equal(np.asarray(after, np.float32), expected)
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.alias_size_in_bytes >= after.nbytes
    shape = ",".join(map(str, after.shape))
    copies = re.findall(
        rf"= \S+\[{shape}\]\S* copy(?:-start)?\(", compiled.as_text() or ""
    )
    assert copies == []


# --- Whose fault ----------------------------------------------------------------------


def _arguments() -> list[Any]:
    """Those of the public function, in their order."""
    call = cases.arguments(SMALL)
    return [call.qkv, call.kv, call.positions, call.slots, call.frequencies]


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (0, jnp.zeros((5, 48)), "qkv is"),
        (0, jnp.zeros((5, 16, 128), jnp.bfloat16), "more than 16"),
        (0, jnp.zeros((5, 48, 64), jnp.bfloat16), "head size is 64, kv's is 128"),
        (0, jnp.zeros((5, 48, 128), jnp.float16), "qkv is float16, kv is bfloat16"),
        (2, jnp.zeros(4, jnp.int32), "5 tokens"),
        (3, jnp.zeros(6, jnp.int32), "5 tokens"),
        (3, jnp.zeros(5), "slots float32; both must be int32"),
        (4, jnp.zeros(65), "65 frequencies rotate 130 dimensions of a head of 128"),
    ],
)
def test_wrong_arguments_are_value_errors(index: int, value: Array, message: str):
    args = _arguments()
    args[index] = value
    with pytest.raises(ValueError, match=message):
        rope_kv_write(*args, interleaved=False)


@each_impl
def test_refuses_what_the_handler_does_not_take(name: str):
    def refusal(*, dtype: Any = jnp.float32, head_dim: int = 8, half: int = 4) -> str:
        call = RopeKVWrite(
            struct(1, 3, head_dim, dtype=dtype),
            KVCache.page_major(struct(1, 1, 2, 1, 1, head_dim, dtype=dtype)).layer(0),
            struct(1, dtype=jnp.int32),
            struct(1, dtype=jnp.int32),
            struct(half, dtype=jnp.float32),
            interleaved=False,
        )
        return str(OP.refuse(name, call))

    assert refusal() == "None"
    assert "float8_e4m3fn" in refusal(dtype=jnp.float8_e4m3fn)
    assert refusal(head_dim=9) == "head size 9 is odd"
    assert "1025 frequencies" in refusal(head_dim=2050, half=1025)


# --- Size -----------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_page_beyond_2_to_the_31_elements():
    shape = (2100, 32, 2, 16, 8, 128)
    assert math.prod(shape[1:]) * (shape[0] - 1) > 2**31
    skip_without("rope_kv_write", "gpu")
    call = cases.arguments(SMALL)
    slots, dtype = jnp.arange(5, dtype=jnp.int32), call.kv.cache.dtype
    one_page = KVCache.page_major(jnp.zeros((1, *shape[1:]), dtype))
    call = _with(call, kv=one_page.layer(31), slots=slots)
    _, expected = _reference(call)
    moved = _with(call, kv=None, slots=slots + (shape[0] - 1) * shape[3])
    with OP.using("cuda"):
        run = jax.jit(_run, donate_argnums=0, static_argnames="layer")
        many = KVCache.page_major(jnp.zeros(shape, dtype))
        kv = run(many, moved, layer=31)[1].array
    assert_close(kv[-1:], expected.array, reduction=2)
    assert not bool(jnp.any(kv[:-1] != 0))
