"""Everything about a call that is static, in the kernel's words."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from fdjax.kernels.decode_attention.pallas.config import LaunchConfig
from fdjax.kernels.decode_attention.pallas.scores import ScoreFn
from fdjax.kernels.decode_attention.unified import UnifiedMax


@dataclasses.dataclass(frozen=True)
class Problem:
    """A call's static part.

    Attributes:
        rows: `B`.
        num_kv_heads: `Hkv`.
        group: query heads of each key/value head: 1, 2, 4 or a multiple of 8.
        head_dim: `D`.
        page_size: `Z`.
        num_layers: `L`.
        dtype: of everything but sums.
        scale: factor of the scores.
        score: what is done to them before the mask.
        num_parameters: how many parameters `score` takes.
        window: only the last `window` tokens are seen.
        unified: the asynchronous scheme's constant and bounds, or `None`.
        config: tiles, stages and splits.
    """

    rows: int
    num_kv_heads: int
    group: int
    head_dim: int
    page_size: int
    num_layers: int
    dtype: Any
    scale: float
    score: ScoreFn | None
    num_parameters: int
    window: int | None
    unified: UnifiedMax | None
    config: LaunchConfig

    @property
    def columns(self) -> int:
        """Query heads that a block computes: its group's, in whole blocks of 8."""
        return max(8, self.group)

    @property
    def always_running(self) -> bool:
        """Whether weights are relative to a running maximum in either scheme.

        Weights relative to a constant span more than float16's exponents, and Hopper's
        tensor core takes TF32 only in an arrangement that values do not have.
        """
        return self.dtype == jnp.float16

    @property
    def tile_pages(self) -> int:
        """Pages of a tile."""
        return self.config.tile_tokens // self.page_size
