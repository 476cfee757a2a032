"""Attention over a part of the keys, and how parts are joined (FlashInfer, 2.2)."""

from collections.abc import Sequence

import jax.numpy as jnp

from fdjax.notation import Array, Float
from fdjax.pytree import pytree


@pytree
class AttentionState:
    """What queries have found among some keys.

    Attributes:
        output: values weighted by the softmax over these keys, in float32; zeros where
            there are none.
        log_sum: natural logarithm of the sum of the exponentials of their scores, a
            sink's among them; -inf where there are none.
    """

    output: Float[Array, "... Hq D"]
    log_sum: Float[Array, "... Hq"]


def merge_states(states: Sequence[AttentionState]) -> AttentionState:
    """What queries have found among the keys of all states (FlashInfer, section 2.2).

    `fdjax.ops.merge_states` tells what they may be.

    Raises:
        ValueError: there are none, or they are not of the same shapes.
    """
    shapes = {(state.output.shape, state.log_sum.shape) for state in states}
    if len(shapes) != 1:
        raise ValueError(
            f"merge_states: states of the shapes {sorted(shapes)}; expected one or "
            "more of the same"
        )
    ((output, log_sum),) = shapes
    if output[:-1] != log_sum:
        raise ValueError(
            f"merge_states: output is {output} and log_sum {log_sum}; expected "
            "[..., Hq, D] and [..., Hq]"
        )
    log_sums = jnp.stack([state.log_sum for state in states])
    outputs = jnp.stack([state.output for state in states])
    highest = jnp.max(log_sums, axis=0)
    finite = jnp.where(jnp.isfinite(highest), highest, 0.0)
    weights = jnp.exp(log_sums - finite)
    total = jnp.sum(weights, axis=0)
    # Where a state has found nothing, its output means nothing, and may be NaN.
    held = jnp.where(weights[..., None] > 0.0, outputs, 0.0)
    summed = jnp.sum(weights[..., None] * held, axis=0)
    merged = summed / jnp.where(total > 0.0, total, 1.0)[..., None]
    return AttentionState(merged, finite + jnp.log(total))
