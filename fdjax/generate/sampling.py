"""One token for each row of a batch, from logits, on the device."""

import jax.numpy as jnp

from fdjax.generate.masks import masked
from fdjax.generate.most_likely import most_likely
from fdjax.generate.penalties import add_bias, count_tokens, penalise
from fdjax.generate.plan import SamplingPlan
from fdjax.generate.sampling_state import (
    SamplingProgress,
    SamplingRules,
    SamplingState,
)
from fdjax.generate.stopping import FinishReason, forbid_early_stops, update_finished
from fdjax.generate.token_lists import add_recent, listed
from fdjax.kernels.draw import draw
from fdjax.kernels.row_sum import row_sum
from fdjax.notation import Array, Bool, Float, Int32
from fdjax.pytree import pytree


@pytree
class Sampled:
    """What one call of `sample` chose; `N = min(plan.num_logprobs or 0, V)`.

    Attributes:
        tokens: the chosen token; of no meaning for rows that were finished before, and
            for those whose logits are not finite.
        finished: the `FinishReason` of each row after its token: a copy that outlives
            the donated progress.
        logprobs: log-probability of the chosen token; `None` when the plan has none.
        top_ids: the most likely tokens, most likely first, then lowest id first.
        top_logprobs: their log-probabilities.
    """

    tokens: Int32[Array, " B"]
    finished: Int32[Array, " B"]
    logprobs: Float[Array, " B"] | None
    top_ids: Int32[Array, "B N"]
    top_logprobs: Float[Array, "B N"]


def sample(
    logits: Float[Array, "B V"], state: SamplingState, *, plan: SamplingPlan
) -> tuple[Sampled, SamplingState]:
    """Chooses one token for each row.

    The order is vLLM's: masks, lists of tokens, logit bias, `min_tokens` (no stop
    tokens), repetition, frequency and presence penalty, temperature, min-p, top-k,
    top-p, draw. Rows of temperature 0 take the highest logit after the penalties. Where
    logits tie for it, the lowest id wins; see `fdjax.kernels.draw.filters.kept` for
    ties elsewhere.

    Log-probabilities are vLLM's default "raw_logprobs": the log-softmax of `logits`
    after the masks and before all other stages.

    A row's draw depends on its logits, its parameters, its seed and the number of
    tokens it has emitted: not on other rows, its place, `B` or padding.

    Args:
        logits: of each row's next token, in float32.
        state: of `init_state` with the same plan.
        plan: the stages; static under jit.

    Returns:
        The tokens, and the state after running rows have emitted theirs.
    """
    rules, progress = state.rules, state.progress
    _check(rules, plan)
    # The largest is no number where any is none, is infinite, or none is finite. Beside
    # an argmax it takes up to 0.9 us on an H200; beside a draw it is a pass of its own,
    # 28 us for 256 rows of 128,256 by their bytes.
    finite = jnp.isfinite(jnp.max(logits, axis=-1))
    if rules.allowed is not None:
        logits = masked(logits, rules.allowed)
    tokens = _choose(_adjust(logits, state, plan), state, plan)
    progress = _advance(progress, tokens, finite, rules)
    logprobs, top_ids, top_logprobs = log_probabilities(
        logits, tokens, plan.num_logprobs
    )
    sampled = Sampled(tokens, progress.finished, logprobs, top_ids, top_logprobs)
    return sampled, SamplingState(rules, progress)


def _check(rules: SamplingRules, plan: SamplingPlan) -> None:
    assert (rules.randomness is not None) == plan.stochastic, plan
    assert (rules.filters is not None) == plan.filters, plan
    assert (rules.penalties is not None) == plan.penalties, plan
    assert (rules.bias is not None) == (plan.num_biased > 0), plan
    assert (rules.lists is not None) == plan.token_lists, plan
    assert (rules.allowed is not None) == plan.masks, plan


def _adjust(
    logits: Float[Array, "B V"], state: SamplingState, plan: SamplingPlan
) -> Float[Array, "B V"]:
    """The stages that can change which token is the most likely one."""
    rules, progress = state.rules, state.progress
    if rules.lists is not None and progress.recent is not None:
        logits = listed(logits, rules.lists, progress.recent)
    if rules.bias is not None:
        logits = add_bias(logits, rules.bias)
    if plan.min_tokens:
        logits = forbid_early_stops(logits, rules.stopping, progress.generated)
    if rules.penalties is not None and progress.output_counts is not None:
        logits = penalise(logits, rules.penalties, progress.output_counts)
    return logits


def _choose(
    logits: Float[Array, "B V"], state: SamplingState, plan: SamplingPlan
) -> Int32[Array, " B"]:
    randomness, filters = state.rules.randomness, state.rules.filters
    if randomness is None:
        return draw(logits)
    return draw(
        logits,
        randomness.keys,
        state.progress.generated,
        randomness.temperature,
        filters.top_k if filters is not None and plan.top_k else None,
        filters.top_p if filters is not None and plan.top_p else None,
        filters.min_p if filters is not None and plan.min_p else None,
    )


def _advance(
    progress: SamplingProgress,
    tokens: Int32[Array, " B"],
    finite: Bool[Array, " B"],
    rules: SamplingRules,
) -> SamplingProgress:
    running = progress.finished == FinishReason.RUNNING
    generated = progress.generated + running.astype(jnp.int32)
    counts = progress.output_counts
    if counts is not None:
        counts = count_tokens(counts, tokens, running)
    recent = progress.recent
    if recent is not None:
        recent = add_recent(recent, tokens, running)
    finished = update_finished(
        progress.finished, generated, tokens, finite, rules.stopping
    )
    return SamplingProgress(finished, generated, counts, recent)


def log_probabilities(
    logits: Float[Array, "B V"], tokens: Int32[Array, " B"], num_logprobs: int | None
) -> tuple[Float[Array, " B"] | None, Int32[Array, "B N"], Float[Array, "B N"]]:
    """What `Sampled` says of chosen tokens and of the most likely ones.

    Args:
        logits: of each row.
        tokens: chosen.
        num_logprobs: see `SamplingPlan`.
    """
    num_rows, vocab_size = logits.shape
    none = jnp.zeros((num_rows, 0), jnp.int32), jnp.zeros((num_rows, 0), jnp.float32)
    if num_logprobs is None:
        return None, *none
    normaliser = _log_sum_exp(logits)
    chosen = jnp.take_along_axis(logits, tokens[:, None], axis=-1) - normaliser
    if num_logprobs == 0:
        return chosen[:, 0], *none
    top_logits, top_ids = most_likely(logits, min(num_logprobs, vocab_size))
    return chosen[:, 0], top_ids, top_logits - normaliser


def _log_sum_exp(logits: Float[Array, "B V"]) -> Float[Array, "B 1"]:
    """As `jax.nn.logsumexp`, by a sum that may be batch-invariant."""
    highest = jnp.max(logits, axis=-1, keepdims=True)
    highest = jnp.where(jnp.isfinite(highest), highest, 0.0)
    return jnp.log(row_sum(jnp.exp(logits - highest))) + highest
