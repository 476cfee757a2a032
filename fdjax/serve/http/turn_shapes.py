"""The parts of a turn in the shapes that OpenAI's chats have for them."""

from collections.abc import Callable, Iterable
from typing import Any

from fdjax.serve.turns.parts import Part, merged


def message_of(parts: Iterable[Part], new_id: Callable[[], str]) -> dict[str, Any]:
    """A whole turn.

    Args:
        parts: of the turn.
        new_id: makes one for each call.
    """
    content = reasoning = ""
    calls: list[dict[str, Any]] = []
    for part in merged(parts):
        match part.kind:
            case "reasoning":
                reasoning += part.text
            case "content":
                content += part.text
            case "call":
                function = {"name": part.text, "arguments": ""}
                calls.append({"id": new_id(), "type": "function", "function": function})
            case "arguments":
                calls[part.call]["function"]["arguments"] += part.text
            case "end":
                pass
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message |= {"content": content or None, "tool_calls": calls}
    return message | ({"reasoning": reasoning} if reasoning else {})


def delta_of(part: Part, new_id: Callable[[], str]) -> dict[str, Any] | None:
    """A part of a stream; `None` where there is nothing to say."""
    match part.kind:
        case "reasoning" | "content":
            return {part.kind: part.text}
        case "call":
            call = {
                "id": new_id(),
                "type": "function",
                "function": {"name": part.text, "arguments": ""},
            }
        case "arguments":
            call = {"function": {"arguments": part.text}}
        case "end":
            return None
    return {"tool_calls": [{"index": part.call, **call}]}
