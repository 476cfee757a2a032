"""Ragged paged attention over the cache of another stack, compiled for an H200."""

import re

import jax
import jax.numpy as jnp
import pytest

from fdjax.ops import ragged_paged_attention
from fdjax.ops.ragged import Mode
from fdjax.ops.ragged_cache import cache_of
from tests.support.aot import compile_for_h200, wheels_missing

pytestmark = [
    pytest.mark.aot,
    pytest.mark.skipif(wheels_missing() is not None, reason=str(wheels_missing())),
]

ROWS, PAGES_PER_ROW, PAGES = 64, 512, 5000
CACHE = jax.ShapeDtypeStruct((PAGES, 16, 8, 2, 128), jnp.bfloat16)


def two_layers(
    q: jax.Array, caches: list[jax.Array], *arrays: jax.Array, mode: Mode
) -> tuple[jax.Array, list[jax.Array]]:
    """As sgl-jax's Llama-3-8B calls it, without what is between attention."""
    key, value, lengths, pages, starts, count, offsets = arrays
    updated: list[jax.Array] = []
    for cache in caches:
        out, after = ragged_paged_attention(
            q,
            key,
            value,
            cache,
            lengths,
            pages,
            starts,
            count,
            sm_scale=0.1,
            cu_kv_lens=offsets,
            pages_per_row=PAGES_PER_ROW,
            mode=mode,
        )
        q = q + out
        updated.append(after)
    return q, updated


@pytest.mark.parametrize(
    ("mode", "tokens", "kernel"),
    [("decode", ROWS, "decode_attention"), ("mixed", 512, "prefill_attention")],
)
def test_kernels_read_and_write_it_where_it_lies(mode: Mode, tokens: int, kernel: str):
    def heads(count: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((tokens, count, 128), jnp.bfloat16)

    def ints(count: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((count,), jnp.int32)

    compiled = compile_for_h200(
        lambda *operands: two_layers(*operands, mode=mode),
        heads(32),
        [CACHE, CACHE],
        heads(8),
        heads(8),
        ints(ROWS),
        ints(PAGES),
        ints(ROWS + 1),
        ints(3),
        ints(ROWS + 1),
        donate_argnums=(1,),
    )
    text = str(compiled.as_text())
    targets = re.findall(r'custom_call_target="fdjax\.(\w+)\.', text)
    assert targets.count(kernel) == 2
    assert targets.count("attention_plan") == (mode == "decode"), "one for all layers"
    assert not re.findall(rf"= bf16\[{PAGES},.* copy\(", text)
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.alias_size_in_bytes == 2 * CACHE.size * 2
    assert memory.temp_size_in_bytes < 2**24


def test_one_token_is_written_by_one_kernel():
    """As two are: a slice that is read and written would be two."""
    token = jax.ShapeDtypeStruct((1, 8, 128), jnp.bfloat16)

    def write(
        array: jax.Array, slots: jax.Array, k: jax.Array, v: jax.Array
    ) -> jax.Array:
        cache = cache_of(array, num_kv_heads=8, head_dim=128, layout="interleaved")
        return cache.layer(0).write(slots, k, v).array

    slots = jax.ShapeDtypeStruct((1,), jnp.int32)
    compiled = compile_for_h200(write, CACHE, slots, token, token, donate_argnums=(0,))
    _, _, entry = str(compiled.as_text()).partition("\nENTRY ")
    assert len(re.findall(r" fusion\(", entry)) == 1
    assert not re.findall(r" copy\(", entry)
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.alias_size_in_bytes == CACHE.size * 2
