"""Arrays for tests of attention over slots and beams, and their definition."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.kernels.paged import KVCache

type Heads = tuple[int, int, int]  # of queries, of keys and values, and their size

OTHERS: list[tuple[Heads, Any]] = [
    ((8, 2, 128), jnp.bfloat16),
    ((4, 2, 64), jnp.float16),
    ((2, 2, 256), jnp.bfloat16),
    ((14, 2, 128), jnp.bfloat16),
    ((3, 3, 96), jnp.bfloat16),
    ((32, 2, 64), jnp.bfloat16),
]


def normal(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> jax.Array:
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return jnp.asarray(values, dtype)


def cache_of(heads: Heads, dtype: Any, *, pages: int, page_size: int) -> KVCache:
    """Two layers of noise, page-major."""
    shape = pages, 2, 2, page_size, heads[1], heads[2]
    return KVCache.page_major(normal(shape, dtype, seed=1))


def defined(call: Any, definition: Any) -> Any:
    """What a definition computes of a call in float32."""
    wide = jax.tree.map(
        lambda x: x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x,
        call,
    )
    return jax.jit(definition)(wide)
