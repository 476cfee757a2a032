"""The definition of `beam_attention`, in float32."""

import jax.numpy as jnp

from fdjax.kernels.attention.states import AttentionState, merge_states
from fdjax.kernels.beam_attention.arguments import BeamAttention
from fdjax.kernels.paged.definition import mixed, scores_of
from fdjax.notation import Array, Float


def beam_attention(call: BeamAttention) -> Float[Array, "B Hq D"]:
    """See `fdjax.kernels.beam_attention.beam_attention`.

    A prompt is read once for all beams of its group.
    """
    states = (_prompts(call), _responses(call))
    return merge_states(states).output.astype(call.q.dtype)


def _prompts(call: BeamAttention) -> AttentionState:
    beams, lengths = call.beams, call.beams.prompt_lengths
    keys, values = call.kv.gather(beams.prompt_table)
    query = call.q.reshape(lengths.shape[0], beams.width, *call.q.shape[1:])
    own = call.pages.lengths.reshape(query.shape[:2])
    positions = lengths[:, None] + own - 1
    scores = scores_of(query, keys, positions, lengths, call.scores)
    output, log_sum = mixed(scores, values, lengths, None)
    rows = call.q.shape[0]
    return AttentionState(
        output.reshape(rows, *output.shape[2:]), log_sum.reshape(rows, -1)
    )


def _responses(call: BeamAttention) -> AttentionState:
    keys, values = (_selected(x, call) for x in call.kv.gather(call.pages.page_table))
    lengths = call.pages.lengths
    positions = (lengths - 1)[:, None]
    scores = scores_of(call.q[:, None], keys, positions, lengths, call.scores)
    output, log_sum = mixed(scores, values, lengths, call.scores.sinks)
    return AttentionState(output[:, 0], log_sum[:, 0])


def _selected(
    held: Float[Array, "B T Hkv D"], call: BeamAttention
) -> Float[Array, "B T Hkv D"]:
    """What each beam sees, from what lies in the pages of the beams of its group."""
    rows, room = held.shape[:2]
    beams = call.beams
    step = jnp.minimum(jnp.arange(room), beams.origins.shape[1] - 1)
    first = jnp.arange(rows, dtype=jnp.int32) // beams.width * beams.width
    origin = first[:, None] + beams.origins[:, step]
    return held[origin, jnp.arange(room)]
