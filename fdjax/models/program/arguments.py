"""The arguments of `layer_program`."""

import jax.numpy as jnp

from fdjax.kernels.paged import KVCache
from fdjax.kernels.weight import FORMATS, Weight
from fdjax.layers import Batch
from fdjax.models.program.instructions import Linear, Program
from fdjax.notation import Array, Float, Int32
from fdjax.pytree import pytree, static

type Ran = tuple[Float[Array, "U E"], KVCache, Int32[Array, "L B"]]
"""The normalised hidden states, the updated cache, and what was computed again."""


@pytree
class LayerProgram:
    """One call of `layer_program`: a program without its head.

    Attributes:
        kv: keys and values. Donate it, and it is updated in place.
        batch: the tokens.
        parameters: those of `program.body_parameters`, in their order.
        program: what is done; one that selects needs `batch.wanted`.
    """

    kv: KVCache
    batch: Batch
    parameters: tuple[Array | Weight, ...]
    program: Program = static()

    @property
    def num_tokens(self) -> int:
        """`T`."""
        return self.batch.tokens.shape[0]

    @property
    def dtype(self) -> jnp.dtype:
        """Of the embedding, and so of all activations."""
        return self.parameters[0].dtype

    @property
    def linear_shapes(self) -> tuple[tuple[int, int], ...]:
        """Of the weights that are multiplied by, each shape once."""
        paths = zip(self.program.body_parameters, self.parameters, strict=True)
        shapes = {path: each.shape for path, each in paths if isinstance(each, FORMATS)}
        linear = (one for one in self.program.instructions if isinstance(one, Linear))
        return tuple(dict.fromkeys(shapes[one.weight] for one in linear))
