"""A step of beam search by the mathematics of transformers, on the device.

`transformers.generation.GenerationMixin._beam_search` (5.23) is the definition: the
same continuations, and the same scores to the last bit from the same log-probabilities.
Two things differ in form. Groups have widths of their own, padded to a static one, and
end each by itself; and sequences are not stored: a step says which token and which
parent each beam has, from which the host makes them.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from fdjax.generate.beam_state import (
    LEAST_KEPT,
    OUT,
    BeamProgress,
    BeamRules,
    BeamState,
    Hypotheses,
)
from fdjax.generate.stopping import FinishReason
from fdjax.kernels.row_sum import row_sum
from fdjax.notation import Array, Bool, Float, Int32
from fdjax.pytree import pytree


@pytree
class Chosen:
    """What the beams are after a step; of groups that have finished, what they were.

    Attributes:
        tokens: the last token of each beam.
        parents: which beam each one was before it.
    """

    tokens: Int32[Array, "groups width"]
    parents: Int32[Array, "groups width"]


@pytree
class _Candidates:
    """The best continuations of each group, the best first."""

    sums: Float[Array, "groups kept"]
    tokens: Int32[Array, "groups kept"]
    parents: Int32[Array, "groups kept"]
    ends: Bool[Array, "groups kept"]


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
    beams = jnp.arange(logits.shape[1]) < state.rules.widths[:, None]
    finite = jnp.isfinite(jnp.max(logits, axis=-1)) | ~beams
    broken = ~jnp.all(finite, axis=-1)
    broken &= state.progress.finished == FinishReason.RUNNING
    finished = jnp.where(broken, FinishReason.NON_FINITE, progress.finished)
    return chosen, dataclasses.replace(progress, finished=finished)


def choose(
    logprobs: Float[Array, "groups width V"], state: BeamState
) -> tuple[Chosen, BeamProgress]:
    """`search`, from log-probabilities that no bias or penalty has changed."""
    rules, before = state.rules, state.progress
    # The barrier keeps the penalty's product and the sum from becoming one operation,
    # which rounds once.
    logprobs = lax.optimization_barrier(_adjusted(logprobs, rules, before))
    candidates = _best(logprobs + before.sums[:, :, None], rules, before.generated)
    chosen, sums = _running(candidates, before.sums.shape[1])
    generated = before.generated + 1
    hypotheses = _finishing(candidates, rules, before)
    improvable = before.improvable & _may_improve(sums, hypotheses, generated, rules)
    is_full = rules.full_ends & _all_present(hypotheses, rules)
    all_ended = jnp.all(candidates.ends | ~_looked_at(candidates, rules), axis=-1)
    over = ~improvable | is_full | all_ended
    after = BeamProgress(
        sums=sums,
        generated=generated,
        hypotheses=hypotheses,
        improvable=improvable,
        finished=over.astype(jnp.int32) * FinishReason.STOP,
        seen=_now_seen(before.seen, chosen),
    )
    return _where_running(before, chosen, after)


def _adjusted(
    logprobs: Float[Array, "groups width V"], rules: BeamRules, progress: BeamProgress
) -> Float[Array, "groups width V"]:
    """Biases, the repetition penalty and end tokens that come too early, in order."""
    groups, width, vocab_size = logprobs.shape
    group = jnp.arange(groups)[:, None, None]
    beam = jnp.arange(width)[:, None]
    ids, values = rules.bias.ids[:, None], rules.bias.values[:, None]
    logprobs = logprobs.at[group, beam, ids].add(values, mode="drop")
    if progress.seen is not None:
        factor = rules.repetition[:, None, None]
        divided = _divided(logprobs, factor)
        repeated = jnp.where(logprobs < 0, logprobs * factor, divided)
        logprobs = jnp.where(progress.seen, repeated, logprobs)
    early = progress.generated < rules.stopping.min_tokens
    ends = jnp.where(early[:, None], rules.stopping.stop_ids, vocab_size)[:, None]
    return logprobs.at[group, beam, ends].set(-jnp.inf, mode="drop")


def _best(
    sums: Float[Array, "groups width V"],
    rules: BeamRules,
    generated: Int32[Array, " groups"],
) -> _Candidates:
    groups, width, vocab_size = sums.shape
    exists = jnp.arange(width) < rules.widths[:, None]
    sums = jnp.where(exists[:, :, None], sums, -jnp.inf)
    most = max(LEAST_KEPT, 1 + rules.stopping.stop_ids.shape[1]) * width
    count = min(most, width * vocab_size)
    sums, places = lax.top_k(sums.reshape(groups, -1), count)
    parents, tokens = places // vocab_size, places % vocab_size
    ends = jnp.any(tokens[..., None] == rules.stopping.stop_ids[:, None], axis=-1)
    ends |= (generated + 1 >= rules.stopping.max_tokens)[:, None]
    candidates = _Candidates(sums, tokens, parents, ends)
    sums = jnp.where(_looked_at(candidates, rules), sums, -jnp.inf)
    return dataclasses.replace(candidates, sums=sums)


def _looked_at(candidates: _Candidates, rules: BeamRules) -> Bool[Array, "groups kept"]:
    return jnp.arange(candidates.sums.shape[1]) < rules.kept[:, None]


def _running(
    candidates: _Candidates, width: int
) -> tuple[Chosen, Float[Array, "groups width"]]:
    """The beams that go on: the best that have not ended, if there are enough."""
    sums = candidates.sums + jnp.where(candidates.ends, OUT, 0.0)
    sums, places = lax.top_k(sums, width)
    tokens = jnp.take_along_axis(candidates.tokens, places, axis=-1)
    parents = jnp.take_along_axis(candidates.parents, places, axis=-1)
    return Chosen(tokens, parents), sums


def _finishing(
    candidates: _Candidates, rules: BeamRules, before: BeamProgress
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
    scores = _divided(candidates.sums, divisor)
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
    best = _divided(sums[:, :1], divisor)
    exists = _existing(hypotheses, rules)
    scores = jnp.where(exists, hypotheses.scores, jnp.inf)
    worst = jnp.min(scores, axis=-1, keepdims=True)
    worst = jnp.where(hypotheses.present, worst, OUT)
    return jnp.any((best > worst) & exists, axis=-1)


def _divided(
    sums: Float[Array, "groups *_"], divisor: Float[Array, "groups *one"]
) -> Float[Array, "groups *_"]:
    """Division: of a divisor broadcast, XLA would make an inverse, and round twice."""
    divisors = lax.optimization_barrier(jnp.broadcast_to(divisor, sums.shape))
    return sums / divisors


def _existing(hypotheses: Hypotheses, rules: BeamRules) -> Bool[Array, "groups width"]:
    return jnp.arange(hypotheses.scores.shape[1]) < rules.widths[:, None]


def _all_present(hypotheses: Hypotheses, rules: BeamRules) -> Bool[Array, " groups"]:
    return jnp.all(hypotheses.present | ~_existing(hypotheses, rules), axis=-1)


def _now_seen(
    seen: Bool[Array, "groups width V"] | None, chosen: Chosen
) -> Bool[Array, "groups width V"] | None:
    if seen is None:
        return None
    group = jnp.arange(seen.shape[0])[:, None]
    beam = jnp.arange(seen.shape[1])
    return seen[group, chosen.parents].at[group, beam, chosen.tokens].set(True)


def _where_running(
    before: BeamProgress, chosen: Chosen, after: BeamProgress
) -> tuple[Chosen, BeamProgress]:
    """Groups that had finished stay as they were: each beam its own parent."""
    running = before.finished == FinishReason.RUNNING

    def kept(old: Array, new: Array) -> Array:
        return jnp.where(running.reshape(-1, *[1] * (old.ndim - 1)), new, old)

    itself = jnp.broadcast_to(jnp.arange(before.sums.shape[1]), before.sums.shape)
    parents = jnp.where(running[:, None], chosen.parents, itself)
    return Chosen(chosen.tokens, parents), jax.tree.map(kept, before, after)
