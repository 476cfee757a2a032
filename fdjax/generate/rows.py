"""Rows of a batch whose requests come and go: seated after prefill, then decoded.

An engine has a fixed number of rows, `R`. What requests asked for and how far they have
come are arrays over all of them; a decode program runs the first `B`.
"""

import dataclasses

import jax
import jax.numpy as jnp

from fdjax.generate.loop import GenerationProgress, GenerationRules, decode_steps
from fdjax.generate.plan import SamplingPlan
from fdjax.generate.sampling import Sampled, sample
from fdjax.generate.sampling_state import SamplingRules, SamplingState
from fdjax.generate.stopping import FinishReason
from fdjax.models.decoder import Decoder
from fdjax.notation import Array, Bool, Float, Int32


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
    active: Bool[Array, " B"],
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
        active: the rows that are to run; the others are finished from here on.
        plan: stages of sampling; static.
        num_steps: static.

    Returns:
        The progress of all rows, and what each step sampled, `[num_steps, B, ...]`.
    """
    num_rows = page_table.shape[0]

    def first(leaf: Array) -> Array:
        return leaf[:num_rows]

    def put(leaf: Array, new: Array) -> Array:
        return leaf.at[:num_rows].set(new)

    sampling = jax.tree.map(first, progress.sampling)
    finished = jnp.where(active, sampling.finished, FinishReason.STOP)
    part = GenerationProgress(
        kv=progress.kv,
        lengths=first(progress.lengths),
        tokens=first(progress.tokens),
        sampling=dataclasses.replace(sampling, finished=finished),
        softmax=progress.softmax,
    )
    batch = GenerationRules(page_table, jax.tree.map(first, rules))
    part, sampled = decode_steps(model, batch, part, plan=plan, num_steps=num_steps)
    progress = GenerationProgress(
        kv=part.kv,
        lengths=put(progress.lengths, part.lengths),
        tokens=put(progress.tokens, part.tokens),
        sampling=jax.tree.map(put, progress.sampling, part.sampling),
        softmax=part.softmax,
    )
    return progress, sampled


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
