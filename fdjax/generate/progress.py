"""How far a batch has come, and one decode step of it."""

import dataclasses

import jax.numpy as jnp

from fdjax.generate.plan import SamplingPlan
from fdjax.generate.row_pages import RowPages, place
from fdjax.generate.sampling import Sampled, sample
from fdjax.generate.sampling_state import (
    SamplingProgress,
    SamplingRules,
    SamplingState,
)
from fdjax.generate.softmax_counts import SoftmaxCounts
from fdjax.generate.steps import decode_counted
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
    logits, kv, recomputed = decode_counted(
        model,
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
