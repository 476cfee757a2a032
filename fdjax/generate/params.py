"""`SamplingParams`: how one request wants its tokens chosen, validated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from dataclasses import fields as fields_of
from typing import Any

from fdjax.errors import RequestError
from fdjax.generate import fields
from fdjax.generate.beam_fields import COMMON, BeamSearch
from fdjax.generate.checks import Interval, flag, integer, real, shown
from fdjax.generate.fields import INT32_MAX
from fdjax.generate.structured import FIELD, StructuredOutputs
from fdjax.generate.vllm_fields import check_names

MAX_LOGPROBS = 20
MAX_SAMPLES = 16384

_NUM_SEEDS = 2**63

# Below it a temperature divides logits into infinities; vLLM draws the same line.
GREEDY_BELOW = 1e-5

_REALS = {
    "temperature": Interval(0, 100),
    "top_p": Interval(0, 1, open_below=True),
    "min_p": Interval(0, 1),
    "repetition_penalty": Interval(0.01, 100),
    "presence_penalty": Interval(-2, 2),
    "frequency_penalty": Interval(-2, 2),
}
_INTEGERS = {
    "n": Interval(1, MAX_SAMPLES),
    "top_k": Interval(-1, INT32_MAX),
    "min_tokens": Interval(0, INT32_MAX),
}
_FLAGS = (
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "spaces_between_special_tokens",
)
_OPTIONAL_INTEGERS = {
    "seed": Interval(0, _NUM_SEEDS - 1),
    "max_tokens": Interval(1, INT32_MAX),
    "logprobs": Interval(0, MAX_LOGPROBS),
    "prompt_logprobs": Interval(0, MAX_LOGPROBS),
}


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request wants its tokens chosen, in the words of vLLM.

    Values are normalised: numbers to `float` or `int`, sequences to tuples, mappings
    to read-only copies, `top_k=-1` to 0.

    Attributes:
        temperature: divides the logits, 0 to 100; below 1e-5 the most likely token is
            taken (greedy) and top_k, top_p and min_p have no effect.
        top_p: the most likely tokens that together reach this probability are kept,
            above 0 to 1; 1 keeps all.
        top_k: as many of the most likely tokens are kept; 0 (or -1) keeps all.
        min_p: tokens at least this fraction as likely as the most likely one are kept,
            0 to 1; 0 keeps all.
        repetition_penalty: logits of tokens of the prompt or the output are divided
            (positive ones) or multiplied (negative ones) by it, 0.01 to 100.
        presence_penalty: subtracted from logits of tokens of the output, -2 to 2.
        frequency_penalty: subtracted from logits of tokens of the output once for
            each time they occur, -2 to 2.
        logit_bias: token id to what is added to its logit, -100 to 100; at most 1024.
        allowed_token_ids: the only tokens that may come, the end-of-sequence token
            among them or not; `None` lets all come. Log-probabilities are of all.
        bad_words: texts that the output must not contain, wherever a word may begin;
            at most 128. Or sequences of token ids, of which at most 8 make a word; a
            text becomes up to two. What the prompt ends with is no part of a word.
        seed: makes the draws repeatable, 0 to 2**63 - 1; `None` lets the engine choose.
        stop_token_ids: tokens that end the output like the end-of-sequence token; at
            most 64.
        stop: strings that end the output, wherever tokens begin and end; one or a
            sequence of at most 16, of 1 to 1024 characters. They need a tokenizer.
        include_stop_str_in_output: the text ends with the string that ended it, not
            before.
        skip_special_tokens: special tokens are left out of the text.
        spaces_between_special_tokens: where they are not, a tokenizer that writes
            spaces between tokens writes them between special ones too.
        ignore_eos: the model's end-of-sequence tokens do not end the output.
        max_tokens: longest output, in tokens; `None` sets no limit of its own.
        min_tokens: tokens before which nothing can end the output, unless the form
            asked for is complete and lets nothing more come.
        logprobs: `None` for no log-probabilities, 0 for the chosen token's, `n` for
            those of the `n` most likely tokens too; at most 20.
        prompt_logprobs: the same of the prompt's tokens, each given those before it;
            then the prompt is computed twice, and no cached prefix is read.
        structured_outputs: the form that the text has; it needs a tokenizer, and the
            extra `serve`.
        n: samples of the prompt, which share its keys and values; at most 16384. Sample
            `i` draws with `seed + i`. Of a beam search, the outputs that return, the
            best first; at most `beam_width`.
        beam_search: a search for the likeliest outputs in place of draws. What is for
            drawing alone is refused beside it: `temperature` but for 1 and 0, `top_p`,
            `top_k`, `min_p`, `presence_penalty`, `frequency_penalty`, `seed`; and
            `spaces_between_special_tokens` and `prompt_logprobs`.

    Raises:
        RequestError: a value has the wrong type or is out of range.
        TypeError: there is no such field.
    """

    # Run-time type checkers would refuse what `__post_init__` converts or explains.
    __no_type_check__ = True

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str | Sequence[int]] = ()
    seed: int | None = None
    stop_token_ids: Sequence[int] = ()
    stop: str | Sequence[str] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: StructuredOutputs | None = None
    n: int = 1
    beam_search: BeamSearch | None = None

    # Before `__init__`, which would say no more of a name than that it is wrong.
    def __new__(  # noqa: D102  (a page of the API would have it as a method)
        cls, *_: object, **given: object
    ) -> "SamplingParams":
        check_names(given, cls.__dataclass_fields__)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, allowed in _REALS.items():
            self._set(name, real(name, getattr(self, name), allowed))
        for name, allowed in _INTEGERS.items():
            self._set(name, integer(name, getattr(self, name), allowed))
        for name, allowed in _OPTIONAL_INTEGERS.items():
            value = getattr(self, name)
            if value is not None:
                self._set(name, integer(name, value, allowed))
        self._set("top_k", max(self.top_k, 0))
        for name in _FLAGS:
            self._set(name, flag(name, getattr(self, name)))
        self._set("logit_bias", fields.logit_bias(self.logit_bias))
        self._set("allowed_token_ids", fields.allowed_token_ids(self.allowed_token_ids))
        self._set("bad_words", fields.bad_words(self.bad_words))
        self._set("stop", fields.stop(self.stop))
        self._set("stop_token_ids", fields.stop_token_ids(self.stop_token_ids))
        _check_form(self.structured_outputs)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens is {self.min_tokens} but max_tokens is "
                f"{self.max_tokens}; min_tokens must not be the larger one"
            )
        if self.beam_search is not None:
            self._check_search(self.beam_search)

    @property
    def is_greedy(self) -> bool:
        """Nothing is drawn: the most likely token is taken, or beams are."""
        return self.temperature < GREEDY_BELOW or self.beam_search is not None

    @property
    def has_penalties(self) -> bool:
        """Any of the three penalties changes logits."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )

    @property
    def has_token_lists(self) -> bool:
        """Some tokens may not come: `allowed_token_ids` or `bad_words` say so."""
        return self.allowed_token_ids is not None or bool(self.bad_words)

    @property
    def judged_by(self) -> str | None:
        """The field by which texts say what may follow or end, if there is one."""
        if self.stop:
            return "stop"
        return None if self.structured_outputs is None else FIELD

    def clone(self) -> "SamplingParams":
        """Itself: nothing of it changes. `dataclasses.replace` makes another."""
        return self

    def samples(self) -> "list[SamplingParams]":
        """The parameters of each of the `n` samples, whose own `n` is 1."""
        if self.n == 1:
            return [self]
        first = replace(self, n=1)
        other = replace(first, prompt_logprobs=None)  # it is one prompt
        if self.seed is None:
            return [first, *[other] * (self.n - 1)]
        seeds = ((self.seed + sample) % _NUM_SEEDS for sample in range(1, self.n))
        return [first, *(replace(other, seed=seed) for seed in seeds)]

    def check_vocabulary(self, vocab_size: int) -> None:
        """Checks that every token id named exists.

        Args:
            vocab_size: tokens of the model, `V`.

        Raises:
            RequestError: an id that is named is `V` or more; or `bad_words` has texts,
                which a tokenizer makes token ids.
        """
        named = {
            "logit_bias": self.logit_bias or (),
            "stop_token_ids": self.stop_token_ids,
            "allowed_token_ids": self.allowed_token_ids or (),
        }
        for word in self.bad_words:
            if isinstance(word, str):
                raise RequestError(
                    f"bad_words has the text {shown(word)}, but there is no tokenizer "
                    "here; use sequences of token ids"
                )
            fields.check_ids("bad_words", word, vocab_size)
        for name, ids in named.items():
            fields.check_ids(name, ids, vocab_size)

    def _check_search(self, search: object) -> None:
        if not isinstance(search, BeamSearch):
            raise RequestError(f"beam_search is {shown(search)}; use BeamSearch")
        given = vars(self)
        name = field_of_draws(given)
        if self.temperature not in (0, 1):
            name = "temperature"
        if name is not None:
            raise RequestError(
                f"{name} is {shown(given[name])}, but a beam search draws nothing and "
                f"does not take it; leave out {name} or beam_search"
            )
        search.check(n=self.n, judged_by=self.judged_by)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


_DRAWING = {
    one.name: one.default
    for one in fields_of(SamplingParams)
    if one.name not in (*COMMON, "temperature", "n", "beam_search")
}


def field_of_draws(given: Mapping[str, Any]) -> str | None:
    """The first field that a beam search does not take and that asks for something.

    Args:
        given: fields of `SamplingParams`, among others; of `temperature` nothing is
            said.
    """
    for name, value in given.items():
        asks = name in _DRAWING and value != _DRAWING[name]
        if asks and (name, value) != ("top_k", -1):  # which keeps all tokens, too
            return name
    return None


def _check_form(value: object) -> None:
    if value is not None and not isinstance(value, StructuredOutputs):
        raise RequestError(f"{FIELD} is {shown(value)}; use StructuredOutputs")
