"""The continuations that a step of beam search looks at."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from fdjax.generate.beam_state import (
    LEAST_KEPT,
    BeamProgress,
    BeamRules,
    BeamState,
    TopTokens,
)
from fdjax.generate.masks import allows, masked
from fdjax.generate.most_likely import most_likely
from fdjax.generate.token_lists import listed
from fdjax.notation import Array, Bool, Float, Int32, UInt32
from fdjax.pytree import pytree


@pytree
class Candidates:
    """The best continuations of each group, the best first.

    Attributes:
        sums: of the log-probabilities of their tokens, minus infinity where a group
            looks at fewer.
        tokens: the last token.
        parents: which beam each continues.
        ends: it ends there.
        logprobs: the model's own log-probability of the last token; `None` where
            nobody asks for it.
        top: the most likely tokens after each beam, likewise.
    """

    sums: Float[Array, "groups kept"]
    tokens: Int32[Array, "groups kept"]
    parents: Int32[Array, "groups kept"]
    ends: Bool[Array, "groups kept"]
    logprobs: Float[Array, "groups kept"] | None
    top: TopTokens | None


def candidates_of(
    logprobs: Float[Array, "groups width V"],
    state: BeamState,
    *,
    allowed: UInt32[Array, "groups width words"] | None = None,
    fewer: Float[Array, "groups V"] | None = None,
) -> Candidates:
    """The best continuations of some beams.

    Args:
        logprobs: of each beam's next token, as the model has them.
        state: of the search.
        allowed: which tokens may follow each beam, as in `fdjax.generate.masks`.
        fewer: subtracted from log-probabilities, for diversity.
    """
    rules, before = state.rules, state.progress
    adjusted = _adjusted(logprobs, rules, before, fewer)
    if allowed is not None:
        flat = adjusted.reshape(-1, adjusted.shape[-1])
        flat = masked(flat, allowed.reshape(flat.shape[0], -1))
        adjusted = flat.reshape(adjusted.shape)
    # The barrier keeps the penalty's product and the sum from becoming one operation,
    # which rounds once.
    adjusted = lax.optimization_barrier(adjusted)
    best = _best(adjusted + before.sums[:, :, None], rules, before.generated)
    if rules.num_logprobs is None:
        return best
    group = jnp.arange(logprobs.shape[0])[:, None]
    count = min(rules.num_logprobs, logprobs.shape[-1])
    values, ids = most_likely(logprobs.reshape(-1, logprobs.shape[-1]), count)
    shape = (*logprobs.shape[:-1], count)
    return dataclasses.replace(
        best,
        logprobs=logprobs[group, best.parents, best.tokens],
        top=TopTokens(ids.reshape(shape), values.reshape(shape)),
    )


def looked_at(candidates: Candidates, rules: BeamRules) -> Bool[Array, "groups kept"]:
    """Those that a group's number of end tokens makes it look at."""
    return jnp.arange(candidates.sums.shape[1]) < rules.kept[:, None]


def _adjusted(
    logprobs: Float[Array, "groups width V"],
    rules: BeamRules,
    progress: BeamProgress,
    fewer: Float[Array, "groups V"] | None,
) -> Float[Array, "groups width V"]:
    """Biases, diversity, repetition, bans and ends that come too early, in order."""
    groups, width, vocab_size = logprobs.shape
    group = jnp.arange(groups)[:, None, None]
    beam = jnp.arange(width)[:, None]
    ids, values = rules.bias.ids[:, None], rules.bias.values[:, None]
    logprobs = logprobs.at[group, beam, ids].add(values, mode="drop")
    if fewer is not None:
        logprobs = logprobs - fewer[:, None]
    if progress.seen is not None:
        seen = progress.seen.reshape(groups * width, -1)
        seen = allows(seen, vocab_size=vocab_size).reshape(logprobs.shape)
        # Of a divisor that all tokens of a group have, XLA would make an inverse, and
        # round twice. Of one that each token chooses it does not, nor an array.
        factor = jnp.where(seen, rules.repetition[:, None, None], 1.0)
        logprobs = jnp.where(logprobs < 0, logprobs * factor, logprobs / factor)
    if rules.lists is not None and progress.recent is not None:
        flat = logprobs.reshape(-1, vocab_size)
        recent = progress.recent.reshape(flat.shape[0], -1)
        lists = jax.tree.map(lambda x: jnp.repeat(x, width, axis=0), rules.lists)
        logprobs = listed(flat, lists, recent).reshape(logprobs.shape)
    early = progress.generated < rules.stopping.min_tokens
    ends = jnp.where(early[:, None], rules.stopping.stop_ids, vocab_size)[:, None]
    return logprobs.at[group, beam, ends].set(-jnp.inf, mode="drop")


def _best(
    sums: Float[Array, "groups width V"],
    rules: BeamRules,
    generated: Int32[Array, " groups"],
) -> Candidates:
    groups, width, vocab_size = sums.shape
    exists = jnp.arange(width) < rules.widths[:, None]
    sums = jnp.where(exists[:, :, None], sums, -jnp.inf)
    most = max(LEAST_KEPT, 1 + rules.stopping.stop_ids.shape[1]) * width
    count = min(most, width * vocab_size)
    sums, places = most_likely(sums.reshape(groups, -1), count)
    parents, tokens = places // vocab_size, places % vocab_size
    ends = jnp.any(tokens[..., None] == rules.stopping.stop_ids[:, None], axis=-1)
    ends |= (generated + 1 >= rules.stopping.max_tokens)[:, None]
    best = Candidates(sums, tokens, parents, ends, None, None)
    sums = jnp.where(looked_at(best, rules), sums, -jnp.inf)
    return dataclasses.replace(best, sums=sums)
