"""Calls of `rope_kv_write` that real models make."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels.cases import Case, Tag, noise, struct
from fdjax.kernels.paged import KVCache
from fdjax.kernels.rope_kv_write.arguments import RopeKVWrite

PAGE_SIZE = 16


def _case(
    name: str,
    *tags: Tag,
    tokens: int,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    rotary: int,
    layers: int = 2,
    pages: int = 3,
    interleaved: bool = False,
    dtype: jax.typing.DTypeLike = jnp.bfloat16,
) -> Case[RopeKVWrite]:
    heads = q_heads + 2 * kv_heads
    shape = (pages, layers, 2, PAGE_SIZE, kv_heads, head_dim)
    call = RopeKVWrite(
        struct(tokens, heads, head_dim, dtype=dtype),
        KVCache.page_major(struct(*shape, dtype=dtype)).layer(layers - 1),
        struct(tokens, dtype=jnp.int32),
        struct(tokens, dtype=jnp.int32),
        struct(rotary // 2, dtype=jnp.float32),
        interleaved=interleaved,
    )
    return Case(name, call, frozenset(tags))


def _llama3_8b(
    name: str, *tags: Tag, tokens: int, layers: int, pages: int
) -> Case[RopeKVWrite]:
    return _case(
        f"llama3_8b_{name}",
        *tags,
        tokens=tokens,
        q_heads=32,
        kv_heads=8,
        head_dim=128,
        rotary=128,
        layers=layers,
        pages=pages,
    )


# fmt: off
CASES: tuple[Case[RopeKVWrite], ...] = (
    _llama3_8b("decode_b1", "bench", tokens=1, layers=32, pages=64),
    _llama3_8b("decode_b64", "bench", tokens=64, layers=32, pages=256),
    _llama3_8b("prefill_8x1024", "bench", tokens=8192, layers=2, pages=512),
    _llama3_8b("two_layers", "ci", tokens=5, layers=2, pages=3),
    _case("tales_5m", "ci", tokens=1, q_heads=4, kv_heads=2, head_dim=64, rotary=64,
          layers=6, dtype=jnp.float32),
    _case("gptj_6b", "ci", tokens=3, q_heads=16, kv_heads=16, head_dim=256, rotary=64,
          interleaved=True, dtype=jnp.float16),
    _case("glm4_9b", "ci", tokens=6, q_heads=32, kv_heads=2, head_dim=128, rotary=64,
          interleaved=True),
    _case("opt_6p7b", "ci", tokens=4, q_heads=32, kv_heads=32, head_dim=128, rotary=0,
          dtype=jnp.float16),
    _case("bloom_7b1", "ci", tokens=2, q_heads=32, kv_heads=32, head_dim=128, rotary=0,
          dtype=jnp.float32),
    _case("opt_2p7b", "ci", tokens=2, q_heads=32, kv_heads=32, head_dim=80, rotary=0),
    _case("phi3_mini", "ci", tokens=3, q_heads=32, kv_heads=32, head_dim=96, rotary=96),
    # A quarter of 80 dimensions: no 16 byte access holds whole pairs.
    _case("pythia_2p8b", "ci", tokens=5, q_heads=32, kv_heads=32, head_dim=80,
          rotary=20, dtype=jnp.float16),
    _case("odd_interleaved", "ci", tokens=5, q_heads=6, kv_heads=3, head_dim=10,
          rotary=6, interleaved=True, dtype=jnp.float32),
)
# fmt: on


def arguments(case: Case[RopeKVWrite], *, seed: int = 0) -> RopeKVWrite:
    """A case's call with arrays: distinct slots, positions of a long context."""
    call, random = case.call, np.random.default_rng(seed)
    half = call.frequencies.shape[0]
    cache = call.kv.cache
    num_slots = cache.num_pages * cache.page_size
    places = random.choice(num_slots, size=call.slots.shape, replace=False)
    exponents = np.arange(half, dtype=np.float32) / max(half, 1)
    qkv, filled = noise(random, call.qkv), cache.with_array(noise(random, cache.array))
    return dataclasses.replace(
        call,
        qkv=qkv,
        kv=filled.layer(call.kv.index),
        positions=jnp.asarray(
            random.integers(0, 131_072, call.positions.shape), jnp.int32
        ),
        slots=jnp.asarray(places, jnp.int32),
        frequencies=jnp.asarray(10_000.0**-exponents, jnp.float32),
    )
