"""Rows of a batch whose requests come and go: seated after prefill, then decoded.

An engine has a fixed number of rows, `R`. What requests asked for and how far they have
come are arrays over all of them; a decode program runs the first `B`.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax

from fdjax.generate.loop import GenerationProgress, GenerationRules, decode_step
from fdjax.generate.plan import SamplingPlan
from fdjax.generate.sampling import Sampled, sample
from fdjax.generate.sampling_state import (
    SamplingProgress,
    SamplingRules,
    SamplingState,
)
from fdjax.generate.stopping import FinishReason
from fdjax.models.decoder import Decoder
from fdjax.notation import Array, Float, Int32, UInt32


def seat(
    logits: Float[Array, "A V"],
    arrivals: SamplingState,
    rows: Int32[Array, " A"],
    lengths: Int32[Array, " A"],
    rules: SamplingRules,
    progress: GenerationProgress,
    *,
    plan: SamplingPlan,
) -> tuple[SamplingRules, GenerationProgress, Sampled]:
    """Samples the first tokens of requests whose prompts are in the KV array.

    Args:
        logits: of each arrival's last token.
        arrivals: what they asked for, and how far they have come.
        rows: the row of each; `>= R` marks padding.
        lengths: tokens each has in the KV array.
        rules: of all rows.
        progress: of all rows; donate it.
        plan: stages of sampling; static.

    Returns:
        The rules and the progress with the arrivals in their rows, and their tokens.
    """

    def put(leaf: Array, new: Array) -> Array:
        return leaf.at[rows].set(new, mode="drop")

    sampled, arrivals = sample(logits, arrivals, plan=plan)
    progress = dataclasses.replace(
        progress,
        lengths=put(progress.lengths, lengths),
        tokens=put(progress.tokens, sampled.tokens),
        sampling=jax.tree.map(put, progress.sampling, arrivals.progress),
    )
    return jax.tree.map(put, rules, arrivals.rules), progress, sampled


def decode_rows(
    model: Decoder,
    rules: SamplingRules,
    progress: GenerationProgress,
    page_table: Int32[Array, "B W"],
    steps: Int32[Array, " B"],
    *,
    plan: SamplingPlan,
    num_steps: int,
) -> tuple[GenerationProgress, Sampled]:
    """`num_steps` decode steps of the first `B` rows.

    Args:
        model: the decoder.
        rules: of all rows.
        progress: of all rows; donate it.
        page_table: pages of the first `B` rows; ids `>= P` are absent.
        steps: how many steps each row takes part in; then it stands still.
        plan: stages of sampling; static.
        num_steps: static.

    Returns:
        The progress of all rows, and what each step sampled, `[num_steps, B, ...]`. A
        row counts as finished while it stands still, and goes on where it was.
    """
    num_rows = page_table.shape[0]

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
    batch = GenerationRules(page_table, jax.tree.map(first, rules))

    def body(
        step: Array, carry: tuple[GenerationProgress, Sampled]
    ) -> tuple[GenerationProgress, Sampled]:
        part, sampled = carry
        still, before = step >= steps, part.sampling.finished
        part = _with_finished(part, jnp.where(still, FinishReason.STOP, before))
        part, new = decode_step(model, batch, part, plan=plan)
        part = _with_finished(part, jnp.where(still, before, part.sampling.finished))
        return part, jax.tree.map(lambda all, one: all.at[step].set(one), sampled, new)

    sampled = _room(model, batch.sampling, part.sampling, plan, num_steps)
    # Steps that no row takes part in are not run; a loop of one is no loop, on a GPU.
    count = 1 if num_steps == 1 else jnp.max(steps)
    part, sampled = lax.fori_loop(0, count, body, (part, sampled))
    progress = GenerationProgress(
        kv=part.kv,
        lengths=put(progress.lengths, part.lengths),
        tokens=put(progress.tokens, part.tokens),
        sampling=jax.tree.map(put, progress.sampling, part.sampling),
        softmax=part.softmax,
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
        rules: of all rows.
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
