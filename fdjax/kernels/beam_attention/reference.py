"""The definition of `beam_attention`, in float32."""

from dataclasses import replace

from fdjax.kernels.attention_states.states import AttentionState, merge_states
from fdjax.kernels.beam_attention.arguments import BeamAttention
from fdjax.kernels.paged import tokens_within
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
    present = call.kv.cache.present(beams.prompt_table)
    held = present & tokens_within(lengths, present.shape[1])
    query = call.q.reshape(lengths.shape[0], beams.width, *call.q.shape[1:])
    own = call.pages.lengths.reshape(query.shape[:2])
    positions = lengths[:, None] + own - 1
    scores = scores_of(query, keys, positions, held, call.scores)
    output, log_sum = mixed(scores, values, held, None)
    rows = call.q.shape[0]
    return AttentionState(
        output.reshape(rows, *output.shape[2:]), log_sum.reshape(rows, -1)
    )


def _responses(call: BeamAttention) -> AttentionState:
    own = replace(call, pages=call.beams.own(call.pages, call.kv.cache))
    (keys, values), held = own.gathered(), own.held()
    positions = (call.pages.lengths - 1)[:, None]
    scores = scores_of(call.q[:, None], keys, positions, held, call.scores)
    output, log_sum = mixed(scores, values, held, call.scores.sinks)
    return AttentionState(output[:, 0], log_sum[:, 0])
