"""The static paged KV array: its layout and its allocation."""

import math
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from fdjax.kernels.paged import KVCache


@dataclass(frozen=True)
class KVLayout:
    """Shape of the KV array `[P, L, 2, Z, Hkv, D]`.

    Page-major across layers: a page is one contiguous block of all layers, easy to
    share, to move and to count.

    Attributes:
        num_pages: `P`.
        num_layers: `L`.
        page_size: `Z`, tokens a page holds.
        num_kv_heads: `Hkv`.
        head_dim: `D`.
        dtype: type of keys and values.
        lent: see `KVCache`.
    """

    num_pages: int
    num_layers: int
    page_size: int
    num_kv_heads: int
    head_dim: int
    dtype: jax.typing.DTypeLike
    lent: bool = False

    @property
    def shape(self) -> tuple[int, int, int, int, int, int]:
        """`(P, L, 2, Z, Hkv, D)`."""
        return (
            self.num_pages,
            self.num_layers,
            2,
            self.page_size,
            self.num_kv_heads,
            self.head_dim,
        )

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, all layers."""
        return math.prod(self.shape[1:]) * jnp.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.num_pages * self.page_bytes

    @property
    def num_tokens(self) -> int:
        """Tokens the array has room for."""
        return self.num_pages * self.page_size

    def with_pages(self, num_pages: int) -> "KVLayout":
        """The same layout with another number of pages."""
        return replace(self, num_pages=num_pages)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that `num_tokens` tokens of one sequence take."""
        return -(-num_tokens // self.page_size)

    def allocate(self) -> KVCache:
        """The array, zeroed on the device by a jitted call (no host copy)."""
        zeros = jax.jit(lambda: jnp.zeros(self.shape, self.dtype))
        return replace(KVCache.page_major(zeros()), lent=self.lent)
