"""When a row is finished, decided on the device."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.generate.fields import INT32_MAX
from fdjax.generate.params import SamplingParams
from fdjax.notation import Array, Bool, Float, Int32
from fdjax.pytree import pytree

OUT_OF_REACH = -1e28
"""The logit of what may not come now.

Penalties and temperatures multiply it by up to 1e2 and 1e5, lists of tokens by 1e3:
finite in float32.
"""


class FinishReason(IntEnum):
    """Why a row emits no more tokens, as the device encodes it.

    `NON_FINITE`: its logits are no numbers to draw by. Of the host's alone are
    `SLOW_GRAMMAR`: what may come next takes too long to find out; `TIMED_OUT`: its time
    is over; `ABORTED`: it was asked to end; and `NOTHING_FOUND`: a beam search has no
    hypothesis.
    """

    RUNNING = 0
    STOP = 1
    LENGTH = 2
    NON_FINITE = 3
    SLOW_GRAMMAR = 4
    TIMED_OUT = 5
    ABORTED = 6
    NOTHING_FOUND = 7

    @property
    def text(self) -> Literal["stop", "length", "error", "abort"] | None:
        """The OpenAI API's word for it, or vLLM's; `None` while running."""
        match self:
            case FinishReason.RUNNING:
                return None
            case FinishReason.STOP:
                return "stop"
            case FinishReason.LENGTH:
                return "length"
            case FinishReason.ABORTED:
                return "abort"
            case (
                FinishReason.NON_FINITE
                | FinishReason.SLOW_GRAMMAR
                | FinishReason.TIMED_OUT
                | FinishReason.NOTHING_FOUND
            ):
                return "error"


@pytree
class StopRules:
    """What decides when rows finish, by row.

    Attributes:
        max_tokens: finished when that many tokens are emitted.
        min_tokens: stop ids are impossible before that many tokens are emitted.
        stop_ids: ids that end the row, padded with `V`, which no token equals.
    """

    max_tokens: Int32[Array, " B"]
    min_tokens: Int32[Array, " B"]
    stop_ids: Int32[Array, "B num_stop_ids"]


def init_stop_rules(
    params: Sequence[SamplingParams],
    *,
    num_stop_ids: int,
    vocab_size: int,
    eos_token_ids: Sequence[int],
) -> StopRules:
    """The stopping rules of a batch.

    Args:
        params: one a row.
        num_stop_ids: room for stop tokens of a row beside `eos_token_ids`.
        vocab_size: tokens of the model, `V`.
        eos_token_ids: the model's own end-of-sequence tokens.
    """
    width = num_stop_ids + len(eos_token_ids)
    stop_ids = np.full((len(params), width), vocab_size, np.int32)
    for row, p in enumerate(params):
        ids = (*p.stop_token_ids, *(() if p.ignore_eos else eos_token_ids))
        stop_ids[row, : len(ids)] = ids
    limits = [INT32_MAX if p.max_tokens is None else p.max_tokens for p in params]
    return StopRules(
        *jax.device_put(
            (
                np.array(limits, np.int32),
                np.array([p.min_tokens for p in params], np.int32),
                stop_ids,
            )
        )
    )


def forbid_early_stops(
    logits: Float[Array, "B V"], rules: StopRules, generated: Int32[Array, " B"]
) -> Float[Array, "B V"]:
    """Logits with the stop ids of rows short of their `min_tokens` out of reach.

    They stay finite: where a mask leaves a row nothing else, they are chosen.

    Args:
        logits: of the next token.
        rules: the rows' rules.
        generated: tokens each row has emitted.
    """
    early = generated < rules.min_tokens
    ids = jnp.where(early[:, None], rules.stop_ids, logits.shape[-1])
    rows = jnp.arange(logits.shape[0])[:, None]
    return logits.at[rows, ids].min(OUT_OF_REACH, mode="drop")


def update_finished(
    finished: Int32[Array, " B"],
    generated: Int32[Array, " B"],
    tokens: Int32[Array, " B"],
    finite: Bool[Array, " B"],
    rules: StopRules,
) -> Int32[Array, " B"]:
    """The `FinishReason` of each row after a token.

    A stop id wins over the length limit when one token meets both, and a token that was
    not drawn by numbers over all. What is finished stays finished, for the same reason.

    Args:
        finished: the `FinishReason` of each row before.
        generated: tokens each row has emitted, this one included.
        tokens: the token each running row has emitted; ignored for the others.
        finite: its logits had a largest, which is a number.
        rules: the rows' rules.
    """
    stops = jnp.any(tokens[:, None] == rules.stop_ids, axis=-1)
    too_long = generated >= rules.max_tokens
    length = too_long.astype(jnp.int32) * FinishReason.LENGTH
    reason = jnp.where(stops, FinishReason.STOP, length)
    reason = jnp.where(finite, reason, FinishReason.NON_FINITE)
    return jnp.where(finished == FinishReason.RUNNING, reason, finished)
