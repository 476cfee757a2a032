"""`SamplingState`: what requests asked for, and how far their rows have come."""

from collections.abc import Sequence

import jax
import numpy as np

from fdjax.errors import RequestError
from fdjax.generate.filters import Filters, init_filters
from fdjax.generate.masks import init_masks
from fdjax.generate.params import SamplingParams
from fdjax.generate.penalties import (
    LogitBias,
    Penalties,
    init_bias,
    init_counts,
    init_penalties,
)
from fdjax.generate.plan import SamplingPlan
from fdjax.generate.randomness import Randomness, init_randomness
from fdjax.generate.stopping import FinishReason, StopRules, init_stop_rules
from fdjax.generate.token_lists import TokenLists, init_recent, init_token_lists
from fdjax.notation import Array, Int32, UInt32
from fdjax.pytree import pytree

_PADDING = SamplingParams(temperature=0.0)


@pytree
class SamplingRules:
    """What the requests of a batch asked for, by row.

    Only the masks change while a request runs, and only the host changes them.

    Attributes:
        stopping: when rows finish.
        randomness: how rows draw; `None` in a greedy plan.
        filters: which tokens rows may draw; `None` in a plan without.
        penalties: `None` in a plan without.
        bias: `None` in a plan without.
        lists: tokens that rows may and may not emit at all; `None` in a plan without.
        allowed: tokens that rows may emit next, see `fdjax.generate.masks`; `None` in a
            plan without.
    """

    stopping: StopRules
    randomness: Randomness | None
    filters: Filters | None
    penalties: Penalties | None
    bias: LogitBias | None
    lists: TokenLists | None
    allowed: UInt32[Array, "B words"] | None


@pytree
class SamplingProgress:
    """What changes with every token, by row; donate it.

    Attributes:
        finished: a `FinishReason` each; padding rows are `STOP` from the start.
        generated: tokens emitted so far.
        output_counts: how often each token was emitted; `None` without penalties.
        recent: the last tokens emitted, see `fdjax.generate.token_lists`; `None`
            without lists of tokens.
    """

    finished: Int32[Array, " B"]
    generated: Int32[Array, " B"]
    output_counts: Int32[Array, "B V"] | None
    recent: Int32[Array, "B L"] | None


@pytree
class SamplingState:
    """All that sampling carries from one token to the next.

    Every array has the row as its first axis, and the shapes follow from the plan, the
    vocabulary, the number of the model's end-of-sequence tokens and the number of rows
    alone: rows of two states of one plan may be exchanged leaf by leaf.

    Attributes:
        rules: sampling returns them as they are. A jitted step that donates them
            copies each one; take them as an argument of their own and donate only
            the progress.
        progress: donate it, and it is updated in place.
    """

    rules: SamplingRules
    progress: SamplingProgress


def init_state(
    params: Sequence[SamplingParams],
    prompts: Sequence[Sequence[int]],
    *,
    plan: SamplingPlan,
    vocab_size: int,
    eos_token_ids: Sequence[int],
    default_seeds: Sequence[int],
    num_rows: int,
    outputs: Sequence[Sequence[int]] | None = None,
    masks: Sequence[np.ndarray | None] = (),
) -> SamplingState:
    """The state of a batch before its next token.

    Args:
        params: one a request; `check_vocabulary` has passed.
        prompts: token ids of each request's prompt, below `vocab_size`.
        plan: `plan_of(params)`, or one with more stages.
        vocab_size: tokens of the model, `V`.
        eos_token_ids: the model's own end-of-sequence tokens.
        default_seeds: one a request, for requests without a seed; 0 to 2**64 - 1.
        num_rows: rows of the batch, `B`; those beyond the requests are padding, which
            is finished from the start.
        outputs: tokens each request has emitted already, for requests that resume;
            they go on as if never interrupted.
        masks: tokens each request may emit next, for a plan with masks; all tokens
            where there is none.

    Raises:
        RequestError: one of `params` asks for a beam search, which no row can do.
    """
    if any(one.beam_search is not None for one in params):
        raise RequestError(
            "beam_search asks for a beam search, and rows continue one output each; "
            "go through an LLM, or leave it out"
        )
    padding = num_rows - len(params)
    assert padding >= 0, f"{len(params)} requests in {num_rows} rows"
    rules = _rules(
        [*params, *[_PADDING] * padding],
        [*prompts, *[()] * padding],
        [*default_seeds, *[0] * padding],
        plan=plan,
        vocab_size=vocab_size,
        eos_token_ids=eos_token_ids,
        masks=masks,
    )
    emitted = [*(outputs or [()] * len(params)), *[()] * padding]
    running = [FinishReason.RUNNING] * len(params)
    finished = np.array([*running, *[FinishReason.STOP] * padding], np.int32)
    generated = np.array([len(output) for output in emitted], np.int32)
    counts = init_counts(emitted, vocab_size=vocab_size) if plan.penalties else None
    recent = init_recent(emitted) if plan.token_lists else None
    finished, generated = jax.device_put((finished, generated))
    progress = SamplingProgress(finished, generated, counts, recent)
    return SamplingState(rules, progress)


def _rules(
    params: Sequence[SamplingParams],
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    *,
    plan: SamplingPlan,
    vocab_size: int,
    eos_token_ids: Sequence[int],
    masks: Sequence[np.ndarray | None],
) -> SamplingRules:
    randomness = filters = penalties = bias = lists = allowed = None
    if plan.stochastic:
        randomness = init_randomness(params, seeds)
    if plan.filters:
        filters = init_filters(params)
    if plan.penalties:
        penalties = init_penalties(params, prompts, vocab_size=vocab_size)
    if plan.num_biased:
        bias = init_bias(params, num_biased=plan.num_biased, vocab_size=vocab_size)
    if plan.token_lists:
        lists = init_token_lists(params, vocab_size=vocab_size)
    if plan.masks:
        allowed = init_masks(masks, num_rows=len(params), vocab_size=vocab_size)
    stopping = init_stop_rules(
        params,
        num_stop_ids=plan.num_stop_ids,
        vocab_size=vocab_size,
        eos_token_ids=eos_token_ids,
    )
    return SamplingRules(stopping, randomness, filters, penalties, bias, lists, allowed)
