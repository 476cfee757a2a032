"""Trees of small arrays as one array."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.generate.packed import MOST_WORDS, joined, packed, unpacked


def _tree(rows: int, seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    floats = random.normal(size=(rows, 3, 2)).astype(np.float32)
    floats[0, 0] = -0.0, np.nan
    return {
        "floats": floats,
        "whole": random.integers(-(2**31), 2**31 - 1, rows).astype(np.int32),
        "bits": random.integers(0, 2**32 - 1, (rows, 5)).astype(np.uint32),
        "flags": random.random((rows, 4)) < 0.5,
        "none": np.zeros((rows, 0), np.int32),
        "wide": random.random((rows, MOST_WORDS + 1)) < 0.5,
        "absent": None,
    }


def _assert_same(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    leaves = jax.tree.leaves(actual), jax.tree.leaves(expected)
    for one, other in zip(*leaves, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_what_is_packed_is_unpacked():
    tree = _tree(3)
    small = jax.jit(packed)(jax.tree.map(jnp.asarray, tree))
    assert len(jax.tree.leaves(small)) == 2
    _assert_same(jax.jit(unpacked)(small), tree)
    _assert_same(unpacked(jax.device_get(small)), tree)
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), small.shapes)
    assert shapes == jax.tree.map(lambda x: (x.shape, x.dtype), tree)


def test_rows_are_joined_and_taken():
    trees = [_tree(rows, seed=rows) for rows in (1, 2, 4)]
    small = tuple(packed(jax.tree.map(jnp.asarray, tree)) for tree in trees)
    both = joined(small)
    for tree, begin in zip(trees, (0, 1, 3), strict=True):
        rows = len(tree["whole"])
        _assert_same(unpacked(both.rows(slice(begin, begin + rows))), tree)
    assert joined(small[:1]) is small[0]
