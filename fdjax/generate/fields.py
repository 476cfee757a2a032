"""Fields of `SamplingParams` that hold several values, checked and normalised.

All raise `RequestError` for a wrong type, a value out of range, or too many of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from fdjax.errors import RequestError
from fdjax.generate.checks import Interval, integer, real, shown

INT32_MAX = 2**31 - 1
MAX_STOP_IDS = 64
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024
MAX_BIASED = 1024
MAX_BAD_WORDS = 128
# A text has two: at the beginning of a text and after a space.
MAX_BAD_SEQUENCES = 2 * MAX_BAD_WORDS
MAX_BAD_TOKENS = 8

_TOKEN_ID = Interval(0, INT32_MAX)
_BIAS = Interval(-100, 100)


def logit_bias(value: object) -> Mapping[int, float] | None:
    """Token ids to numbers, as a read-only copy."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise RequestError(
            f"logit_bias is {shown(value)}; use a mapping of token ids to numbers"
        )
    check_count("logit_bias", len(value), MAX_BIASED)
    return MappingProxyType(
        {
            integer("a token id of logit_bias", token, _TOKEN_ID): real(
                f"logit_bias of token {shown(token)}", bias, _BIAS
            )
            for token, bias in value.items()
        }
    )


def stop(value: object) -> tuple[str, ...]:
    """Strings that end an output; `None` is none."""
    if value is None:
        return ()
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, Sequence) or isinstance(strings, bytes):
        raise RequestError(f"stop is {shown(value)}; use a string or several")
    check_count("stop", len(strings), MAX_STOP_STRINGS)
    for string in strings:
        if not isinstance(string, str) or not 0 < len(string) <= MAX_STOP_CHARACTERS:
            raise RequestError(
                f"stop has {shown(string)}; use strings of 1 to {MAX_STOP_CHARACTERS} "
                "characters"
            )
    return tuple(strings)


def stop_token_ids(value: object) -> tuple[int, ...]:
    """Tokens that end an output; `None` is none."""
    ids = () if value is None else tuple(token_ids("stop_token_ids", value))
    check_count("stop_token_ids", len(ids), MAX_STOP_IDS)
    return ids


def allowed_token_ids(value: object) -> tuple[int, ...] | None:
    """The only tokens that may come, each once."""
    if value is None:
        return None
    ids = dict.fromkeys(token_ids("allowed_token_ids", value))
    if not ids:
        raise RequestError(
            "allowed_token_ids is empty; use at least one token id, or None"
        )
    return tuple(ids)


def bad_words(value: object) -> tuple[str | tuple[int, ...], ...]:
    """Texts or sequences of token ids that may not come; `None` is none."""
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise RequestError(f"bad_words is {shown(value)}; use a sequence of texts")
    words = tuple(
        word if isinstance(word, str) else tuple(token_ids("bad_words", word))
        for word in value
    )
    num_texts = sum(isinstance(word, str) for word in words)
    check_count("bad_words", num_texts, MAX_BAD_WORDS)
    check_count("bad_words", len(words), MAX_BAD_SEQUENCES)
    for word in words:
        most = MAX_STOP_CHARACTERS if isinstance(word, str) else MAX_BAD_TOKENS
        if not 0 < len(word) <= most:
            raise RequestError(
                f"bad_words has {shown(word)}; use texts, or sequences of 1 to "
                f"{MAX_BAD_TOKENS} token ids"
            )
    return words


def token_ids(name: str, value: object) -> list[int]:
    """Token ids of the field `name`."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise RequestError(f"{name} is {shown(value)}; use a sequence of token ids")
    return [integer(f"a token id of {name}", token, _TOKEN_ID) for token in value]


def check_count(name: str, count: int, limit: int) -> None:
    """Refuses more entries than `limit`."""
    if count > limit:
        raise RequestError(f"{name} has {count} entries; use at most {limit}")


def check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    """Refuses ids that are no tokens of the model."""
    largest = max(ids, default=0)
    if largest >= vocab_size:
        raise RequestError(
            f"{name} names token {largest}, but the vocabulary has {vocab_size} "
            f"tokens; use ids from 0 to {vocab_size - 1}"
        )
