"""Generation on the device: prompts admitted to rows, then a loop of decode steps."""

import jax
import jax.numpy as jnp
from jax import lax

from fdjax.generate.plan import SamplingPlan
from fdjax.generate.sampling import Sampled, sample
from fdjax.generate.sampling_state import (
    SamplingProgress,
    SamplingRules,
    SamplingState,
)
from fdjax.generate.softmax_counts import SoftmaxCounts
from fdjax.generate.steps import decode_counted, prefill
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
    """

    kv: KVCache
    lengths: Int32[Array, " B"]
    tokens: Int32[Array, " B"]
    sampling: SamplingProgress
    softmax: SoftmaxCounts | None = None


def admit(
    model: Decoder,
    rules: GenerationRules,
    progress: GenerationProgress,
    rows: Int32[Array, " A"],
    tokens: Int32[Array, "A S"],
    lengths: Int32[Array, " A"],
    *,
    plan: SamplingPlan,
) -> tuple[GenerationProgress, Sampled]:
    """Prefills prompts into some rows of the batch and samples their first tokens.

    Args:
        model: the decoder.
        rules: of the batch.
        progress: of the batch.
        rows: the row of each prompt; `>= B` marks padding.
        tokens: the prompts, padded on the right.
        lengths: tokens of each prompt; 0 for padding.
        plan: stages of sampling; static.

    Returns:
        The batch's progress, and the first token of each admitted row.
    """

    def take(leaf: Array) -> Array:
        return leaf.at[rows].get(mode="clip")

    def put(leaf: Array, new: Array) -> Array:
        return leaf.at[rows].set(new, mode="drop")

    width = -(-tokens.shape[1] // progress.kv.page_size)
    page_table = take(rules.page_table)[:, :width]
    logits, kv = prefill(model, progress.kv, tokens, lengths, page_table)
    part = jax.tree.map(take, SamplingState(rules.sampling, progress.sampling))
    sampled, part = sample(logits, part, plan=plan)
    progress = GenerationProgress(
        kv=kv,
        lengths=put(progress.lengths, lengths),
        tokens=put(progress.tokens, sampled.tokens),
        sampling=jax.tree.map(put, progress.sampling, part.progress),
        softmax=progress.softmax,
    )
    return progress, sampled


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
        softmax=progress.softmax and progress.softmax.add(recomputed, running),
    )
    return progress, sampled


def decode_steps(
    model: Decoder,
    rules: GenerationRules,
    progress: GenerationProgress,
    *,
    plan: SamplingPlan,
    num_steps: int,
) -> tuple[GenerationProgress, Sampled]:
    """`num_steps` decode steps in one loop on the device.

    Returns:
        The batch's progress, and what each step sampled, stacked along a new first
        axis.
    """

    def body(
        progress: GenerationProgress, _: None
    ) -> tuple[GenerationProgress, Sampled]:
        return decode_step(model, rules, progress, plan=plan)

    return lax.scan(body, progress, length=num_steps)


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
    """Prefill and `num_tokens` tokens a row: the whole of generation as one function.

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
    rows = jnp.arange(tokens.shape[0], dtype=jnp.int32)
    progress, first = admit(model, rules, progress, rows, tokens, lengths, plan=plan)
    progress, rest = decode_steps(
        model, rules, progress, plan=plan, num_steps=num_tokens - 1
    )

    def join(one: Array, many: Array) -> Array:
        return jnp.concatenate([one[None], many])

    return progress, jax.tree.map(join, first, rest)
