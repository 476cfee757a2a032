"""`StructuredOutputs`: the form a request wants its text in, validated."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fdjax.errors import RequestError
from fdjax.generate.checks import flag, shown

FIELD = "structured_outputs"
# The mask of a token of a text that is spelt out takes time in proportion to the text:
# 1 ms of a core at 1,000 letters, 10 ms at 16,000.
MAX_BYTES = 2**15
MAX_DEPTH = 64
MAX_CHOICES = 1024


@dataclass(frozen=True, kw_only=True)
class StructuredOutputs:
    """The form that the text of an output has, in the words of vLLM; exactly one.

    A schema, expression or grammar has at most 32,768 bytes, as have all choices.

    Attributes:
        json: a JSON schema, as a mapping or a text, and kept as a text; at most 64
            levels deep. The output is JSON that is valid by it.
        json_object: the output is any JSON object.
        regex: a regular expression in the syntax of Rust's `regex` (no look-around, no
            references back) that matches the whole output.
        grammar: a context-free grammar with a rule `start`, in llguidance's dialect of
            Lark, or with a rule `root` in GBNF (`root ::= ...`).
        choice: the output is one of these texts; at most 1024.
        after: the form begins after the first of these texts, up to which anything may
            come (reasoning, say); `None` has the whole output in the form.

    Raises:
        RequestError: a value has the wrong type, is too long or too deep; none is
            given, or several are.
    """

    # Run-time type checkers would refuse what `__post_init__` converts or explains.
    __no_type_check__ = True

    json: str | Mapping[str, Any] | bool | None = None
    json_object: bool = False
    regex: str | None = None
    grammar: str | None = None
    choice: Sequence[str] | None = None
    after: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in _CHECKS if not _is_absent(getattr(self, name))]
        if len(given) != 1:
            raise RequestError(
                f"{FIELD} has {' and '.join(given) or 'nothing'}; give one of "
                f"{', '.join(_CHECKS)}"
            )
        (name,) = given
        value = _CHECKS[name](f"{FIELD}.{name}", getattr(self, name))
        object.__setattr__(self, name, value)
        if self.after is not None:
            _text(f"{FIELD}.after", self.after)


def _is_absent(value: object) -> bool:
    return value is None or value is False


def _schema(name: str, value: object) -> str:
    """The schema as a text."""
    if isinstance(value, str):
        _text(name, value)
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{name} is not JSON: {error}") from None
    if not isinstance(value, Mapping | bool):
        raise RequestError(f"{name} is {shown(value)}; give a JSON schema")
    check_depth(name, value)
    try:
        return _text(name, json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"{name} is not JSON: {error}") from None


def check_depth(name: str, value: object) -> None:
    """Refuses JSON that others could not read, or not write.

    Raises:
        RequestError: it has more than `MAX_DEPTH` levels.
    """
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return
        level = [child for one in level for child in _children(one)]
    raise RequestError(f"{name} has more than {MAX_DEPTH} levels; flatten it")


def _children(value: object) -> Sequence[object]:
    match value:
        case Mapping():
            return [*value.values()]
        case list() | tuple():
            return value
        case _:
            return ()


def _choices(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        raise RequestError(f"{name} is {shown(value)}; give a list of texts")
    if len(value) > MAX_CHOICES:
        raise RequestError(f"{name} has {len(value)} texts; give at most {MAX_CHOICES}")
    texts = tuple(_text(name, text) for text in value)
    _check_bytes(name, sum(len(text.encode()) for text in texts))
    return texts


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise RequestError(f"{name} is {shown(value)}; give a text that is not empty")
    try:
        _check_bytes(name, len(value.encode()))
    except UnicodeEncodeError:
        raise RequestError(f"{name} has half a surrogate pair") from None
    return value


def _check_bytes(name: str, count: int) -> None:
    if count > MAX_BYTES:
        raise RequestError(f"{name} has {count} bytes; use at most {MAX_BYTES}")


_CHECKS: Mapping[str, Callable[[str, object], Any]] = MappingProxyType(
    {
        "json": _schema,
        "json_object": flag,
        "regex": _text,
        "grammar": _text,
        "choice": _choices,
    }
)
