"""What beam searches were asked for, and how far they have come, by group of beams."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.masks import allowed_bits
from fdjax.generate.params import SamplingParams
from fdjax.generate.penalties import LogitBias, init_bias
from fdjax.generate.plan import SamplingPlan
from fdjax.generate.stopping import FinishReason, StopRules, init_stop_rules
from fdjax.generate.token_lists import TokenLists, init_recent, init_token_lists
from fdjax.notation import Array, Bool, Float, Int32, UInt32
from fdjax.pytree import pytree, static

# In place of minus infinity, as in transformers: what is added to it still counts.
OUT = np.float32(-1e9)

# Continuations looked at for each beam, where no token ends beams.
LEAST_KEPT = 2


@pytree
class BeamRules:
    """What stays the same for all steps of a search.

    Attributes:
        widths: beams of each group; beams past them do not exist.
        kept: best continuations of a group that a step looks at: `max(2, 1 + number
            of stop ids) * widths`.
        divisors: what the sum of a beam of `n` tokens is divided by, at `n`: `n` to the
            length penalty.
        full_ends: `early_stopping` is true.
        best_at_limit: a running beam's best score is the one it would have with
            `max_tokens`, not with the tokens that it has.
        repetition: log-probabilities of tokens that a beam or its prompt has are
            multiplied by it (divided, where a bias made them positive).
        stopping: when beams finish.
        bias: added to log-probabilities.
        lists: tokens that beams may have, and sequences that they may not;
            `None` where there are none.
        diversity: the groups are those of one search, and what each chooses is less
            likely by this for those after it; `None` where they are not.
        num_logprobs: as in `SamplingPlan`.
    """

    widths: Int32[Array, " groups"]
    kept: Int32[Array, " groups"]
    divisors: Float[Array, "groups limit"]
    full_ends: Bool[Array, " groups"]
    best_at_limit: Bool[Array, " groups"]
    repetition: Float[Array, " groups"]
    stopping: StopRules
    bias: LogitBias
    lists: TokenLists | None
    diversity: Float[Array, " groups"] | None
    num_logprobs: int | None = static()


@pytree
class TopTokens:
    """The most likely tokens after each beam, the most likely first.

    Attributes:
        ids: the tokens.
        logprobs: the model's own log-probabilities of them.
    """

    ids: Int32[Array, "groups width N"]
    logprobs: Float[Array, "groups width N"]


@pytree
class Hypotheses:
    """Finished beams of each group, the best first; who they are, by back pointers.

    One of `n` tokens is the beam `parents` as it was after `n - 1` steps, and the token
    `tokens`.

    Attributes:
        scores: sums of log-probabilities over divisors; about -1e9 where there is none.
        lengths: tokens of each.
        parents: the beam that it continued.
        tokens: the last token.
        present: there is one.
        logprobs: the model's own log-probability of the last token; `None` where
            nobody asks for it.
    """

    scores: Float[Array, "groups width"]
    lengths: Int32[Array, "groups width"]
    parents: Int32[Array, "groups width"]
    tokens: Int32[Array, "groups width"]
    present: Bool[Array, "groups width"]
    logprobs: Float[Array, "groups width"] | None


@pytree
class BeamProgress:
    """What changes with every step; donate it.

    Attributes:
        sums: of the log-probabilities of each running beam's tokens.
        generated: tokens of each running beam.
        hypotheses: the finished ones.
        improvable: running beams may still give better hypotheses.
        finished: a `FinishReason`: `STOP` when the search is over.
        seen: tokens that a beam or its prompt has, a bit each, as in
            `fdjax.generate.masks`; `None` where none are penalised.
        recent: the last tokens of each beam, the latest last; `None` where no
            sequence of them is banned.
    """

    sums: Float[Array, "groups width"]
    generated: Int32[Array, " groups"]
    hypotheses: Hypotheses
    improvable: Bool[Array, " groups"]
    finished: Int32[Array, " groups"]
    seen: UInt32[Array, "groups width words"] | None
    recent: Int32[Array, "groups width L"] | None


@pytree
class BeamState:
    """Searches of several groups, whose widths differ: `width` is the static maximum.

    Attributes:
        rules: never donate them.
        progress: donate it.
    """

    rules: BeamRules
    progress: BeamProgress


def divided(
    sums: Float[Array, " groups *_"], divisor: Float[Array, " groups *one"]
) -> Float[Array, " groups *_"]:
    """Division: of a divisor broadcast, XLA would make an inverse, and round twice."""
    divisors = lax.optimization_barrier(jnp.broadcast_to(divisor, sums.shape))
    return sums / divisors


def init_beams(
    params: Sequence[BeamSearchParams],
    prompts: Sequence[Sequence[int]],
    *,
    width: int,
    limit: int,
    vocab_size: int,
    eos_token_ids: Sequence[int],
    plan: SamplingPlan,
) -> BeamState:
    """The state of groups before their first tokens.

    Args:
        params: one a group; each has a `max_tokens`. Those of a search with diverse
            groups come as often as it has groups, and no others beside them.
        prompts: token ids of each group's prompt.
        width: room for the beams of a group.
        limit: room for the tokens of a beam.
        vocab_size: tokens of the model, `V`.
        eos_token_ids: the model's own end-of-sequence tokens.
        plan: for what they have in common with sampling, `BeamSearchParams.sampling`.
    """
    sampling = [one.sampling for one in params]
    progress = _start(len(params), width, plan)
    if plan.penalties:
        seen = _seen(prompts, width=width, vocab_size=vocab_size)
        progress = dataclasses.replace(progress, seen=jax.device_put(seen))
    lists = None
    if plan.token_lists:
        lists = init_token_lists(sampling, vocab_size=vocab_size)
        recent = init_recent([()] * (len(params) * width))
        recent = recent.reshape(len(params), width, -1)
        progress = dataclasses.replace(progress, recent=recent)
    diversity = None
    if params[0].num_beam_groups > 1:
        penalties = [one.diversity_penalty for one in params]
        diversity = jax.device_put(np.array(penalties, np.float32))
    stopping = init_stop_rules(
        sampling,
        num_stop_ids=plan.num_stop_ids,
        vocab_size=vocab_size,
        eos_token_ids=eos_token_ids,
    )
    rules = BeamRules(
        *_numbers(params, limit=limit, eos_token_ids=eos_token_ids),
        stopping=stopping,
        bias=init_bias(sampling, num_biased=plan.num_biased, vocab_size=vocab_size),
        lists=lists,
        diversity=diversity,
        num_logprobs=plan.num_logprobs,
    )
    return BeamState(rules, progress)


def stop_ids(params: SamplingParams, eos_token_ids: Sequence[int]) -> set[int]:
    """The tokens that finish a beam."""
    return {*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)}


def _kept(params: BeamSearchParams, eos_token_ids: Sequence[int]) -> int:
    ends = len(stop_ids(params.sampling, eos_token_ids))
    return max(LEAST_KEPT, 1 + ends) * params.group_width


@functools.lru_cache(maxsize=64)
def _divisors(length_penalty: float, max_tokens: int, limit: int) -> np.ndarray:
    """In double, by the host: a power in float32 would change the scores' last bits.

    Nothing is divided by those past `max_tokens`, whose powers may be no numbers.
    """
    divisors = np.ones(limit + 1, np.float32)
    counts = range(1, max_tokens + 1)
    divisors[1 : max_tokens + 1] = [float(count) ** length_penalty for count in counts]
    return divisors


def _seen(
    prompts: Sequence[Sequence[int]], *, width: int, vocab_size: int
) -> np.ndarray:
    bits = [allowed_bits(prompt, vocab_size=vocab_size) for prompt in prompts]
    return np.repeat(np.stack(bits)[:, None], width, axis=1)


def _own_divisors(params: BeamSearchParams, limit: int) -> np.ndarray:
    assert params.max_tokens is not None, "searches that run have one"
    return _divisors(params.length_penalty, params.max_tokens, limit)


def _numbers(
    params: Sequence[BeamSearchParams], *, limit: int, eos_token_ids: Sequence[int]
) -> list[Array]:
    """What `BeamRules` has first."""
    never = [one.early_stopping == "never" for one in params]
    positive = [one.length_penalty > 0 for one in params]
    return jax.device_put(
        [
            np.array([one.group_width for one in params], np.int32),
            np.array([_kept(one, eos_token_ids) for one in params], np.int32),
            np.stack([_own_divisors(one, limit) for one in params]),
            np.array([one.early_stopping is True for one in params]),
            np.array(never) & np.array(positive),
            np.array([one.repetition_penalty for one in params], np.float32),
        ]
    )


def _start(groups: int, width: int, plan: SamplingPlan) -> BeamProgress:
    """All beams are the first one: the others are out until there are continuations."""
    out = np.full((groups, width), OUT, np.float32)
    none = np.zeros((groups, width), np.int32)
    sums = np.where(np.arange(width) == 0, np.float32(0), out)
    logprobs = None if plan.num_logprobs is None else np.zeros_like(out)
    # Copies: what is donated must not be one array several times.
    hypotheses = Hypotheses(
        *jax.device_put((out, none, none.copy(), none.copy(), none != 0, logprobs))
    )
    sums, generated, improvable, finished = jax.device_put(
        (
            sums,
            np.zeros(groups, np.int32),
            np.ones(groups, np.bool_),
            np.full(groups, FinishReason.RUNNING, np.int32),
        )
    )
    return BeamProgress(sums, generated, hypotheses, improvable, finished, None, None)
