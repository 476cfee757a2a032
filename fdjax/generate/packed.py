"""Trees of many small arrays as one array, so that a call has few operands.

Each array costs the host microseconds a call, and one that it reads a transfer: of 8
searches with 23 arrays each they were a third of a step.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fdjax.notation import Array, Int32
from fdjax.pytree import pytree, static

MOST_WORDS = 4096
"""Of a row of one array: what is larger stays an array of its own."""


@dataclass(frozen=True)
class Leaf:
    """An array of a tree, without its first axis.

    Attributes:
        shape: of the other axes.
        dtype: its name: four bytes, or `bool`.
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def words(self) -> int:
        """Of each row."""
        return math.prod(self.shape)

    @property
    def is_wide(self) -> bool:
        """It is an array of its own."""
        return self.words > MOST_WORDS


@dataclass(frozen=True)
class Form:
    """What a packed tree is unpacked to.

    Attributes:
        structure: of the tree.
        leaves: in its order.
    """

    structure: Any
    leaves: tuple[Leaf, ...]


@pytree
class Packed[T]:
    """A tree whose arrays have one first axis, their rows in words of four bytes.

    Attributes:
        words: of all arrays, row by row, one array after the other.
        wide: arrays of more than `MOST_WORDS` a row, as they were.
        form: of the tree.
    """

    words: Int32[Array, "rows N"]
    wide: tuple[Array, ...]
    form: Form = static()

    @property
    def shapes(self) -> T:
        """The tree, of shapes and types alone."""
        rows = self.words.shape[0]
        leaves = (
            jax.ShapeDtypeStruct((rows, *leaf.shape), np.dtype(leaf.dtype))
            for leaf in self.form.leaves
        )
        return jax.tree.unflatten(self.form.structure, leaves)

    def rows(self, which: slice) -> "Packed[T]":
        """Some of the rows."""
        return jax.tree.map(lambda array: array[which], self)


def packed[T](tree: T) -> Packed[T]:
    """The tree as one array, and those that are too wide for it."""
    arrays, structure = jax.tree.flatten(tree)
    leaves = tuple(Leaf(one.shape[1:], str(one.dtype)) for one in arrays)
    rows = arrays[0].shape[0]
    both = list(zip(arrays, leaves, strict=True))
    words = [
        _as_words(one).reshape(rows, leaf.words)
        for one, leaf in both
        if not leaf.is_wide
    ]
    wide = tuple(one for one, leaf in both if leaf.is_wide)
    return Packed(jnp.concatenate(words, axis=1), wide, Form(structure, leaves))


def unpacked[T](tree: Packed[T]) -> T:
    """The tree: of NumPy arrays if `tree` is of such, views into them where it can."""
    wide, narrow = iter(tree.wide), _cut(tree)
    leaves = (next(wide if leaf.is_wide else narrow) for leaf in tree.form.leaves)
    return jax.tree.unflatten(tree.form.structure, leaves)


def joined[T](trees: tuple[Packed[T], ...]) -> Packed[T]:
    """The rows of some, which have one form."""
    if len(trees) == 1:
        return trees[0]
    return jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *trees)


def _cut(tree: Packed[Any]) -> Iterator[Any]:
    begin = 0
    for leaf in tree.form.leaves:
        if leaf.is_wide:
            continue
        words = tree.words[:, begin : begin + leaf.words]
        begin += leaf.words
        yield _as_type(words, leaf.dtype).reshape(len(words), *leaf.shape)


def _as_words(array: Array) -> Array:
    if array.dtype == jnp.bool_:
        return array.astype(jnp.int32)
    return lax.bitcast_convert_type(array, jnp.int32)


def _as_type(words: Any, dtype: str) -> Any:
    if dtype == "bool":
        return words != 0
    if isinstance(words, np.ndarray):
        return words.view(dtype)
    return lax.bitcast_convert_type(words, dtype)
