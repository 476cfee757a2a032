"""Beam search with a model: what a group keeps on the device, and its steps."""

import jax.numpy as jnp

from fdjax.generate.beam_search import Chosen, search
from fdjax.generate.beam_state import BeamProgress, BeamRules, BeamState, Hypotheses
from fdjax.kernels.beam_attention import BeamView
from fdjax.kernels.paged import KVCache
from fdjax.layers import beam_batch
from fdjax.models.decoder import Decoder
from fdjax.notation import Array, Float, Int32
from fdjax.pytree import pytree


@pytree
class BeamRun:
    """What changes with a step of some groups; donate it.

    Attributes:
        progress: of the search.
        tokens: the token that each beam feeds next.
        origins: of the beams' tokens: see `BeamView`.
    """

    progress: BeamProgress
    tokens: Int32[Array, "groups width"]
    origins: Int32[Array, "groups width limit"]


@pytree
class BeamPages:
    """Where groups keep keys and values.

    Attributes:
        prompt_table: pages of each prompt in order; ids `>= P` are absent.
        prompt_lengths: tokens of each prompt.
        page_table: each beam's pages for the tokens after the prompt. Keys stay where
            they are when beams are reordered.
    """

    prompt_table: Int32[Array, "groups W"]
    prompt_lengths: Int32[Array, " groups"]
    page_table: Int32[Array, "groups width Wr"]


@pytree
class BeamStep:
    """What a step says to the host: copies that outlive the donated run.

    Attributes:
        chosen: the beams after it.
        finished: a `FinishReason` of each group.
        hypotheses: as far as there are any.
    """

    chosen: Chosen
    finished: Int32[Array, " groups"]
    hypotheses: Hypotheses


def begin_beams(
    logits: Float[Array, "A V"],
    places: Int32[Array, " groups"],
    rules: BeamRules,
    progress: BeamProgress,
) -> tuple[BeamRun, BeamStep]:
    """The first tokens of groups whose prompts are in the KV array.

    Args:
        logits: of the last tokens of prompts.
        places: which of them is each group's.
        rules: of the groups.
        progress: of `init_beams`; donate it.
    """
    groups, width = progress.sums.shape
    of_group = logits[places][:, None]
    spread = jnp.broadcast_to(of_group, (groups, width, logits.shape[-1]))
    chosen, progress = search(spread, BeamState(rules, progress))
    limit = rules.divisors.shape[1]
    origins = jnp.zeros((groups, width, limit), jnp.int32)
    return BeamRun(progress, chosen.tokens, origins), _told(chosen, progress)


def beam_step(
    model: Decoder,
    kv: KVCache,
    rules: BeamRules,
    run: BeamRun,
    pages: BeamPages,
) -> tuple[KVCache, BeamRun, BeamStep]:
    """Feeds each beam's token and chooses the next; finished groups stand still.

    Args:
        model: the decoder.
        kv: the KV array; donate it.
        rules: of the groups.
        run: of the groups; donate it.
        pages: with room for the tokens that are fed.
    """
    groups, width = run.tokens.shape
    lengths = run.progress.generated - 1
    group = jnp.arange(groups)[:, None]
    beam = jnp.arange(width, dtype=jnp.int32)
    origins = run.origins.at[group, beam, lengths[:, None]].set(beam)
    view = BeamView(
        pages.prompt_table, pages.prompt_lengths, origins.reshape(groups * width, -1)
    )
    batch = beam_batch(
        run.tokens.reshape(-1),
        jnp.repeat(lengths, width, total_repeat_length=groups * width),
        pages.page_table.reshape(groups * width, -1),
        view,
        page_size=kv.page_size,
    )
    hidden, kv, _ = model(kv, batch)
    logits = model.logits(hidden).reshape(groups, width, -1)
    chosen, progress = search(logits, BeamState(rules, run.progress))
    origins = origins[group, chosen.parents]
    return kv, BeamRun(progress, chosen.tokens, origins), _told(chosen, progress)


def _told(chosen: Chosen, progress: BeamProgress) -> BeamStep:
    return BeamStep(chosen, progress.finished, progress.hypotheses)
