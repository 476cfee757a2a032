"""`BeamSearchParams`: how one prompt's most likely continuations are searched for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from fdjax.errors import RequestError
from fdjax.generate.checks import Interval, flag, integer, real, shown
from fdjax.generate.params import SamplingParams
from fdjax.generate.structured import StructuredOutputs

MAX_BEAMS = 512

type EarlyStopping = bool | Literal["never"]

# What a search has in common with sampling, which checks it.
_COMMON = (
    "max_tokens",
    "min_tokens",
    "stop_token_ids",
    "stop",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "ignore_eos",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "repetition_penalty",
    "logprobs",
    "structured_outputs",
)
_WIDTH = Interval(1, MAX_BEAMS)
_LENGTH_PENALTY = Interval(-10, 10)
_DIVERSITY_PENALTY = Interval(0, 100)


@dataclass(frozen=True, kw_only=True)
class BeamSearchParams:
    """What a beam search looks for, in the words of vLLM, where it has one.

    The mathematics is that of transformers: a hypothesis' score is the sum of the
    log-probabilities of its tokens over their number, the end token among them, to the
    length penalty. (vLLM divides by prompt and output together, and has neither
    `early_stopping` nor an `n`.) Penalties and biases act on log-probabilities, which
    are not made to sum to one again.

    Attributes:
        beam_width: beams that run at a time, 1 to 512; 64 at most where a model is not
            loaded for more (`max_beam_width`).
        max_tokens: longest output, in tokens; `None` sets no limit of its own.
        n: hypotheses returned, the best first; as many as beams by default.
        length_penalty: above 0 prefers long outputs, below 0 short ones; -10 to 10.
        early_stopping: true ends the search with as many hypotheses as beams; false
            when no running beam, with the length it has, is better than the worst of
            them; "never" when none can become better.
        ignore_eos: the model's end-of-sequence tokens do not end an output.
        min_tokens: tokens before which nothing can end an output, unless the form asked
            for is complete.
        stop_token_ids: as in `SamplingParams`, like all down to `logprobs`.
        stop: a beam ends with the token that completes one of them.
        include_stop_str_in_output: see there.
        skip_special_tokens: see there.
        logit_bias: added to log-probabilities.
        allowed_token_ids: the log-probability of others is minus infinity.
        bad_words: likewise of what would complete them.
        structured_outputs: likewise of what the form does not allow.
        repetition_penalty: multiplies log-probabilities.
        logprobs: the model's own log-probabilities, before all of these.
        num_beam_groups: the beams are so many groups of one width, each a search of
            its own; they divide `beam_width`. Of all their hypotheses the best return.
        diversity_penalty: in each step, subtracted from the log-probability of a token
            as often as beams of the groups before have chosen it there; 0 to 100.
        stream_best: whoever reads a stream of the search is told the best so far with
            each step: see `Found`.
        temperature: 0; nothing is drawn.

    Raises:
        RequestError: a value has the wrong type or is out of range.
    """

    # Run-time type checkers would refuse what `__post_init__` converts or explains.
    __no_type_check__ = True

    beam_width: int
    max_tokens: int | None = 16
    n: int | None = None
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    ignore_eos: bool = False
    min_tokens: int = 0
    stop_token_ids: Sequence[int] = ()
    stop: str | Sequence[str] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str | Sequence[int]] = ()
    structured_outputs: StructuredOutputs | None = None
    repetition_penalty: float = 1.0
    logprobs: int | None = None
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    stream_best: bool = False
    temperature: float = 0.0

    def __post_init__(self) -> None:
        width = integer("beam_width", self.beam_width, _WIDTH)
        self._set("beam_width", width)
        count = width if self.n is None else integer("n", self.n, _WIDTH)
        if count > width:
            raise RequestError(
                f"n is {count} but beam_width is {width}; a search has no more "
                "hypotheses than beams: lower n, or use as many beams"
            )
        self._set("n", count)
        penalty = real("length_penalty", self.length_penalty, _LENGTH_PENALTY)
        self._set("length_penalty", penalty)
        _check_early_stopping(self.early_stopping)
        if real("temperature", self.temperature, Interval(0, 100)) != 0:
            raise RequestError(
                f"temperature is {shown(self.temperature)}, but a beam search draws "
                "nothing; use 0"
            )
        for name in _COMMON:
            self._set(name, getattr(self.sampling, name))
        self._set("stream_best", flag("stream_best", self.stream_best))
        self._check_groups()

    @property
    def group_width(self) -> int:
        """Beams of each of its groups."""
        return self.beam_width // self.num_beam_groups

    @property
    def is_judged(self) -> bool:
        """Whether a beam ends, or what may follow, is found by its text."""
        return bool(self.stop) or self.structured_outputs is not None

    def samples(self) -> "list[BeamSearchParams]":
        """Itself: its outputs come of one search, as samples come of many draws."""
        return [self]

    @cached_property
    def sampling(self) -> SamplingParams:
        """What a search has in common with sampling."""
        common: dict[str, Any] = {name: getattr(self, name) for name in _COMMON}
        return SamplingParams(temperature=0.0, **common)

    def _check_groups(self) -> None:
        groups = integer("num_beam_groups", self.num_beam_groups, _WIDTH)
        penalty = real("diversity_penalty", self.diversity_penalty, _DIVERSITY_PENALTY)
        self._set("num_beam_groups", groups)
        self._set("diversity_penalty", penalty)
        if self.beam_width % groups:
            raise RequestError(
                f"num_beam_groups is {groups}, which does not divide beam_width, "
                f"{self.beam_width}; groups have the same number of beams"
            )
        if penalty and groups == 1:
            raise RequestError(
                f"diversity_penalty is {penalty:g}, but num_beam_groups is 1; use more "
                "groups, or no penalty"
            )
        if groups > 1 and self.is_judged:
            name = "stop" if self.stop else "structured_outputs"
            raise RequestError(
                f"{name} needs beams that are judged by their texts, which "
                f"num_beam_groups, {groups}, does not allow; leave out one"
            )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def _check_early_stopping(value: object) -> None:
    if value != "never" and not isinstance(value, bool):
        raise RequestError(
            f'early_stopping is {shown(value)}; use true, false or "never"'
        )
