"""The steps of beam searches, with a model."""

import dataclasses
import itertools

import jax.numpy as jnp

from fdjax.generate.beam_candidates import Candidates, candidates_of
from fdjax.generate.beam_run import BeamPages, BeamRun, BeamStep, Judgement
from fdjax.generate.beam_search import (
    Chosen,
    broken,
    log_probabilities,
    search,
    select,
)
from fdjax.generate.beam_state import BeamProgress, BeamRules, BeamState
from fdjax.generate.packed import Packed, joined, packed, unpacked
from fdjax.kernels.beam_attention import BeamView
from fdjax.kernels.paged import KVCache
from fdjax.layers import beam_batch
from fdjax.models.decoder import Decoder
from fdjax.notation import Array, Float, Int32, UInt32

type Begun = tuple[Packed[BeamRules], Packed[BeamRun], Packed[BeamStep]]
"""Rules for later steps, what those change, and what is told."""


def begin_beams(
    logits: Float[Array, "A V"],
    places: Int32[Array, " groups"],
    rules: BeamRules,
    progress: BeamProgress,
) -> Begun:
    """The first tokens of groups whose prompts are in the KV array.

    Args:
        logits: of the last tokens of prompts.
        places: which of them is each group's.
        rules: of the groups.
        progress: of `init_beams`.
    """
    state = BeamState(rules, progress)
    chosen, progress = search(_spread(logits[places], progress), state)
    run = BeamRun(progress, chosen.tokens, _no_origins(state), None)
    return packed(rules), packed(run), packed(_told(chosen, progress, None))


def begin_judged(
    logits: Float[Array, "A V"],
    places: Int32[Array, " groups"],
    rules: BeamRules,
    progress: BeamProgress,
    allowed: UInt32[Array, "groups words"],
) -> Begun:
    """`begin_beams` where the host judges candidates: these, of the first tokens.

    Args:
        logits: see there, as for all but the last.
        places: see there.
        rules: see there.
        progress: see there.
        allowed: which tokens may come first.
    """
    state = BeamState(rules, progress)
    words = (*progress.sums.shape, allowed.shape[-1])
    by_beam = jnp.broadcast_to(allowed[:, None], words)
    candidates, progress = _looked(_spread(logits[places], progress), state, by_beam)
    none = jnp.zeros(progress.sums.shape, jnp.int32)
    run = BeamRun(progress, none, _no_origins(state), candidates)
    return packed(rules), packed(run), packed(_told(None, progress, candidates))


def beam_steps(
    model: Decoder,
    kv: KVCache,
    rules: tuple[Packed[BeamRules], ...],
    runs: tuple[Packed[BeamRun], ...],
    pages: BeamPages,
) -> tuple[KVCache, tuple[Packed[BeamRun], ...], Packed[BeamStep]]:
    """Feeds each beam's token and chooses the next; finished groups stand still.

    Args:
        model: the decoder; its weights are read once for all searches.
        kv: the KV array; donate it.
        rules: of the groups of each search; of the same shapes.
        runs: of each; donate them.
        pages: of all their groups, one search after the other, with room for the
            tokens that are fed.

    Returns:
        Besides what was donated, a step of all groups.
    """
    run = unpacked(joined(runs))
    state = BeamState(unpacked(joined(rules)), run.progress)
    logits, kv, origins = _fed(model, kv, run, pages)
    chosen, progress = search(logits, state)
    origins = _followed(origins, chosen)
    after = packed(BeamRun(progress, chosen.tokens, origins, None))
    ends = itertools.accumulate((one.words.shape[0] for one in runs), initial=0)
    parts = tuple(after.rows(slice(*each)) for each in itertools.pairwise(ends))
    return kv, parts, packed(_told(chosen, progress, None))


def judged_step(
    model: Decoder,
    kv: KVCache,
    rules: Packed[BeamRules],
    run: Packed[BeamRun],
    pages: BeamPages,
    judgement: Judgement,
) -> tuple[KVCache, Packed[BeamRun], Packed[BeamStep]]:
    """Chooses among candidates that were judged, and finds those after them.

    Args:
        model: see `beam_steps`, as for all but the last.
        kv: see there.
        rules: of one search.
        run: likewise; with candidates.
        pages: see there.
        judgement: of its candidates.
    """
    own, before = unpacked(rules), unpacked(run)
    judged = _judged(before, judgement)
    after, chosen = _chosen(own, before, judged)
    logits, kv, origins = _fed(model, kv, after, pages)
    allowed = _masks(chosen, judged, judgement.allowed)
    candidates, progress = _looked(logits, BeamState(own, after.progress), allowed)
    after = BeamRun(progress, after.tokens, origins, candidates)
    return kv, packed(after), packed(_told(chosen, progress, candidates))


def end_judged(
    rules: Packed[BeamRules], run: Packed[BeamRun], judgement: Judgement
) -> Packed[BeamStep]:
    """Chooses among the candidates of the last tokens; nothing is fed any more."""
    before = unpacked(run)
    after, chosen = _chosen(unpacked(rules), before, _judged(before, judgement))
    return packed(_told(chosen, after.progress, None))


def _judged(run: BeamRun, judgement: Judgement) -> Candidates:
    candidates = run.candidates
    assert candidates is not None, "nothing was judged"
    ends = candidates.ends | judgement.ends
    return dataclasses.replace(candidates, ends=ends)


def _chosen(
    rules: BeamRules, run: BeamRun, judged: Candidates
) -> tuple[BeamRun, Chosen]:
    chosen, progress = select(judged, BeamState(rules, run.progress))
    origins = _followed(run.origins, chosen)
    return BeamRun(progress, chosen.tokens, origins, None), chosen


def _masks(
    chosen: Chosen, judged: Candidates, allowed: UInt32[Array, "groups width words"]
) -> UInt32[Array, "groups width words"]:
    """Each chosen beam's mask; nothing may follow one that has ended."""
    ends, nowhere = judged.ends, allowed.shape[1]
    place = jnp.where(ends, nowhere, jnp.cumsum(~ends, axis=1) - 1)
    groups = jnp.arange(ends.shape[0])[:, None]
    masks = allowed.at[groups, place[groups, chosen.places]]
    return masks.get(mode="fill", fill_value=0)


def _looked(
    logits: Float[Array, "groups width V"],
    state: BeamState,
    allowed: UInt32[Array, "groups width words"],
) -> tuple[Candidates, BeamProgress]:
    candidates = candidates_of(log_probabilities(logits), state, allowed=allowed)
    return candidates, broken(logits, state, state.progress)


def _fed(
    model: Decoder, kv: KVCache, run: BeamRun, pages: BeamPages
) -> tuple[Float[Array, "groups width V"], KVCache, Int32[Array, "groups width limit"]]:
    """Logits after each beam's token, the KV array with it, and where it lies."""
    groups, width = run.tokens.shape
    lengths = run.progress.generated - 1
    group = jnp.arange(groups)[:, None]
    beam = jnp.arange(width, dtype=jnp.int32)
    origins = run.origins.at[group, beam, lengths[:, None]].set(beam)
    view = BeamView(
        pages.prompt_table,
        pages.prompt_lengths,
        origins.reshape(groups * width, -1),
        pages.prefixes,
    )
    batch = beam_batch(
        run.tokens.reshape(-1),
        jnp.repeat(lengths, width, total_repeat_length=groups * width),
        pages.page_table.reshape(groups * width, -1),
        view,
        page_size=kv.page_size,
    )
    hidden, kv, _ = model(kv, batch)
    return model.logits(hidden).reshape(groups, width, -1), kv, origins


def _followed(
    origins: Int32[Array, "groups width limit"], chosen: Chosen
) -> Int32[Array, "groups width limit"]:
    return origins[jnp.arange(origins.shape[0])[:, None], chosen.parents]


def _spread(
    logits: Float[Array, "groups V"], progress: BeamProgress
) -> Float[Array, "groups width V"]:
    """The same for all beams of a group."""
    shape = (*progress.sums.shape, logits.shape[-1])
    return jnp.broadcast_to(logits[:, None], shape)


def _no_origins(state: BeamState) -> Int32[Array, "groups width limit"]:
    limit = state.rules.divisors.shape[1]
    return jnp.zeros((*state.progress.sums.shape, limit), jnp.int32)


def _told(
    chosen: Chosen | None, progress: BeamProgress, candidates: Candidates | None
) -> BeamStep:
    return BeamStep(
        chosen, progress.sums, progress.finished, progress.hypotheses, candidates
    )
