"""Token vectors, and position vectors where a model has them, as one operation."""

from fdjax.kernels.embedding import cuda, reference
from fdjax.kernels.embedding.arguments import Embedding
from fdjax.kernels.op import Op
from fdjax.kernels.weight import Weight
from fdjax.notation import Array, Float, Int32

__all__ = ["OP", "Embedding", "embedding"]

OP = Op("embedding", reference.embedding, {"cuda": cuda.IMPL}, batch_invariant=True)


def embedding(
    table: Weight,
    tokens: Int32[Array, " T"],
    position_table: Float[Array, "P E"] | None = None,
    positions: Int32[Array, " T"] | None = None,
    *,
    scale: float | None = None,
) -> Float[Array, "T E"]:
    """The vector of each token, and that of its position.

    `x[t] = table[tokens[t]] * scale + position_table[positions[t]]`, rounded to the
    tables' type after each step. It is the first of the nine operations into which
    Intel's solution fuses a layer. The arguments are the fields of `Embedding`.

    Raises:
        ValueError: one of the position operands is there without the other, or their
            shapes do not match.
    """
    if (position_table is None) != (positions is None):
        raise ValueError("embedding: position_table and positions come together")
    if position_table is not None and position_table.shape[1:] != table.shape[1:]:
        raise ValueError(
            f"embedding: position_table has shape {position_table.shape}, table has "
            f"{table.shape}; both must have vectors of one size"
        )
    if positions is not None and positions.shape != tokens.shape:
        raise ValueError(
            f"embedding: positions has shape {positions.shape}, tokens has "
            f"{tokens.shape}; there must be one for each token"
        )
    return OP(Embedding(table, tokens, position_table, positions, scale=scale))
