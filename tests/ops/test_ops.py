"""The public operations: their names, and JAX's transformations of them."""

import inspect
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from fdjax import ops
from fdjax.errors import Unsupported
from fdjax.kernels.decode_attention import OP as DECODE
from fdjax.kernels.decode_attention import DecodeAttention
from fdjax.kernels.decode_attention import cpu as decode_cpu
from fdjax.kernels.decode_attention import reference as decode_reference
from fdjax.kernels.matmul import OP as MATMUL
from fdjax.kernels.op import Impl
from fdjax.kernels.reporting import recording
from fdjax.kernels.rope_kv_write import OP as ROPE_KV_WRITE
from tests.support.handlers import skip_without
from tests.support.numerics import assert_close

HERE = pathlib.Path(__file__).parent
PUBLIC = HERE / "public.json"
# But for a context, which computes nothing.
FUNCTIONS = {
    name: getattr(ops, name)
    for name in ops.__all__
    if inspect.isfunction(getattr(ops, name)) and name != "batch_invariant"
}
HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE, ROWS = 4, 2, 8, 4, 3
RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(RANDOM.normal(size=shape), jnp.float32)


def cache() -> ops.KVCache:
    return ops.KVCache.page_major(normal(12, 1, 2, PAGE_SIZE, KV_HEADS, HEAD_DIM))


TABLE = jnp.arange(12, dtype=jnp.int32).reshape(ROWS, 4)
LENGTHS = jnp.asarray([13, 5, 8], jnp.int32)
DECODING = ops.PageView.decoding(TABLE, LENGTHS)
CHUNKS = ops.PageView.packed(TABLE, LENGTHS, LENGTHS - jnp.asarray([1, 5, 2]))


def attend(q: jax.Array, kv: ops.KVCache, pages: ops.PageView) -> jax.Array:
    return ops.attention(q, kv.layer(0), pages, scale=0.3)


def found(q: jax.Array, kv: ops.KVCache) -> ops.AttentionState:
    return ops.attention_states(q, kv.layer(0), DECODING, scale=0.3)


def rotated(qkv: jax.Array, kv: ops.KVCache) -> tuple[jax.Array, jax.Array]:
    slots = CHUNKS.slots(8, page_size=PAGE_SIZE)
    positions = CHUNKS.positions(8)
    frequencies = 1.0 / 100.0 ** (jnp.arange(4) / 4)
    q, written = ops.rope_and_write(
        qkv, kv.layer(0), positions, slots, frequencies, interleaved=True
    )
    return q, written.array


def ragged(
    q: jax.Array, k: jax.Array, v: jax.Array, pages: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return ops.ragged_paged_attention(
        q,
        k,
        v,
        pages,
        LENGTHS,
        TABLE,
        jnp.asarray([0, 1, 6, 8], jnp.int32),
        jnp.asarray([1, 1, 3], jnp.int32),
        sm_scale=0.3,
    )


CALLS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "attention of decoding rows": (
        lambda q, kv: attend(q, kv, DECODING),
        lambda: (normal(ROWS, HEADS, HEAD_DIM), cache()),
    ),
    "attention of chunks": (
        lambda q, kv: attend(q, kv, CHUNKS),
        lambda: (normal(8, HEADS, HEAD_DIM), cache()),
    ),
    "attention_states": (found, lambda: (normal(ROWS, HEADS, HEAD_DIM), cache())),
    "merge_states": (
        lambda *states: ops.merge_states(states),
        lambda: tuple(
            ops.AttentionState(normal(ROWS, HEADS, HEAD_DIM), normal(ROWS, HEADS))
            for _ in range(2)
        ),
    ),
    "ragged_paged_attention": (
        ragged,
        lambda: (
            normal(8, HEADS, HEAD_DIM),
            *(normal(8, KV_HEADS, HEAD_DIM) for _ in range(2)),
            normal(12, PAGE_SIZE, 2 * KV_HEADS, HEAD_DIM),
        ),
    ),
    "rope_and_write": (
        rotated,
        lambda: (normal(8, HEADS + 2 * KV_HEADS, HEAD_DIM), cache()),
    ),
    "flat_gemm": (
        ops.flat_gemm,
        lambda: (normal(3, 16), normal(5, 16), normal(5), normal(3, 5)),
    ),
    "rms_norm": (ops.rms_norm, lambda: (normal(3, 16), normal(16))),
}


def same(actual: Any, expected: Any) -> None:
    leaves = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    for one, other in leaves:
        assert_close(one, other, reduction=64)


def described(value: Any) -> Any:
    """A signature, or a type's with its members'; modules are our own affair."""
    if not callable(value):
        return type(value).__name__
    signature = re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)", "", str(inspect.signature(value)))
    if not inspect.isclass(value):
        return signature
    members = {"made by": signature}
    for name, member in vars(value).items():
        if isinstance(member, property):
            members[name] = f"property{described(member.fget)}"
        elif not name.startswith("_") and callable(getattr(value, name)):
            members[name] = described(getattr(value, name))
    return members


def test_names_and_signatures_are_those_of_the_version():
    """After a change that is meant, raise `VERSION` and write the file anew."""
    public = {name: described(getattr(ops, name)) for name in ops.__all__}
    recorded = json.loads(PUBLIC.read_text())
    assert {"VERSION": ops.VERSION, "public": public} == recorded


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_docstrings_tell_arguments_results_and_errors(name: str):
    """Of an array its shape: in the signature, or where its type has none there."""
    function = FUNCTIONS[name]
    parts = re.split(
        r"^(Args|Returns|Raises):\n", str(inspect.getdoc(function)), flags=re.MULTILINE
    )
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert set(sections) == {"Args", "Returns", "Raises"}
    assert re.search(r"^    \w+Error: ", sections["Raises"], re.MULTILINE)
    entries = re.split(r"^    (\w+): ", sections["Args"], flags=re.MULTILINE)
    told = dict(zip(entries[1::2], entries[2::2], strict=True))
    parameters = inspect.signature(function).parameters
    assert list(told) == list(parameters)
    types_with_shapes = {ops.KVLayer, ops.PageView}  # documented by themselves
    for each, parameter in parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            continue
        shaped = re.search(r"\[Array, '[^']+'\]", str(parameter.annotation))
        in_text = re.search(r"`\[[^`]+\]`", told[each])
        assert shaped or in_text or parameter.annotation in types_with_shapes, each


@pytest.mark.parametrize("name", CALLS)
def test_under_jit(name: str):
    function, arguments = CALLS[name]
    given = arguments()
    same(jax.jit(function)(*given), function(*given))


@pytest.mark.parametrize("name", [name for name in CALLS if name != "rope_and_write"])
def test_under_vmap(name: str):
    function, arguments = CALLS[name]
    given = [arguments() for _ in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *given)
    # Outside of jit, each has a test above.
    mapped, alone = jax.jit(jax.vmap(function))(*stacked), jax.jit(function)
    each = [alone(*one) for one in given]
    same(mapped, jax.tree.map(lambda *leaves: jnp.stack(leaves), *each))


@pytest.mark.parametrize("implementation", ["cpu", "reference"])
def test_a_batch_of_caches_is_not_copied_silently(implementation: str):
    function, arguments = CALLS["rope_and_write"]
    qkv, kv = arguments()
    if implementation == "cpu":
        skip_without("rope_kv_write", "cpu")
    mapped = {
        "all": lambda: jax.vmap(function)(one(qkv), jax.tree.map(one, kv)),
        "tokens": lambda: jax.vmap(function, in_axes=(0, None))(one(qkv), kv),
        "jit inside": lambda: jax.vmap(jax.jit(lambda x: function(x, kv)))(one(qkv)),
        "derivative": lambda: jax.vmap(jax.grad(lambda x: function(x, kv)[0].sum()))(
            one(qkv)
        ),
    }
    for call in mapped.values():
        message = "^rope_and_write: not under jax.vmap.*give all tokens to one call"
        with (
            ROPE_KV_WRITE.using(implementation),
            pytest.raises(NotImplementedError, match=message),
        ):
            call()


def one(leaf: jax.Array) -> jax.Array:
    return leaf[None]


@pytest.mark.parametrize("name", CALLS)
def test_derivatives(name: str):
    function, arguments = CALLS[name]
    check_grads(jax.jit(function), arguments(), order=1, atol=0.05, rtol=0.05)


def test_the_derivative_is_that_of_the_definition():
    """Whoever serves the call: a handler has none of its own."""
    x, weight = normal(3, 16), normal(5, 16)

    def loss(x: jax.Array) -> jax.Array:
        return jnp.sum(ops.flat_gemm(x, weight) ** 2)

    with MATMUL.using("reference"):
        expected = jax.grad(loss)(x)
    same(jax.grad(loss)(x), expected)


@pytest.mark.parametrize(
    "starts", [None, (12, 4, 7), LENGTHS, (0, 4, 8)], ids=["whole", "last", "none", "0"]
)
def test_one_query_a_row_is_where_its_starts_say(starts: Any):
    """Rows with room for one query are not rows that decode for that alone."""
    given = None if starts is None else jnp.asarray(starts, jnp.int32)
    pages, q = ops.PageView(TABLE, LENGTHS, given), normal(ROWS, HEADS, HEAD_DIM)
    kv = cache()
    state = ops.attention_states(q, kv.layer(0), pages, scale=0.3)
    assert_close(attend(q, kv, pages), state.output, reduction=64)
    positions = [0] * ROWS if given is None else given.tolist()
    seen = jnp.minimum(jnp.asarray([at + 1 for at in positions]), LENGTHS)
    last = ops.PageView.decoding(TABLE, seen)
    stands = (jnp.asarray(positions) < LENGTHS)[:, None, None]
    expected = jnp.where(stands, attend(q, kv, last), 0)
    assert_close(attend(q, kv, pages), expected, reduction=64)


def test_rows_that_are_said_to_decode_have_the_kernels_for_it():
    q, kv = normal(ROWS, HEADS, HEAD_DIM), cache()
    by_slot = TABLE[:, :, None] * PAGE_SIZE + jnp.arange(PAGE_SIZE)
    by_slot = by_slot.reshape(ROWS, -1).astype(jnp.int32)
    views = (
        DECODING,
        ops.PageView(by_slot, LENGTHS, by_slot=True),
        ops.PageView(TABLE, LENGTHS, LENGTHS - 1),
    )
    operations = ("decode_attention", "decode_attention", "prefill_attention")
    for view, operation in zip(views, operations, strict=True):
        with recording() as lines:
            attend(q, kv, view)
        assert [line.split(":")[0] for line in lines] == [operation]


def test_samples():
    logits = normal(4, 50)
    assert ops.sample(logits).tolist() == jnp.argmax(logits, axis=1).tolist()
    drawn = [logits, jnp.zeros((4, 2), jnp.uint32), jnp.arange(4), jnp.ones(4)]
    expected = ops.sample(*drawn).tolist()
    sample = jax.jit(ops.sample)
    assert sample(*drawn).tolist() == expected
    alone = [sample(*(array[row : row + 1] for array in drawn)) for row in range(4)]
    assert [token.tolist()[0] for token in alone] == expected
    mapped = jax.jit(jax.vmap(ops.sample))(*(array[:, None] for array in drawn))
    assert mapped[:, 0].tolist() == expected


def test_of_rows_whose_bits_are_their_own():
    """What has no such implementation here says so, under `jit` as elsewhere."""
    q, held = normal(ROWS, HEADS, HEAD_DIM), cache()

    @jax.jit
    def of_rows(q: jax.Array, table: jax.Array, lengths: jax.Array) -> jax.Array:
        return attend(q, held, ops.PageView.decoding(table, lengths))

    with ops.batch_invariant():
        together = of_rows(q, TABLE, LENGTHS)
        for row in range(ROWS):
            alone = of_rows(*(one[row : row + 1] for one in (q, TABLE, LENGTHS)))
            np.testing.assert_array_equal(alone[0], together[row])
        with pytest.raises(Unsupported, match="no batch-invariant implementation"):
            jax.jit(found)(q, held)
    jax.jit(found)(q, held)


def test_derivatives_know_the_block_that_the_call_stood_in(
    monkeypatch: pytest.MonkeyPatch,
):
    """The result stays that of the block; the derivative is the definition's."""

    def another(call: DecodeAttention) -> Any:
        out, recomputed = decode_reference.decode_attention(call)
        return out + 1000, recomputed

    quick = Impl(another, lambda _: None)
    impls = {"quick": quick, "cpu": decode_cpu.IMPL}
    monkeypatch.setattr(DECODE, "_impls", impls)
    q, held = normal(ROWS, HEADS, HEAD_DIM), cache()

    @jax.jit
    def within(q: jax.Array) -> jax.Array:
        with ops.batch_invariant():
            return attend(q, held, DECODING).mean()

    value, derivative = jax.value_and_grad(within)(q)
    assert abs(value) < 100 < abs(attend(q, held, DECODING).mean())
    expected = jax.grad(lambda q: attend(q, held, DECODING).mean())(q)
    same(derivative, expected)


def test_on_several_devices():
    """A process of its own: how many devices there are is fixed at the start."""
    program = HERE / "sharded.py"
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = [line.partition(": ") for line in done.stdout.splitlines()]
    assert {result for _, _, result in found} == {"equal on 2 devices"}
    named = {part.split(" ")[0] for name, _, _ in found for part in name.split(", ")}
    assert named == set(FUNCTIONS)
