"""The grammar of an output that is calls of tools, and nothing else."""

import json
from collections.abc import Iterable, Mapping, Sequence

from fdjax.serve.turns.families import Family
from fdjax.serve.turns.tool import Tool


def call_grammar(
    family: Family, tools: Sequence[Tool], tokens: Mapping[str, int], *, parallel: bool
) -> str:
    """A grammar in llguidance's dialect of Lark.

    Args:
        family: how calls are written.
        tools: one of which is called.
        tokens: ids of those markers that are tokens of the model.
        parallel: there may be several calls; else there is one.
    """

    def text(parts: Iterable[str]) -> str:
        marked = (f"<[{tokens[p]}]>" if p in tokens else json.dumps(p) for p in parts)
        return " ".join(marked)

    more = f" ({text(family.separator)} call)*" if parallel else ""
    rules = [
        f"start: {text(family.opening)} call{more} {text(family.closing)}",
        "call: " + " | ".join(f"call_{place}" for place in range(len(tools))),
    ]
    for place, tool in enumerate(tools):
        head = text([*family.before, tool.name, *family.middle])
        rules += [
            f"call_{place}: {head} arguments_{place} {text(family.after)}",
            f"arguments_{place}: %json {json.dumps(tool.held_schema)}",
        ]
    return "\n".join(rules)
