"""How often the unified maximum did not fit, counted on the device."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.models.config import ModelConfig
from fdjax.notation import Array, Int32, UInt32
from fdjax.pytree import pytree

_HALF = 2**32


@dataclass(frozen=True)
class SoftmaxStatistics:
    """What steps have counted so far; see `UnifiedMax`.

    Attributes:
        query_heads: query heads of prompts' and of running rows' tokens that each layer
            attended with.
        recomputed: how many of them left the bounds and were computed again, by layer.
    """

    query_heads: int
    recomputed: tuple[int, ...]

    @property
    def rate(self) -> float:
        """The share of query heads computed again, over all layers."""
        seen = self.query_heads * len(self.recomputed)
        return sum(self.recomputed) / seen if seen else 0.0


@pytree
class SoftmaxCounts:
    """Running counts of 64 bits, their lower half first; JAX counts in 32.

    Attributes:
        tokens: of prompts, and of running rows that decode.
        recomputed: query heads computed again, by layer.
    """

    tokens: UInt32[Array, "2"]
    recomputed: UInt32[Array, "L 2"]

    @staticmethod
    def of(config: ModelConfig) -> "SoftmaxCounts | None":
        """Nothing counted yet; `None` where the softmax is synchronised."""
        if config.unified is None:
            return None
        layers = jnp.zeros((config.num_layers, 2), jnp.uint32)
        return SoftmaxCounts(jnp.zeros(2, jnp.uint32), layers)

    def add(
        self, recomputed: Int32[Array, "L B"], tokens: Int32[Array, " B"]
    ) -> "SoftmaxCounts":
        """Counts a step.

        Args:
            recomputed: query heads computed again of each row.
            tokens: of each row; rows without any are not counted.
        """
        heads = jnp.sum(jnp.where(tokens > 0, recomputed, 0), axis=1)
        return SoftmaxCounts(
            _plus(self.tokens, jnp.sum(tokens)), _plus(self.recomputed, heads)
        )

    def read(self, *, num_heads: int) -> SoftmaxStatistics:
        """The counts on the host; waits for the steps that were launched.

        Args:
            num_heads: query heads of a layer.
        """
        tokens, recomputed = jax.device_get((self.tokens, self.recomputed))
        return SoftmaxStatistics(
            query_heads=num_heads * _whole(tokens),
            recomputed=tuple(map(_whole, recomputed)),
        )


def _plus(
    counter: UInt32[Array, "*L 2"], amount: Int32[Array, "*L"]
) -> UInt32[Array, "*L 2"]:
    more = amount.astype(jnp.uint32)
    low = counter[..., 0] + more
    high = counter[..., 1] + (low < more).astype(jnp.uint32)
    return jnp.stack([low, high], axis=-1)


def _whole(halves: np.ndarray) -> int:
    return int(halves[0]) + _HALF * int(halves[1])
