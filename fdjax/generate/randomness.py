"""Random draws that depend on nothing but a row's seed and its position."""

from collections.abc import Sequence

import jax
import numpy as np

from fdjax.generate.params import SamplingParams
from fdjax.notation import Array, Float, UInt32
from fdjax.pytree import pytree


@pytree
class Randomness:
    """How rows draw.

    Attributes:
        keys: data of a threefry key each, the 64 bits of the row's seed.
        temperature: divides the logits; 0 takes the most likely token.
    """

    keys: UInt32[Array, "B 2"]
    temperature: Float[Array, " B"]


def init_randomness(
    params: Sequence[SamplingParams], default_seeds: Sequence[int]
) -> Randomness:
    """Randomness of a batch.

    Args:
        params: one a row.
        default_seeds: one a row, for `params` without a seed; 0 to 2**64 - 1.
    """
    seeds = np.array(
        [
            default if p.seed is None else p.seed
            for p, default in zip(params, default_seeds, strict=True)
        ],
        np.uint64,
    )
    keys = np.stack([seeds >> 32, seeds & 0xFFFFFFFF], axis=-1).astype(np.uint32)
    temperature = [0.0 if p.is_greedy else p.temperature for p in params]
    return Randomness(*jax.device_put((keys, np.array(temperature, np.float32))))
