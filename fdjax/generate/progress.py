"""How far a batch has come, and decode steps of it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax

from fdjax.generate.plan import SamplingPlan
from fdjax.generate.row_pages import RowPages, place
from fdjax.generate.sampling import Sampled, sample
from fdjax.generate.sampling_state import (
    SamplingProgress,
    SamplingRules,
    SamplingState,
)
from fdjax.generate.softmax_counts import SoftmaxCounts
from fdjax.generate.stopping import FinishReason
from fdjax.kernels.paged import KVCache, SharedPrefixes
from fdjax.models.decoder import Decoder
from fdjax.notation import Array, Int32
from fdjax.pytree import pytree


@pytree
class GenerationRules:
    """What stays the same for all tokens of a batch; never donate it.

    Attributes:
        page_table: pages of each row in order; ids `>= P` are absent.
        sampling: what each row asked for.
        prefixes: pages that rows share and that are read once; see `PageView`.
    """

    page_table: Int32[Array, "B W"]
    sampling: SamplingRules
    prefixes: SharedPrefixes | None = None


@pytree
class GenerationProgress:
    """Everything that changes with a step; donate it, and it is updated in place.

    Attributes:
        kv: the KV array.
        lengths: tokens each row has in `kv`.
        tokens: the token each row feeds next.
        sampling: how far each row has come.
        softmax: how often the unified maximum did not fit; `None` counts nothing.
        table: pages of each row in order, for calls that are told what changes in it
            (`RowPages`); `None` for those that have it from elsewhere.
    """

    kv: KVCache
    lengths: Int32[Array, " B"]
    tokens: Int32[Array, " B"]
    sampling: SamplingProgress
    softmax: SoftmaxCounts | None = None
    table: Int32[Array, "B W"] | None = None

    def with_pages(
        self, pages: RowPages
    ) -> tuple["GenerationProgress", Int32[Array, "b w"]]:
        """The progress with what has changed in its table; the table of a call's rows.

        Raises:
            ValueError: it has no table.
        """
        if self.table is None:
            raise ValueError("GenerationProgress: no table, and pages that change it")
        table = place(self.table, pages.changes)
        part = pages.page_table(table, absent=self.kv.num_pages)
        return dataclasses.replace(self, table=table), part


def decode_step(
    model: Decoder,
    rules: GenerationRules,
    progress: GenerationProgress,
    *,
    plan: SamplingPlan,
) -> tuple[GenerationProgress, Sampled]:
    """Feeds each row's token and samples the next; finished rows stand still."""
    running = progress.sampling.finished == FinishReason.RUNNING
    logits, kv, recomputed = model.decode(
        progress.kv,
        progress.tokens,
        progress.lengths,
        rules.page_table,
        rules.prefixes,
    )
    state = SamplingState(rules.sampling, progress.sampling)
    sampled, state = sample(logits, state, plan=plan)
    progress = GenerationProgress(
        kv=kv,
        lengths=progress.lengths + running.astype(jnp.int32),
        tokens=jnp.where(running, sampled.tokens, progress.tokens),
        sampling=state.progress,
        softmax=progress.softmax
        and progress.softmax.add(recomputed, running.astype(jnp.int32)),
        table=progress.table,
    )
    return progress, sampled


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
    all_steps: bool = False,
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
        all_steps: static; steps that no row takes part in are run, too. On a GPU the
            host waits for the device in each step of a loop whose length is an operand,
            and launches nothing meanwhile: a fifth of the time of 64 rows of a 1B model
            on an H200.

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
        count = num_steps if all_steps else jnp.max(steps)
        if num_steps:  # a loop of no steps is traced, too, and has no room to write to
            part, sampled = lax.fori_loop(0, count, body, (part, sampled))
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
