"""`BeamSearch`: the fields of a beam search that sampling does not have, validated."""

from dataclasses import dataclass
from typing import Any, Literal

from fdjax.errors import RequestError
from fdjax.generate.checks import Interval, integer, real, shown

MAX_BEAMS = 512

type EarlyStopping = bool | Literal["never"]

COMMON = (
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
"""What a search has in common with sampling, which checks it."""

WIDTH = Interval(1, MAX_BEAMS)
_LENGTH_PENALTY = Interval(-10, 10)
_DIVERSITY_PENALTY = Interval(0, 100)


@dataclass(frozen=True, kw_only=True)
class BeamSearch:
    """A beam search in place of draws, as the `beam_search` of `SamplingParams`.

    The mathematics is that of transformers: a hypothesis' score is the sum of the
    log-probabilities of its tokens over their number, the end token among them, to the
    length penalty. Penalties and biases act on log-probabilities, which are not made to
    sum to one again.

    Attributes:
        beam_width: beams that run at a time, 1 to 512; 64 at most where a model is not
            loaded for more (`max_beam_width`).
        length_penalty: above 0 prefers long outputs, below 0 short ones; -10 to 10, and
            nearer to 0 where outputs may be long: one with which scores could not be
            told apart is refused with `max_tokens`.
        early_stopping: true ends the search with as many hypotheses as beams; false
            when no running beam, with the length it has, is better than the worst of
            them; "never" when none can become better.
        num_beam_groups: the beams are so many groups of one width, each a search of
            its own; they divide `beam_width`. Of all their hypotheses the best return.
        diversity_penalty: in each step, subtracted from the log-probability of a token
            as often as beams of the groups before have chosen it there; 0 to 100.

    Raises:
        RequestError: a value has the wrong type or is out of range.
    """

    # Run-time type checkers would refuse what `__post_init__` converts or explains.
    __no_type_check__ = True

    beam_width: int
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0

    def __post_init__(self) -> None:
        self._set("beam_width", integer("beam_width", self.beam_width, WIDTH))
        penalty = real("length_penalty", self.length_penalty, _LENGTH_PENALTY)
        self._set("length_penalty", penalty)
        _check_early_stopping(self.early_stopping)
        self._check_groups()

    def check(self, *, n: int, judged_by: str | None) -> None:
        """Checks what else is asked of the search.

        Args:
            n: hypotheses to return.
            judged_by: the field that wants beams judged by their texts, if one does.

        Raises:
            RequestError: there are fewer beams than `n`, or groups of beams that would
                have to be judged.
        """
        if n > self.beam_width:
            raise RequestError(
                f"n is {n} but beam_width is {self.beam_width}; a search has no more "
                "hypotheses than beams: lower n, or use as many beams"
            )
        if self.num_beam_groups > 1 and judged_by is not None:
            raise RequestError(
                f"{judged_by} needs beams that are judged by their texts, which "
                f"num_beam_groups, {self.num_beam_groups}, does not allow; leave out "
                "one"
            )

    def _check_groups(self) -> None:
        groups = integer("num_beam_groups", self.num_beam_groups, WIDTH)
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

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def _check_early_stopping(value: object) -> None:
    is_never = isinstance(value, str) and value == "never"  # arrays equal elementwise
    if not is_never and not isinstance(value, bool):
        raise RequestError(
            f'early_stopping is {shown(value)}; use true, false or "never"'
        )
