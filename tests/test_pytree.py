"""Dataclasses as JAX pytrees, under the type checks that tests run with."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from beartype import beartype
from jaxtyping import jaxtyped

from fdjax.notation import Array, Float
from fdjax.pytree import pytree, static


@jaxtyped(typechecker=beartype)
@pytree
class Pair:
    """As the fields come: static ones may stand between arrays."""

    first: Float[Array, " N"]
    name: str = static()
    second: Float[Array, " N"] | None = None


def pair(name: str = "a") -> Pair:
    return Pair(jnp.arange(3.0), name, jnp.ones(3))


def test_a_tree_comes_back_as_it_was():
    leaves, structure = jax.tree.flatten(pair())
    assert [leaf.tolist() for leaf in leaves] == [[0, 1, 2], [1, 1, 1]]
    again = jax.tree.unflatten(structure, leaves)
    assert again.name == "a"
    assert again.first is leaves[0] and again.second is leaves[1]


def test_static_fields_belong_to_the_structure():
    same, other = jax.tree.structure(pair()), jax.tree.structure(pair("b"))
    assert jax.tree.structure(pair()) == same != other
    traced: list[str] = []

    @jax.jit
    def run(tree: Pair) -> Array:
        traced.append(tree.name)
        return tree.first * 2

    for name in ("a", "a", "b"):
        run(pair(name))
    assert traced == ["a", "b"]


def test_absent_arrays_are_no_leaves():
    assert len(jax.tree.leaves(Pair(jnp.arange(3.0), "a"))) == 1


def test_stand_ins_for_arrays_pass_where_wrong_arrays_do_not():
    with pytest.raises(TypeError):
        Pair(jnp.arange(3.0), "a", jnp.arange(4.0))
    shapes = jax.eval_shape(pair)
    assert shapes.first.shape == (3,)
    assert jax.tree.map(lambda leaf: leaf.ndim, pair()).second == 1


def test_paths_name_the_fields():
    paths, _ = jax.tree_util.tree_flatten_with_path(pair())
    assert [jax.tree_util.keystr(path) for path, _ in paths] == [".first", ".second"]


def test_it_is_frozen_and_may_be_replaced():
    before = pair()
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.name = "b"  # pyright: ignore[reportAttributeAccessIssue]  (wrong on purpose)
    after = dataclasses.replace(before, second=None)
    assert (after.name, after.second) == ("a", None)
    np.testing.assert_array_equal(after.first, before.first)
