"""The arguments of `layer_program`."""

from fdjax.kernels.paged import KVCache
from fdjax.kernels.weight import Weight
from fdjax.layers import Batch
from fdjax.models.program.instructions import Program
from fdjax.notation import Array, Float, Int32
from fdjax.pytree import pytree, static

type Ran = tuple[Float[Array, "U E"], KVCache, Int32[Array, "L B"]]
"""The normalised hidden states, the updated cache, and what was computed again."""


@pytree
class LayerProgram:
    """One call of `layer_program`: a program without its ends, embedding and head.

    Attributes:
        x: embedded tokens.
        kv: keys and values. Donate it, and it is updated in place.
        batch: the tokens.
        parameters: those of `program.layer_parameters`, in their order.
        program: what is done; one that selects needs `batch.wanted`.
    """

    x: Float[Array, "T E"]
    kv: KVCache
    batch: Batch
    parameters: tuple[Array | Weight, ...]
    program: Program = static()
