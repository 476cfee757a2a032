"""`SamplingPlan`: which stages of sampling a compiled program contains."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fdjax.generate.fields import MAX_BIASED, MAX_STOP_IDS
from fdjax.generate.params import MAX_LOGPROBS, SamplingParams

_LOGPROBS = (0, 5, MAX_LOGPROBS)
_STOP_IDS = (0, 4, 16, MAX_STOP_IDS)
_BIASED = (0, 16, 128, MAX_BIASED)


@dataclass(frozen=True)
class SamplingPlan:
    """The stages of sampling one program contains; static, one program each.

    A stage changes nothing for a row that did not ask for it, so a plan with more
    stages than needed chooses the same tokens, only slower.

    Attributes:
        stochastic: some row draws; otherwise sampling is one argmax.
        top_k: some drawing row keeps the k most likely tokens.
        top_p: some drawing row keeps a nucleus.
        min_p: some drawing row drops tokens by their ratio to the most likely.
        penalties: some row penalises tokens it has seen; costs `[B, V]` counts.
        min_tokens: some row must not stop before a number of tokens.
        token_lists: some row has tokens that it may emit only, or sequences of them
            that it may not; costs `[B, V]` bits.
        masks: some row may emit only tokens that the host allows; costs `[B, V]` bits.
        num_biased: room for biased tokens of a row; 0 leaves the stage out.
        num_stop_ids: room for stop tokens of a row beside the model's own.
        num_logprobs: `None` for no log-probabilities, 0 for the chosen token's only,
            else how many of the most likely tokens are reported too.
    """

    stochastic: bool = False
    top_k: bool = False
    top_p: bool = False
    min_p: bool = False
    penalties: bool = False
    min_tokens: bool = False
    token_lists: bool = False
    masks: bool = False
    num_biased: int = 0
    num_stop_ids: int = 0
    num_logprobs: int | None = None

    @property
    def filters(self) -> bool:
        """Some token may be dropped before a draw."""
        return self.top_k or self.top_p or self.min_p


def plan_of(params: Sequence[SamplingParams]) -> SamplingPlan:
    """The smallest plan that serves all of `params` in one batch.

    Counts are rounded up to a few sizes, so that few programs are compiled.
    """
    drawing = [p for p in params if not p.is_greedy]
    logprobs = [p.logprobs for p in params if p.logprobs is not None]
    return SamplingPlan(
        stochastic=bool(drawing),
        top_k=any(p.top_k > 0 for p in drawing),
        top_p=any(p.top_p < 1 for p in drawing),
        min_p=any(p.min_p > 0 for p in drawing),
        penalties=any(p.has_penalties for p in params),
        min_tokens=any(p.min_tokens > 0 for p in params),
        token_lists=any(p.has_token_lists for p in params),
        masks=any(p.structured_outputs is not None for p in params),
        num_biased=_round_up((len(p.logit_bias or ()) for p in params), _BIASED),
        num_stop_ids=_round_up((len(p.stop_token_ids) for p in params), _STOP_IDS),
        num_logprobs=_round_up(logprobs, _LOGPROBS) if logprobs else None,
    )


def _round_up(counts: Iterable[int], sizes: Sequence[int]) -> int:
    largest = max(counts, default=0)
    return next(size for size in sizes if size >= largest)


# Requests come and go while others run: so that each new combination of what they ask
# for does not need programs of its own, an engine knows three plans. Masks are in all
# of them: as plans of their own they would double the programs, and in the last alone,
# a request with a mask would have its neighbours pay for penalties and logprobs.
_GREEDY = SamplingPlan(num_stop_ids=MAX_STOP_IDS, masks=True)
_DRAWING = replace(_GREEDY, stochastic=True, top_k=True, top_p=True, min_p=True)
SERVING_PLANS = (
    _GREEDY,
    _DRAWING,
    replace(
        _DRAWING,
        penalties=True,
        min_tokens=True,
        token_lists=True,
        num_biased=MAX_BIASED,
        num_logprobs=MAX_LOGPROBS,
    ),
)


def serving_plan(params: Iterable[SamplingParams]) -> SamplingPlan:
    """The first of `SERVING_PLANS` that serves all of `params`."""
    return SERVING_PLANS[max(map(serving_level, params), default=0)]


def serving_level(params: SamplingParams) -> int:
    """Which of `SERVING_PLANS` is the first that serves these; later ones do, too."""
    wanted = plan_of([params])
    if wanted.penalties or wanted.min_tokens or wanted.token_lists:
        return 2
    if wanted.num_biased or wanted.num_logprobs is not None:
        return 2
    return int(wanted.stochastic)
