"""Frozen dataclasses that are JAX pytrees, safe under run-time type checking."""

import dataclasses
from typing import Any, dataclass_transform

import jax


def static(**kwargs: Any) -> Any:
    """A dataclass field that belongs to the tree's structure, not to its leaves."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


def of_shapes[T](cls: type[T], **fields: Any) -> T:
    """A pytree with shapes in place of arrays, which a type checker would refuse.

    Args:
        cls: a class made by `pytree`.
        fields: all of its fields.
    """
    tree = object.__new__(cls)
    for name, value in fields.items():
        object.__setattr__(tree, name, value)
    return tree


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static))
def pytree[T](cls: type[T]) -> type[T]:
    """Makes `cls` a frozen dataclass and registers it as a pytree.

    Unflattening goes through `object.__new__`: JAX rebuilds trees with stand-ins for
    arrays, and `__init__` (which a type checker may instrument) must not see those.
    """
    data_class = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(data_class)  # pyright: ignore[reportArgumentType]  (a dataclass by the line above)
    children = tuple(f.name for f in fields if not f.metadata.get("static"))
    statics = tuple(f.name for f in fields if f.metadata.get("static"))

    def flatten_with_keys(tree: T) -> tuple[Any, Any]:
        leaves = [(jax.tree_util.GetAttrKey(n), getattr(tree, n)) for n in children]
        return leaves, tuple(getattr(tree, n) for n in statics)

    def flatten(tree: T) -> tuple[Any, Any]:
        leaves = tuple(getattr(tree, n) for n in children)
        return leaves, tuple(getattr(tree, n) for n in statics)

    def unflatten(aux: Any, leaves: Any) -> T:
        tree = object.__new__(data_class)
        for name, value in zip(children, leaves, strict=True):
            object.__setattr__(tree, name, value)
        for name, value in zip(statics, aux, strict=True):
            object.__setattr__(tree, name, value)
        return tree

    jax.tree_util.register_pytree_with_keys(
        data_class, flatten_with_keys, unflatten, flatten
    )
    return data_class
