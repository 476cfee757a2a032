"""Grammars of outputs that are calls of tools, or text that calls may follow."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from fdjax.serve.turns.families import CallFormat
from fdjax.serve.turns.tool import Tool

ANY_OBJECT: Mapping[str, Any] = {
    "type": "object",
    "x-guidance": {"whitespace_flexible": True},
}


class GrammarOfCalls(Protocol):
    """A function that makes a grammar of calls."""

    def __call__(
        self,
        family: CallFormat,
        tools: Sequence[Tool],
        tokens: Mapping[str, int],
        *,
        parallel: bool,
    ) -> str:
        """See `call_grammar`."""
        ...


def call_grammar(
    family: CallFormat,
    tools: Sequence[Tool],
    tokens: Mapping[str, int],
    *,
    parallel: bool,
) -> str:
    """A grammar in llguidance's dialect of Lark.

    Args:
        family: how calls are written.
        tools: one of which is called.
        tokens: ids of those markers that are tokens of the model.
        parallel: there may be several calls; else there is one.
    """
    more = f" ({_text(family.separator, tokens)} call)*" if parallel else ""
    opening, closing = _text(family.opening, tokens), _text(family.closing, tokens)
    schemas = [tool.held_schema for tool in tools]
    start = f"start: {opening} call{more} {closing}"
    return "\n".join([start, *_calls(family, family.before, tools, schemas, tokens)])


def text_then_calls(
    family: CallFormat,
    tools: Sequence[Tool],
    tokens: Mapping[str, int],
    *,
    parallel: bool,
) -> str:
    """The grammar of any text, and of calls after it, if there are some.

    Args:
        family: has a marker.
        tools: that may be called; only arguments of those that are strict are held to
            their schemas, others may be any object.
        tokens: see `call_grammar`, as for the next.
        parallel: see above.
    """
    marker = family.marker
    assert marker is not None
    if marker in tokens:
        plain, said = "/(?s:.*)/", f"said: PLAIN {_text([marker], tokens)}"
    else:
        plain = f"/(?s:.*)/ & ~/(?s:.*){re.escape(marker)}(?s:.*)/"
        said = f"said[suffix={json.dumps(marker)}]: /(?s:.*)/"
    before, between = family.before, [*family.separator]
    if not family.opening:  # each call has the marker
        before, between = before[1:], [*between, marker]
    more = f" ({_text(between, tokens)} call)*" if parallel else ""
    opening, closing = (
        _text(parts, tokens) for parts in (family.opening[1:], family.closing)
    )
    schemas = [tool.held_schema if tool.strict else ANY_OBJECT for tool in tools]
    rules = [
        f"start: plain | said {opening} call{more} {closing}",
        "plain: PLAIN",
        f"PLAIN: {plain}",
        said,
    ]
    return "\n".join([*rules, *_calls(family, before, tools, schemas, tokens)])


def _calls(
    family: CallFormat,
    before: Sequence[str],
    tools: Sequence[Tool],
    schemas: Sequence[Mapping[str, Any]],
    tokens: Mapping[str, int],
) -> Iterator[str]:
    """The rule `call`, and those that it needs."""
    yield "call: " + " | ".join(f"call_{place}" for place in range(len(tools)))
    after = _text(family.after, tokens)
    for place, (tool, schema) in enumerate(zip(tools, schemas, strict=True)):
        head = _text([*before, tool.name, *family.middle], tokens)
        yield f"call_{place}: {head} arguments_{place} {after}"
        yield f"arguments_{place}: %json {json.dumps(schema)}"


def _text(parts: Iterable[str], tokens: Mapping[str, int]) -> str:
    marked = (f"<[{tokens[p]}]>" if p in tokens else json.dumps(p) for p in parts)
    return " ".join(marked)
