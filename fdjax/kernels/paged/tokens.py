"""New tokens as they are scattered into the array of a cache."""

import math

import jax.numpy as jnp

from fdjax.kernels.paged.integers import check_shape
from fdjax.kernels.paged.layout import PageLayout
from fdjax.notation import Array, Float, Int32


def check_tokens(layout: PageLayout, count: int, **arrays: Array) -> None:
    """Raises where keys or values are not of so many tokens of the layout's heads.

    A scatter would take one token for all slots, or one head for all.

    Args:
        layout: of the cache.
        count: of the tokens.
        arrays: by name.

    Raises:
        TypeError: one is no array.
        ValueError: one has another shape.
    """
    expected = (count, layout.num_kv_heads, layout.head_dim)
    for name, array in arrays.items():
        check_shape("KVLayer", name, array, "T", "Hkv", "D")
        if array.shape != expected:
            raise ValueError(
                f"KVLayer: {name} is {array.shape} for {count} slots, and the cache "
                f"has {layout.num_kv_heads} key/value heads of {layout.head_dim}; give "
                f"{expected}"
            )


def has_tokens(layout: PageLayout, shape: tuple[int, ...]) -> bool:
    """Whether an array of a shape has an axis of a page's tokens, then one token's.

    Then those are written: where one of them is 1 (a packing of float32), XLA copies a
    cache that is given other axes before the write, on a CPU.
    """
    width = layout.shape[-1]
    return (
        layout.num_layers == 1
        and layout.axes[0].name == "tokens"
        and len(shape) > 2
        and shape[1] == layout.shape[1]
        and width in (layout.head_dim, shape[-1])
    )


def as_tokens(
    layout: PageLayout, shape: tuple[int, ...], written: Float[Array, "T ..."]
) -> Float[Array, "T ..."]:
    """New tokens in the axes that an array of a shape has behind its tokens'."""
    room = zip(layout.axes[1:], layout.shape[2:-1], strict=True)
    padding = [(0, extent - axis.size) for axis, extent in room]
    new = jnp.pad(written, ((0, 0), *padding, (0, 0)))
    packed = shape[2:-1]
    # Not -1, which has no number where there are no tokens.
    width = math.prod(new.shape[1:]) // math.prod(packed)
    return new.reshape(len(new), *packed, width)


def two_or_more(
    slots: Int32[Array, " T"], new: Float[Array, "T ..."]
) -> tuple[Int32[Array, " N"], Float[Array, "N ..."]]:
    """What is scattered into a cache, of one token beside one that is not written.

    A scatter of one token XLA makes a slice of the cache, read and written: on a CPU it
    copies the cache for that, where attention reads it by other axes, and on a GPU it
    launches two kernels for one. Of two tokens or more it makes neither.

    Args:
        slots: of each token.
        new: what goes there.

    Returns:
        Both, of one token with another one behind it, whose slot is negative.
    """
    if len(slots) != 1:
        return slots, new
    absent = jnp.full_like(slots, -1)
    return jnp.concatenate([slots, absent]), jnp.concatenate([new, new])
