"""Rows of a batch whose requests come and go: prompts beside rows that decode.

An engine has a fixed number of rows, `R`. What requests asked for and how far they have
come are arrays over all of them. Tokens of prompts, and one each of rows that decode,
get into the KV array by `extend_rows`, and what follows them out by `sample_rows`.
Where no prompt is there, `decode_rows` runs the first `B` rows by the fastest way.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax

from fdjax.generate.plan import SamplingPlan
from fdjax.generate.progress import GenerationProgress, GenerationRules, decode_step
from fdjax.generate.row_pages import RowPages
from fdjax.generate.sampling import Sampled, sample
from fdjax.generate.sampling_state import (
    SamplingProgress,
    SamplingRules,
    SamplingState,
)
from fdjax.generate.steps import last_hidden
from fdjax.generate.stopping import FinishReason
from fdjax.kernels.paged import PageView, SharedPrefixes
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
    hidden, kv, recomputed = last_hidden(model, progress.kv, batch)
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


def decode_rows(
    model: Decoder,
    rules: SamplingRules,
    progress: GenerationProgress,
    pages: RowPages,
    steps: Int32[Array, " B"],
    prefixes: SharedPrefixes | None = None,
    *,
    plan: SamplingPlan,
    num_steps: int,
) -> tuple[GenerationProgress, Sampled]:
    """`num_steps` decode steps of the first `B` rows.

    Args:
        model: the decoder.
        rules: of all rows.
        progress: of all rows; donate it.
        pages: of the first `B` rows.
        steps: how many steps each row takes part in; then it stands still.
        prefixes: pages that rows share and that are read once.
        plan: stages of sampling; static.
        num_steps: static.

    Returns:
        The progress of all rows, and what each step sampled, `[num_steps, B, ...]`. A
        row counts as finished while it stands still, and goes on where it was.
    """
    progress, table = progress.with_pages(pages)
    num_rows = steps.shape[0]

    def first(leaf: Array) -> Array:
        return leaf[:num_rows]

    def put(leaf: Array, new: Array) -> Array:
        return leaf.at[:num_rows].set(new)

    part = GenerationProgress(
        kv=progress.kv,
        lengths=first(progress.lengths),
        tokens=first(progress.tokens),
        sampling=jax.tree.map(first, progress.sampling),
        softmax=progress.softmax,
    )
    batch = GenerationRules(table, jax.tree.map(first, rules), prefixes)

    def take(
        step: Array | int, part: GenerationProgress
    ) -> tuple[GenerationProgress, Sampled]:
        still, before = step >= steps, part.sampling.finished
        part = _with_finished(part, jnp.where(still, FinishReason.STOP, before))
        part, new = decode_step(model, batch, part, plan=plan)
        part = _with_finished(part, jnp.where(still, before, part.sampling.finished))
        return part, new

    def body(
        step: Array, carry: tuple[GenerationProgress, Sampled]
    ) -> tuple[GenerationProgress, Sampled]:
        part, new = take(step, carry[0])
        return part, jax.tree.map(lambda x, one: x.at[step].set(one), carry[1], new)

    if num_steps == 1:
        part, new = take(0, part)
        sampled = jax.tree.map(lambda one: one[None], new)
    else:
        sampled = _room(model, batch.sampling, part.sampling, plan, num_steps)
        # Steps that no row takes part in are not run.
        part, sampled = lax.fori_loop(0, jnp.max(steps), body, (part, sampled))
    progress = GenerationProgress(
        kv=part.kv,
        lengths=put(progress.lengths, part.lengths),
        tokens=put(progress.tokens, part.tokens),
        sampling=jax.tree.map(put, progress.sampling, part.sampling),
        softmax=part.softmax,
        table=progress.table,
    )
    return progress, sampled


def _room(
    model: Decoder,
    rules: SamplingRules,
    progress: SamplingProgress,
    plan: SamplingPlan,
    num_steps: int,
) -> Sampled:
    """Zeros for what `num_steps` steps will sample."""
    size = (progress.finished.shape[0], model.config.embedding.vocab_size)
    logits = jax.ShapeDtypeStruct(size, jnp.float32)
    choose = functools.partial(sample, plan=plan)
    one, _ = jax.eval_shape(choose, logits, SamplingState(rules, progress))
    return jax.tree.map(lambda x: jnp.zeros((num_steps, *x.shape), x.dtype), one)


def _with_finished(
    progress: GenerationProgress, finished: Int32[Array, " B"]
) -> GenerationProgress:
    sampling = dataclasses.replace(progress.sampling, finished=finished)
    return dataclasses.replace(progress, sampling=sampling)


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
