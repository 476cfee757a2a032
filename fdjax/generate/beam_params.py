"""`BeamSearchParams`: how one prompt's most likely continuations are searched for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from fdjax.errors import RequestError
from fdjax.generate.checks import Interval, integer, real, shown
from fdjax.generate.params import SamplingParams

MAX_BEAMS = 512

type EarlyStopping = bool | Literal["never"]

# What a search has in common with sampling, which checks it.
_COMMON = (
    "max_tokens",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "logit_bias",
    "repetition_penalty",
)
_WIDTH = Interval(1, MAX_BEAMS)
_LENGTH_PENALTY = Interval(-10, 10)


@dataclass(frozen=True, kw_only=True)
class BeamSearchParams:
    """What a beam search looks for, in the words of vLLM, where it has one.

    The mathematics is that of transformers: a hypothesis' score is the sum of the
    log-probabilities of its tokens over their number, the end token among them, to the
    length penalty. (vLLM divides by prompt and output together, and has neither
    `early_stopping` nor an `n`.) Penalties and biases act on log-probabilities, which
    are not made to sum to one again.

    Attributes:
        beam_width: beams that run at a time, 1 to 512.
        max_tokens: longest output, in tokens; `None` sets no limit of its own.
        n: hypotheses returned, the best first; as many as beams by default.
        length_penalty: above 0 prefers long outputs, below 0 short ones; -10 to 10.
        early_stopping: true ends the search with as many hypotheses as beams; false
            when no running beam, with the length it has, is better than the worst of
            them; "never" when none can become better.
        ignore_eos: the model's end-of-sequence tokens do not end an output.
        min_tokens: tokens before which nothing can end an output.
        stop_token_ids: as in `SamplingParams`, like the next two.
        logit_bias: added to log-probabilities.
        repetition_penalty: multiplies log-probabilities.
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
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    repetition_penalty: float = 1.0
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

    def samples(self) -> "list[BeamSearchParams]":
        """Itself: its outputs come of one search, as samples come of many draws."""
        return [self]

    @cached_property
    def sampling(self) -> SamplingParams:
        """What a search has in common with sampling."""
        common: dict[str, Any] = {name: getattr(self, name) for name in _COMMON}
        return SamplingParams(temperature=0.0, **common)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def num_outputs(params: SamplingParams | BeamSearchParams) -> int:
    """How many outputs a prompt has."""
    if isinstance(params, BeamSearchParams) and params.n is None:
        return params.beam_width
    return params.n or 1


def _check_early_stopping(value: object) -> None:
    if value != "never" and not isinstance(value, bool):
        raise RequestError(
            f'early_stopping is {shown(value)}; use true, false or "never"'
        )
