"""A step of beam search by the mathematics of transformers, on the device.

`transformers.generation.GenerationMixin._beam_search` (5.23) is the definition: the
same continuations, and the same scores to the last bit from the same log-probabilities.
Two things differ in form. Groups have widths of their own, padded to a static one, and
end each by itself; and sequences are not stored: a step says which token and which
parent each beam has, from which the host makes them.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fdjax.generate.beam_candidates import Candidates, candidates_of, looked_at
from fdjax.generate.beam_state import (
    OUT,
    BeamProgress,
    BeamRules,
    BeamState,
    Hypotheses,
    TopTokens,
    divided,
)
from fdjax.generate.masks import place_of
from fdjax.generate.stopping import FinishReason
from fdjax.generate.token_lists import add_recent
from fdjax.kernels.row_sum import row_sum
from fdjax.notation import Array, Bool, Float, Int32, UInt32
from fdjax.pytree import pytree


@pytree
class Chosen:
    """What the beams are after a step; of groups that have finished, what they were.

    Attributes:
        tokens: the last token of each beam.
        parents: which beam each one was before it.
        places: which candidate each was.
        logprobs: see `Candidates`, as for the next one.
        top: by parents, not by beams.
    """

    tokens: Int32[Array, "groups width"]
    parents: Int32[Array, "groups width"]
    places: Int32[Array, "groups width"]
    logprobs: Float[Array, "groups width"] | None
    top: TopTokens | None


# Of one group each, without their first axis: what types of arrays do not say.
type _Scanned = Any


def log_probabilities(
    logits: Float[Array, "groups width V"],
) -> Float[Array, "groups width V"]:
    """The logarithm of the softmax, by a sum that may be batch-invariant."""
    shifted = logits - jnp.max(logits, axis=-1, keepdims=True)
    rows = shifted.reshape(-1, logits.shape[-1])
    return shifted - jnp.log(row_sum(jnp.exp(rows))).reshape(*logits.shape[:-1], 1)


def search(
    logits: Float[Array, "groups width V"], state: BeamState
) -> tuple[Chosen, BeamProgress]:
    """Chooses the beams of each group after one more token.

    Args:
        logits: of each beam's next token, in float32; before the first tokens all beams
            of a group have the same.
        state: of `init_beams`, or with the progress of the step before.

    Returns:
        Tokens and parents, and the progress. A group whose logits are not finite has
        finished for that reason.
    """
    chosen, progress = choose(log_probabilities(logits), state)
    return chosen, broken(logits, state, progress)


def broken(
    logits: Float[Array, "groups width V"], state: BeamState, progress: BeamProgress
) -> BeamProgress:
    """`progress`, where groups with logits that are not finite have finished.

    Args:
        logits: of each beam's next token.
        state: before them.
        progress: after them.
    """
    beams = jnp.arange(logits.shape[1]) < state.rules.widths[:, None]
    finite = jnp.isfinite(jnp.max(logits, axis=-1)) | ~beams
    is_broken = ~jnp.all(finite, axis=-1)
    is_broken &= state.progress.finished == FinishReason.RUNNING
    finished = jnp.where(is_broken, FinishReason.NON_FINITE, progress.finished)
    return dataclasses.replace(progress, finished=finished)


def choose(
    logprobs: Float[Array, "groups width V"], state: BeamState
) -> tuple[Chosen, BeamProgress]:
    """`search`, from log-probabilities that no bias or penalty has changed."""
    if state.rules.diversity is None:
        return select(candidates_of(logprobs, state), state)
    return _one_after_the_other(logprobs, state, state.rules.diversity)


def select(candidates: Candidates, state: BeamState) -> tuple[Chosen, BeamProgress]:
    """The beams that go on and those that have ended, of some continuations."""
    rules, before = state.rules, state.progress
    chosen, sums = _running(candidates, before.sums.shape[1])
    generated = before.generated + 1
    hypotheses = _finishing(candidates, rules, before)
    improvable = before.improvable & _may_improve(sums, hypotheses, generated, rules)
    is_full = rules.full_ends & _all_present(hypotheses, rules)
    all_ended = jnp.all(candidates.ends | ~looked_at(candidates, rules), axis=-1)
    over = ~improvable | is_full | all_ended
    after = BeamProgress(
        sums=sums,
        generated=generated,
        hypotheses=hypotheses,
        improvable=improvable,
        finished=over.astype(jnp.int32) * FinishReason.STOP,
        seen=_now_seen(before.seen, chosen),
        recent=_now_recent(before.recent, chosen),
    )
    return _where_running(before, chosen, after)


def _one_after_the_other(
    logprobs: Float[Array, "groups width V"],
    state: BeamState,
    diversity: Float[Array, " groups"],
) -> tuple[Chosen, BeamProgress]:
    """Diverse groups: what those before have chosen now is less likely for each."""
    width, vocab_size = logprobs.shape[1:]

    def step(counts: Array, group: _Scanned) -> tuple[Array, _Scanned]:
        own_logprobs, penalty, own = jax.tree.map(lambda x: x[None], group)
        fewer = penalty[:, None] * counts
        chosen, progress = select(candidates_of(own_logprobs, own, fewer=fewer), own)
        goes_on = own.progress.finished == FinishReason.RUNNING
        counted = (jnp.arange(width) < own.rules.widths[:, None]) & goes_on[:, None]
        tokens = jnp.where(counted, chosen.tokens, vocab_size)
        counts = counts.at[tokens[0]].add(1, mode="drop")
        return counts, jax.tree.map(lambda x: x[0], (chosen, progress))

    none = jnp.zeros(vocab_size, jnp.float32)
    scanned: _Scanned = (logprobs, diversity, state)
    _, (chosen, progress) = lax.scan(step, none, scanned)
    return chosen, progress


def _running(
    candidates: Candidates, width: int
) -> tuple[Chosen, Float[Array, "groups width"]]:
    """The beams that go on: the best that have not ended, if there are enough."""
    sums = candidates.sums + jnp.where(candidates.ends, OUT, 0.0)
    sums, places = lax.top_k(sums, width)
    tokens, parents, logprobs = jax.tree.map(
        lambda x: jnp.take_along_axis(x, places, axis=-1),
        (candidates.tokens, candidates.parents, candidates.logprobs),
    )
    return Chosen(tokens, parents, places, logprobs, candidates.top), sums


def _finishing(
    candidates: Candidates, rules: BeamRules, before: BeamProgress
) -> Hypotheses:
    """The best of the hypotheses so far and of the beams that have ended now.

    Only those among the best `widths` candidates may: the others are there for beams
    that go on.
    """
    length = before.generated + 1
    divisor = jnp.take_along_axis(rules.divisors, length[:, None], axis=-1)
    ended = candidates.ends
    ended &= jnp.arange(ended.shape[1]) < rules.widths[:, None]
    closed = rules.full_ends & _all_present(before.hypotheses, rules)
    scores = divided(candidates.sums, divisor)
    # One after the other, as transformers adds them: the order of what is out counts.
    scores += jnp.where(closed, OUT, 0.0)[:, None]
    scores += jnp.where(before.improvable, 0.0, OUT)[:, None]
    scores += jnp.where(ended, 0.0, OUT)
    new = Hypotheses(
        scores,
        jnp.broadcast_to(length[:, None], scores.shape),
        candidates.parents,
        candidates.tokens,
        ended,
        candidates.logprobs,
    )
    both = jax.tree.map(
        lambda old, one: jnp.concatenate([old, one], axis=1), before.hypotheses, new
    )
    _, places = lax.top_k(both.scores, before.sums.shape[1])
    return jax.tree.map(lambda x: jnp.take_along_axis(x, places, axis=1), both)


def _may_improve(
    sums: Float[Array, "groups width"],
    hypotheses: Hypotheses,
    generated: Int32[Array, " groups"],
    rules: BeamRules,
) -> Bool[Array, " groups"]:
    """Whether the best running beam could be better than the worst hypothesis."""
    at = jnp.where(rules.best_at_limit, rules.stopping.max_tokens, generated)
    divisor = jnp.take_along_axis(rules.divisors, at[:, None], axis=-1)
    best = divided(sums[:, :1], divisor)
    exists = _existing(hypotheses, rules)
    scores = jnp.where(exists, hypotheses.scores, jnp.inf)
    worst = jnp.min(scores, axis=-1, keepdims=True)
    worst = jnp.where(hypotheses.present, worst, OUT)
    return jnp.any((best > worst) & exists, axis=-1)


def _existing(hypotheses: Hypotheses, rules: BeamRules) -> Bool[Array, "groups width"]:
    return jnp.arange(hypotheses.scores.shape[1]) < rules.widths[:, None]


def _all_present(hypotheses: Hypotheses, rules: BeamRules) -> Bool[Array, " groups"]:
    return jnp.all(hypotheses.present | ~_existing(hypotheses, rules), axis=-1)


def _now_seen(
    seen: UInt32[Array, "groups width words"] | None, chosen: Chosen
) -> UInt32[Array, "groups width words"] | None:
    if seen is None:
        return None
    group = jnp.arange(seen.shape[0])[:, None]
    beam = jnp.arange(seen.shape[1])
    inherited = seen[group, chosen.parents]
    word, bit = place_of(chosen.tokens)
    both = inherited[group, beam, word] | bit
    return inherited.at[group, beam, word].set(both)


def _now_recent(
    recent: Int32[Array, "groups width L"] | None, chosen: Chosen
) -> Int32[Array, "groups width L"] | None:
    if recent is None:
        return None
    group = jnp.arange(recent.shape[0])[:, None]
    flat = recent[group, chosen.parents].reshape(-1, recent.shape[-1])
    tokens = chosen.tokens.reshape(-1)
    after = add_recent(flat, tokens, jnp.ones(tokens.shape, jnp.bool_))
    return after.reshape(recent.shape)


def _where_running(
    before: BeamProgress, chosen: Chosen, after: BeamProgress
) -> tuple[Chosen, BeamProgress]:
    """Groups that had finished stay as they were: each beam its own parent."""
    running = before.finished == FinishReason.RUNNING

    def kept(old: Array, new: Array) -> Array:
        return jnp.where(running.reshape(-1, *[1] * (old.ndim - 1)), new, old)

    itself = jnp.broadcast_to(jnp.arange(before.sums.shape[1]), before.sums.shape)
    parents = jnp.where(running[:, None], chosen.parents, itself)
    chosen = dataclasses.replace(chosen, parents=parents)
    return chosen, jax.tree.map(kept, before, after)
