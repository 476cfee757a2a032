"""Tables at both ends of a decoder: tokens, positions, and the head."""

import jax
import jax.numpy as jnp
from flax import nnx

from fdjax.config import Embedding, Learned
from fdjax.kernels.embedding import embedding
from fdjax.kernels.matmul import matmul
from fdjax.kernels.weight import Weight
from fdjax.layers.parameter import declare, declare_weight
from fdjax.notation import Array, Float, Int32


class Embedder(nnx.Module):
    """The token embedding.

    Args:
        spec: vocabulary and scale.
        hidden_size: `E`.
        dtype: type of the parameters.
    """

    def __init__(
        self, spec: Embedding, hidden_size: int, *, dtype: jax.typing.DTypeLike
    ) -> None:
        self.spec = spec
        self.weight = declare_weight(spec.vocab_size, hidden_size, dtype=dtype)

    def __call__(
        self,
        tokens: Int32[Array, " T"],
        position_table: Float[Array, "P E"] | None = None,
        positions: Int32[Array, " T"] | None = None,
    ) -> Float[Array, "T E"]:
        """The vector of each token, and of its place in a table of positions."""
        return embedding(
            self.weight.get_value(),
            tokens,
            position_table,
            positions,
            scale=self.spec.scale,
        )


class PositionTable(nnx.Module):
    """Learned position vectors (OPT).

    Args:
        spec: size and offset of the table.
        hidden_size: `E`.
        dtype: type of the parameters.
    """

    def __init__(
        self, spec: Learned, hidden_size: int, *, dtype: jax.typing.DTypeLike
    ) -> None:
        self.spec = spec
        self.weight = declare(spec.size + spec.offset, hidden_size, dtype=dtype)

    def __call__(
        self, positions: Int32[Array, " T"]
    ) -> tuple[Float[Array, "P E"], Int32[Array, " T"]]:
        """The table, and the row of each position."""
        return self.weight[...], positions + self.spec.offset


class Head(nnx.Module):
    """The linear map to logits; its weight is absent where it is the token embedding.

    Args:
        spec: vocabulary, tying, bias and soft cap.
        hidden_size: `E`.
        dtype: type of the parameters.
    """

    def __init__(
        self, spec: Embedding, hidden_size: int, *, dtype: jax.typing.DTypeLike
    ) -> None:
        self.spec = spec
        vocab = spec.vocab_size
        weight = declare_weight(vocab, hidden_size, dtype=dtype)
        self.weight = None if spec.tied else weight
        self.bias = declare(vocab, dtype=dtype) if spec.head_bias else None

    def __call__(
        self, x: Float[Array, "T E"], embedding: Weight
    ) -> Float[Array, "T V"]:
        """Logits in float32; `embedding`, `[V, E]`, serves where the head is tied."""
        weight = embedding if self.weight is None else self.weight.get_value()
        bias = None if self.bias is None else self.bias[...]
        return logits(x, weight, bias, soft_cap=self.spec.soft_cap)


def logits(
    x: Float[Array, "T E"],
    weight: Weight,
    bias: Float[Array, " V"] | None,
    *,
    soft_cap: float | None,
) -> Float[Array, "T V"]:
    """The head's linear map in float32; capped as `cap * tanh(logits / cap)`."""
    made = matmul(x, weight, bias, out_dtype=jnp.float32)
    return made if soft_cap is None else soft_cap * jnp.tanh(made / soft_cap)
