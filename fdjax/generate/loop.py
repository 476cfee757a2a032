"""`generate`: prompts and all that follows them, as one function on the device."""

import dataclasses

import jax
import jax.numpy as jnp

from fdjax.generate.plan import SamplingPlan
from fdjax.generate.progress import (
    GenerationProgress,
    GenerationRules,
    decode_rows,
)
from fdjax.generate.row_pages import RowPages
from fdjax.generate.rows import Arrivals, RowTokens, extend_rows, sample_rows
from fdjax.generate.sampling import Sampled
from fdjax.generate.sampling_state import SamplingState
from fdjax.kernels.paged import PageView
from fdjax.models.decoder import Decoder
from fdjax.notation import Array, Int32


def generate(
    model: Decoder,
    rules: GenerationRules,
    progress: GenerationProgress,
    tokens: Int32[Array, "B S"],
    lengths: Int32[Array, " B"],
    *,
    plan: SamplingPlan,
    num_tokens: int,
) -> tuple[GenerationProgress, Sampled]:
    """Prompts, and `num_tokens` tokens a row: what an engine does, for one batch.

    Jit it with `progress` donated and `plan` and `num_tokens` static.

    Args:
        model: the decoder.
        rules: of a batch with pages for `lengths + num_tokens - 1` tokens a row.
        progress: of that batch.
        tokens: the prompts, padded on the right to one length.
        lengths: tokens of each prompt.
        plan: stages of sampling.
        num_tokens: tokens to make for each row, unless it ends before.

    Returns:
        The batch's progress, and what was sampled, `[num_tokens, B, ...]`. A token
        counts where `finished` was 0 one step before.
    """
    progress = dataclasses.replace(progress, table=rules.page_table)
    call = _prompts(tokens, lengths, rules.page_table)
    progress, hidden = extend_rows(model, progress, call, mixed=False)
    arrivals = Arrivals(
        SamplingState(rules.sampling, progress.sampling), call.prompts, lengths
    )
    sampling, progress, first = sample_rows(
        model, hidden, call.decodes, arrivals, rules.sampling, progress, plan=plan
    )
    progress, rest = decode_rows(
        model,
        sampling,
        progress,
        call.pages,
        jnp.full_like(lengths, num_tokens - 1),
        rules.prefixes,
        plan=plan,
        num_steps=num_tokens - 1,
        all_steps=True,
    )

    def join(one: Array, many: Array) -> Array:
        return jnp.concatenate([one[None], many])

    progress = dataclasses.replace(progress, table=None)
    return progress, jax.tree.map(join, first, rest)


def _prompts(
    tokens: Int32[Array, "B S"],
    lengths: Int32[Array, " B"],
    page_table: Int32[Array, "B W"],
) -> RowTokens:
    """Prompts, one after the other without what they were padded with."""
    starts = jnp.zeros_like(lengths)
    view = PageView.packed(page_table, lengths, starts)
    count, last = tokens.size, tokens.shape[1] - 1
    places = jnp.minimum(view.positions(count), last)
    return RowTokens(
        tokens=tokens[view.rows(count), places],
        starts=starts,
        lengths=lengths,
        prompts=jnp.arange(lengths.shape[0], dtype=jnp.int32),
        decodes=jnp.zeros_like(lengths, bool),
        pages=RowPages.all_of(page_table),
    )
