"""Which tokens rows may draw: top-k, top-p and min-p of a batch."""

from collections.abc import Sequence

import jax
import numpy as np

from fdjax.generate.params import SamplingParams
from fdjax.notation import Array, Float, Int32
from fdjax.pytree import pytree


@pytree
class Filters:
    """Which tokens rows may draw, see `SamplingParams`.

    Attributes:
        top_k: 0 keeps all.
        top_p: 1 keeps all.
        min_p: 0 keeps all.
    """

    top_k: Int32[Array, " B"]
    top_p: Float[Array, " B"]
    min_p: Float[Array, " B"]


def init_filters(params: Sequence[SamplingParams]) -> Filters:
    """Filters of a batch: one `params` a row."""
    return Filters(
        *jax.device_put(
            (
                np.array([p.top_k for p in params], np.int32),
                np.array([p.top_p for p in params], np.float32),
                np.array([p.min_p for p in params], np.float32),
            )
        )
    )
