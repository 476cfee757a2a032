"""The definition of `gated_matmul`: float32 inside, one rounding at the end."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp

from fdjax.kernels.activations import activation as named_activation
from fdjax.kernels.matmul import Matmul, reference
from fdjax.notation import Array, Float


def gated_matmul(call: Matmul) -> Float[Array, "M F"]:
    """See `fdjax.kernels.gated_matmul.gated_matmul`."""
    return gated(call, reference.matmul)


def gated(
    call: Matmul, matmul: Callable[[Matmul], Float[Array, "M N"]]
) -> Float[Array, "M F"]:
    """The result of a gated call by a way to compute `matmul`."""
    assert call.activation is not None
    wide = dataclasses.replace(call, activation=None, out_dtype=jnp.float32)
    gate, up = jnp.split(matmul(wide), 2, axis=-1)
    return (named_activation(call.activation)(gate) * up).astype(call.out_dtype)
