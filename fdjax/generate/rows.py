"""Rows of a batch whose requests come and go: prompts beside rows that decode.

An engine has a fixed number of rows, `R`. What requests asked for and how far they have
come are arrays over all of them. Tokens of prompts, and one each of rows that decode,
get into the KV array by `extend_rows`, and what follows them out by `sample_rows`.
Where no prompt is there, `fdjax.generate.progress.decode_rows` runs the first `B` rows
by the fastest way.
"""

import dataclasses

import jax
import jax.numpy as jnp

from fdjax.generate.plan import SamplingPlan
from fdjax.generate.progress import GenerationProgress
from fdjax.generate.row_pages import RowPages
from fdjax.generate.sampling import Sampled, sample
from fdjax.generate.sampling_state import SamplingRules, SamplingState
from fdjax.generate.stopping import FinishReason
from fdjax.kernels.paged import PageView
from fdjax.layers import mixed_batch
from fdjax.models.decoder import Decoder
from fdjax.notation import Array, Bool, Float, Int32, UInt32
from fdjax.pytree import pytree


@pytree
class RowTokens:
    """The tokens of one call: those of row 0, then those of row 1, and so on.

    Attributes:
        tokens: of prompts; the place of a row that decodes is filled on the device.
        starts: of prompts, how many tokens each row has in the KV array before.
        lengths: of prompts, how many after; 0 for rows that are not in the call.
        prompts: the rows that these are of, in order; `>= R` marks padding.
        decodes: rows that decode: one token each, whose length the device knows.
        pages: of all rows.
    """

    tokens: Int32[Array, " T"]
    starts: Int32[Array, " R"]
    lengths: Int32[Array, " R"]
    prompts: Int32[Array, " A"]
    decodes: Bool[Array, " R"]
    pages: RowPages


@pytree
class Arrivals:
    """Requests whose prompts are in the KV array, and who have no row yet.

    Attributes:
        state: what they asked for, and how far they have come.
        rows: the row of each; `>= R` marks padding.
        lengths: tokens each has in the KV array.
    """

    state: SamplingState
    rows: Int32[Array, " A"]
    lengths: Int32[Array, " A"]


def extend_rows(
    model: Decoder, progress: GenerationProgress, call: RowTokens, *, mixed: bool
) -> tuple[GenerationProgress, Float[Array, "R E"]]:
    """Computes prompts, or parts of them, and the tokens of rows that decode.

    Args:
        model: the decoder.
        progress: of all rows; donate it.
        call: the tokens.
        mixed: some rows may decode; static.

    Returns:
        The progress with new keys and values in its KV array, and of each row's last
        token what `sample_rows` takes; of no meaning for rows that are not in the call.
    """
    num_tokens = call.tokens.shape[0]
    lengths = jnp.where(call.decodes, progress.lengths + 1, call.lengths)
    starts = jnp.where(call.decodes, progress.lengths, call.starts)
    progress, table = progress.with_pages(call.pages)
    pages = PageView.packed(table, lengths, starts)
    places = jnp.where(call.decodes, pages.first_tokens(num_tokens), num_tokens)
    batch = mixed_batch(
        call.tokens.at[places].set(progress.tokens, mode="drop"),
        pages,
        call.prompts,
        call.decodes if mixed else None,
        page_size=progress.kv.page_size,
    )
    hidden, kv, recomputed = model.last_hidden(progress.kv, batch)
    ended = call.decodes & (progress.sampling.finished != FinishReason.RUNNING)
    counted = jnp.where(ended, 0, lengths - starts)
    softmax = progress.softmax and progress.softmax.add(recomputed, counted)
    return dataclasses.replace(progress, kv=kv, softmax=softmax), hidden


def sample_rows(
    model: Decoder,
    hidden: Float[Array, "R E"],
    decodes: Bool[Array, " R"],
    arrivals: Arrivals,
    rules: SamplingRules,
    progress: GenerationProgress,
    *,
    plan: SamplingPlan,
) -> tuple[SamplingRules, GenerationProgress, Sampled]:
    """Puts arrivals into their rows; samples their first tokens, and the others' next.

    Args:
        model: the decoder, of which the head is used.
        hidden: of `extend_rows`.
        decodes: rows that were decoded there.
        arrivals: whose prompts are complete now.
        rules: of all rows.
        progress: of all rows; donate it.
        plan: stages of sampling; static.

    Returns:
        The rules and the progress with the arrivals in their rows, and the tokens, by
        row. A row counts as finished while it stands still, and goes on where it was.
    """

    def put(leaf: Array, new: Array) -> Array:
        return leaf.at[arrivals.rows].set(new, mode="drop")

    rules = jax.tree.map(put, rules, arrivals.state.rules)
    sampling = jax.tree.map(put, progress.sampling, arrivals.state.progress)
    before = sampling.finished
    awake = put(decodes, jnp.ones_like(arrivals.rows, bool))
    running = awake & (before == FinishReason.RUNNING)
    sampling = dataclasses.replace(
        sampling, finished=jnp.where(awake, before, FinishReason.STOP)
    )
    state = SamplingState(rules, sampling)
    sampled, state = sample(model.logits(hidden), state, plan=plan)
    finished = jnp.where(awake, state.progress.finished, before)
    progress = dataclasses.replace(
        progress,
        lengths=put(progress.lengths + running.astype(jnp.int32), arrivals.lengths),
        tokens=jnp.where(running, sampled.tokens, progress.tokens),
        sampling=dataclasses.replace(state.progress, finished=finished),
    )
    return rules, progress, sampled


def allow(
    allowed: UInt32[Array, "R words"],
    rows: Int32[Array, " A"],
    masks: UInt32[Array, "A words"],
) -> UInt32[Array, "R words"]:
    """Replaces the masks of some rows.

    Args:
        allowed: masks of all rows; donate it.
        rows: whose masks come; `>= R` marks padding.
        masks: what they may emit next.
    """
    return allowed.at[rows].set(masks, mode="drop")


def exchange(
    rules: SamplingRules, progress: GenerationProgress, source: Int32[Array, " R"]
) -> tuple[SamplingRules, GenerationProgress]:
    """Moves requests to other rows: row `r` becomes what row `source[r]` was.

    Args:
        rules: of all rows; donate them, else the new ones lie elsewhere, and what is
            free is no longer one piece.
        progress: of all rows; donate it.
        source: a permutation of the rows.
    """

    def moved(leaf: Array) -> Array:
        return leaf[source]

    progress = dataclasses.replace(
        progress,
        lengths=moved(progress.lengths),
        tokens=moved(progress.tokens),
        sampling=jax.tree.map(moved, progress.sampling),
    )
    return jax.tree.map(moved, rules), progress
