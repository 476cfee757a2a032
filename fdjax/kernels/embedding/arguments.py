"""The arguments of `embedding`."""

from fdjax.kernels.weight import Weight
from fdjax.notation import Array, Float, Int32
from fdjax.pytree import pytree, static


@pytree
class Embedding:
    """One call of `embedding`.

    Attributes:
        table: the token vectors, `[V, E]`.
        tokens: ids; those outside the table read its nearest end.
        position_table: vectors of positions (OPT), or `None`.
        positions: rows of `position_table`, read in the same way, or `None`.
        scale: factor of the token vectors, rounded to their type (Gemma), or `None`.
    """

    table: Weight
    tokens: Int32[Array, " T"]
    position_table: Float[Array, "P E"] | None
    positions: Int32[Array, " T"] | None
    scale: float | None = static()
