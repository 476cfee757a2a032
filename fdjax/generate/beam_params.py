"""`BeamSearchParams`: how one prompt's most likely continuations are searched for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from fdjax.errors import RequestError
from fdjax.generate.beam_fields import COMMON, WIDTH, BeamSearch, EarlyStopping
from fdjax.generate.checks import Interval, flag, integer, real, shown
from fdjax.generate.params import SamplingParams
from fdjax.generate.structured import StructuredOutputs

_OF_SEARCH = tuple(one.name for one in fields(BeamSearch))


@dataclass(frozen=True, kw_only=True)
class BeamSearchParams:
    """What a beam search looks for, in the words of vLLM, where it has one.

    The mathematics is that of transformers: see `BeamSearch`. (vLLM divides by prompt
    and output together, and has neither `early_stopping` nor an `n`.)

    Attributes:
        beam_width: see `BeamSearch`.
        max_tokens: longest output, in tokens; `None` sets no limit of its own.
        n: hypotheses returned, the best first; as many as beams by default.
        length_penalty: see `BeamSearch`, as for the next.
        early_stopping: see there.
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
        num_beam_groups: see `BeamSearch`, as for the next.
        diversity_penalty: see there.
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
        search = BeamSearch(**{name: getattr(self, name) for name in _OF_SEARCH})
        for name in _OF_SEARCH:
            self._set(name, getattr(search, name))
        width = search.beam_width
        count = width if self.n is None else integer("n", self.n, WIDTH)
        self._set("n", count)
        if real("temperature", self.temperature, Interval(0, 100)) != 0:
            raise RequestError(
                f"temperature is {shown(self.temperature)}, but a beam search draws "
                "nothing; use 0"
            )
        for name in COMMON:
            self._set(name, getattr(self.sampling, name))
        self._set("stream_best", flag("stream_best", self.stream_best))
        search.check(n=count, judged_by=self.sampling.judged_by)

    @property
    def group_width(self) -> int:
        """Beams of each of its groups."""
        return self.beam_width // self.num_beam_groups

    @property
    def is_judged(self) -> bool:
        """Whether a beam ends, or what may follow, is found by its text."""
        return self.sampling.judged_by is not None

    def samples(self) -> "list[BeamSearchParams]":
        """Itself: its outputs come of one search, as samples come of many draws."""
        return [self]

    @cached_property
    def sampling(self) -> SamplingParams:
        """What a search has in common with sampling."""
        common: dict[str, Any] = {name: getattr(self, name) for name in COMMON}
        return SamplingParams(temperature=0.0, **common)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
