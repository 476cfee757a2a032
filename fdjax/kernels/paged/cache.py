"""Keys and values in pages: the array and how its pages are laid out."""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp

from fdjax.kernels.paged.integers import (
    check_shape,
    int32_of,
    kind,
    whole_number,
)
from fdjax.kernels.paged.layout import PageLayout, interleaved, page_major
from fdjax.kernels.paged.tokens import (
    as_tokens,
    check_tokens,
    has_tokens,
    two_or_more,
)
from fdjax.notation import Array, Bool, Float, Int32
from fdjax.pytree import pytree, static


@pytree
class KVCache:
    """The keys and values of all sequences, in pages.

    Attributes:
        array: pages along its first axis; its other axes are as its owner likes them.
            Donate it, and operations update it in place.
        layout: where a page keeps what.
        lent: the last pages hold nobody's tokens while a step runs, which may keep
            there what it needs besides its results: whoever launches steps sees to it.

    Raises:
        ValueError: a page of the array is not of the layout's size.
        TypeError: `array` is no array.
    """

    array: Float[Array, "P ..."]
    layout: PageLayout = static()
    lent: bool = static(default=False)

    def __post_init__(self) -> None:
        check_shape("KVCache", "array", self.array)
        held = math.prod(self.array.shape[1:])
        if held != self.layout.page_stride:
            raise ValueError(
                f"KVCache: a page of an array {self.array.shape} has {held} elements, "
                f"one of its layout {self.layout.page_stride}"
            )

    @staticmethod
    def page_major(array: Float[Array, "P L 2 Z Hkv D"]) -> "KVCache":
        """Over an array of all layers: a page is one block, easy to share and to move.

        Raises:
            ValueError: the array has another number of axes, or not 2 halves.
            TypeError: it is no array.
        """
        check_shape("KVCache", "array", array)
        if len(array.shape) != 6 or array.shape[2] != 2:
            raise ValueError(
                f"KVCache: the array is {array.shape}; expected [P, L, 2, Z, Hkv, D]"
            )
        _, layers, _, page_size, heads, head_dim = array.shape
        return KVCache(array, page_major(layers, page_size, heads, head_dim))

    @staticmethod
    def interleaved(
        array: Float[Array, "P Z ..."], *, head_dim: int | None = None
    ) -> "KVCache":
        """Over an array of one layer whose heads lie K0, V0, K1, V1 and so on.

        Args:
            array: `[P, Z, 2 Hkv, width]`, or `[P, Z, 2 Hkv / n, n, width]` as ragged
                paged attention v3 has it.
            head_dim: `D`, where heads are padded to `width`.

        Raises:
            ValueError: the array has another number of axes, or no whole pairs; or
                `head_dim` is not from 1 to `width`.
            TypeError: it is no array, or `head_dim` no whole number.
        """
        check_shape("KVCache", "array", array)
        halves = math.prod(array.shape[2:-1])
        if len(array.shape) not in (4, 5) or halves % 2:
            raise ValueError(
                f"KVCache: the array is {array.shape}; expected [P, Z, 2 Hkv, width] "
                "or [P, Z, 2 Hkv / n, n, width]"
            )
        page_size, width = array.shape[1], array.shape[-1]
        if head_dim is None:
            head_dim = width
        elif whole_number("PageLayout", "head_dim", head_dim, least=1) > width:
            raise ValueError(
                f"KVCache: head_dim is {head_dim}, and the array {array.shape} has "
                f"heads of width {width}; give {width} at most, or an array of wider "
                "heads"
            )
        return KVCache(
            array, interleaved(page_size, halves // 2, head_dim, width=width)
        )

    @property
    def num_pages(self) -> int:
        """`P`."""
        return self.array.shape[0]

    @property
    def num_layers(self) -> int:
        """`L`."""
        return self.layout.num_layers

    @property
    def page_size(self) -> int:
        """`Z`, in tokens."""
        return self.layout.page_size

    @property
    def num_kv_heads(self) -> int:
        """`Hkv`."""
        return self.layout.num_kv_heads

    @property
    def head_dim(self) -> int:
        """`D`."""
        return self.layout.head_dim

    @property
    def dtype(self) -> jnp.dtype:
        """Of keys and values."""
        return self.array.dtype

    def layer(self, index: int) -> "KVLayer":
        """One layer of every page.

        Raises:
            ValueError: there is no such layer.
            TypeError: `index` is traced, or no whole number.
        """
        return KVLayer(self, index)

    def present(
        self, table: Int32[Array, "B W"], *, by_slot: bool = False
    ) -> Bool[Array, "B N"]:
        """Whether each token that a table has room for has a page.

        Args:
            table: pages of each row, or slots.
            by_slot: it has slots, `page * Z + place`.

        Raises:
            ValueError: the table has another number of axes, or no whole numbers.
            TypeError: it is no array.
        """
        table = int32_of("KVCache", "table", table)
        check_shape("KVCache", "table", table, "B", "W")
        ids = self.num_pages * (self.page_size if by_slot else 1)
        exists = (table >= 0) & (table < ids)
        return exists if by_slot else jnp.repeat(exists, self.page_size, axis=1)

    def with_array(self, array: Float[Array, "P ..."]) -> "KVCache":
        """The same cache after an operation has written into it."""
        return dataclasses.replace(self, array=array)


@pytree
class KVLayer:
    """One layer of a cache: what attention reads, and new tokens are written to.

    Attributes:
        cache: of all layers.
        index: which of them.

    Raises:
        ValueError: there is no such layer.
        TypeError: `cache` is no `KVCache`; or `index` is traced, or no whole number.
    """

    cache: KVCache
    index: int = static()

    def __post_init__(self) -> None:
        cache: Any = self.cache
        if not isinstance(cache, KVCache):
            raise TypeError(f"KVLayer: cache is {kind(cache)}; give a KVCache")
        index, count = whole_number("KVLayer", "layer", self.index), cache.num_layers
        if not 0 <= index < count:
            raise ValueError(
                f"KVLayer: layer {index} of a cache of {count} layers; they are 0 to "
                f"{count - 1}"
            )
        object.__setattr__(self, "index", index)

    def gather(
        self, page_table: Int32[Array, "B W"]
    ) -> tuple[Float[Array, "B WZ Hkv D"], Float[Array, "B WZ Hkv D"]]:
        """The keys and values of each row's pages, in order of position.

        Absent pages read some page; mask what they hold (`KVCache.present`).

        Raises:
            ValueError: the table has another number of axes, or no whole numbers.
            TypeError: it is no array.
        """
        cache, layout = self.cache, self.cache.layout
        page_table = int32_of("KVLayer", "page_table", page_table)
        check_shape("KVLayer", "page_table", page_table, "B", "W")
        rows, width = page_table.shape
        pages = self._nested().at[page_table, self.index].get(mode="clip")
        held = (*(slice(axis.size) for axis in layout.axes), slice(layout.head_dim))
        order = [layout.place(name) for name in ("halves", "tokens", "heads")]
        pages = pages[:, :, *held].transpose(0, 1, *(2 + n for n in order), 5)
        shape = (rows, width * cache.page_size, cache.num_kv_heads, cache.head_dim)
        return pages[:, :, 0].reshape(shape), pages[:, :, 1].reshape(shape)

    def gather_slots(
        self, slots: Int32[Array, "B N"]
    ) -> tuple[Float[Array, "B N Hkv D"], Float[Array, "B N Hkv D"]]:
        """The keys and values in slots, `page * Z + place`; others read some slot.

        Raises:
            ValueError: `slots` have another number of axes, or no whole numbers.
            TypeError: they are no array.
        """
        slots = int32_of("KVLayer", "slots", slots)
        check_shape("KVLayer", "slots", slots, "B", "N")
        cache, layout = self.cache, self.cache.layout
        where = {
            "halves": slice(2),
            "tokens": slots % cache.page_size,
            "heads": slice(cache.num_kv_heads),
        }
        places = (where[axis.name] for axis in layout.axes)
        page = slots // cache.page_size
        held = self._nested().at[page, self.index, *places, : layout.head_dim]
        found = held.get(mode="clip")  # [B, N, halves and heads in their order, D]
        if layout.place("heads") < layout.place("halves"):
            found = found.swapaxes(2, 3)
        return found[:, :, 0], found[:, :, 1]

    def write(
        self,
        slots: Int32[Array, " T"],
        keys: Float[Array, "T Hkv D"],
        values: Float[Array, "T Hkv D"],
    ) -> KVCache:
        """The cache with new tokens in it.

        Args:
            slots: where each token goes, `page * Z + slot`; what is negative or past
                the end is not written.
            keys: of the tokens.
            values: of the tokens.

        Raises:
            ValueError: `slots` are no whole numbers of one axis; or `keys` or `values`
                are not as many tokens, of the heads that the cache has.
            TypeError: one of them is no array.
        """
        cache, layout = self.cache, self.cache.layout
        slots = int32_of("KVLayer", "slots", slots)
        check_shape("KVLayer", "slots", slots, "T")
        check_tokens(layout, len(slots), keys=keys, values=values)
        by_head = layout.place("heads") < layout.place("halves")
        written = jnp.stack([keys, values], axis=2 if by_head else 1)
        slots, written = two_or_more(slots, written.astype(cache.dtype))
        # A negative slot becomes a page past the end, which "drop" does not write.
        page = jnp.where(slots < 0, cache.num_pages, slots // cache.page_size)
        token = slots % cache.page_size
        if has_tokens(layout, cache.array.shape):
            new = as_tokens(layout, cache.array.shape, written)
            place = cache.array.at[page, token, ..., : new.shape[-1]]
            return cache.with_array(place.set(new, mode="drop"))
        where = {
            "halves": slice(None),
            "tokens": token,
            "heads": slice(cache.num_kv_heads),
        }
        places = (where[axis.name] for axis in layout.axes)
        place = self._nested().at[page, self.index, *places, : cache.head_dim]
        after = place.set(written, mode="drop")
        return cache.with_array(after.reshape(cache.array.shape))

    def _nested(self) -> Array:
        """The array with an axis for each of its layout's."""
        cache = self.cache
        return cache.array.reshape(cache.num_pages, *cache.layout.shape)
