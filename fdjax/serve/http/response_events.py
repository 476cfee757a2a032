"""The items of a response, and the typed events that tell how they come to be."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

from fdjax.serve.outputs import Chunk
from fdjax.serve.turns.parts import Part

type Item = dict[str, Any]
type Event = dict[str, Any]


class ResponseItems:
    """Makes items of the parts of a turn: reasoning, a message, and calls.

    Args:
        new_call_id: makes one for each call.

    Attributes:
        output: the items; the last may not have ended.
        num_reasoning: tokens of chunks that had reasoning.
    """

    def __init__(self, new_call_id: Callable[[], str]) -> None:
        self._new_call_id = new_call_id
        self._open: Item | None = None
        self.output: list[Item] = []
        self.num_reasoning = 0

    def add(self, chunk: Chunk) -> Iterator[Event]:
        """What the next chunk brings; all of its events are to be taken."""
        parts = chunk.parts
        if parts is None:
            parts = [Part("content", chunk.text or "")]
        if any(part.kind == "reasoning" for part in parts):
            self.num_reasoning += len(chunk.token_ids)
        for part in parts:
            yield from self._part(part)

    def end(self, status: str) -> Iterator[Event]:
        """Ends what is open.

        Args:
            status: of it: "completed", or "incomplete".
        """
        item, self._open = self._open, None
        if item is None:
            return
        place = self._place
        if item["type"] == "function_call":
            item["status"] = status
            yield {
                "type": "response.function_call_arguments.done",
                **place,
                "name": item["name"],
                "arguments": item["arguments"],
            }
        else:
            (part,) = item["content"]
            if item["type"] == "message":
                item["status"] = status
            kind = _KINDS[item["type"]]
            none: Event = {"logprobs": []} if item["type"] == "message" else {}
            place = place | {"content_index": 0}
            text = part["text"]
            yield {"type": f"response.{kind}.done", **place, "text": text, **none}
            yield {"type": "response.content_part.done", **place, "part": part}
        index = len(self.output) - 1
        yield {"type": "response.output_item.done", "output_index": index, "item": item}

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.output[-1]["id"], "output_index": len(self.output) - 1}

    def _part(self, part: Part) -> Iterator[Event]:
        match part.kind:
            case "reasoning" | "content" if part.text:
                wanted = "message" if part.kind == "content" else "reasoning"
                if self._open is None or self._open["type"] != wanted:
                    yield from self.end("completed")
                    yield from self._begin_text(wanted)
                yield self._text_delta(part.text)
            case "call":
                yield from self.end("completed")
                yield self._begin(_call(part.text, self._new_call_id()))
            case "arguments" if part.text and self._open is not None:
                self._open["arguments"] += part.text
                kind = "response.function_call_arguments.delta"
                yield {"type": kind, **self._place, "delta": part.text}
            case "end":
                yield from self.end("completed")
            case _:
                pass

    def _begin(self, item: Item) -> Event:
        self._open = item
        self.output.append(item)
        index = len(self.output) - 1
        kind = "response.output_item.added"
        return {"type": kind, "output_index": index, "item": _copied(item)}

    def _begin_text(self, kind: str) -> Iterator[Event]:
        item = _message() if kind == "message" else _reasoning()
        yield self._begin(item)
        part: Item = {"type": "reasoning_text", "text": ""}
        if kind == "message":
            part = {"type": "output_text", "text": "", "annotations": []}
        item["content"].append(part)
        kind = "response.content_part.added"
        yield {"type": kind, **self._place, "content_index": 0, "part": {**part}}

    def _text_delta(self, text: str) -> Event:
        assert self._open is not None
        self._open["content"][0]["text"] += text
        kind = _KINDS[self._open["type"]]
        none: Event = {"logprobs": []} if kind == "output_text" else {}
        place = self._place | {"content_index": 0}
        return {"type": f"response.{kind}.delta", **place, "delta": text, **none}


_KINDS = {"message": "output_text", "reasoning": "reasoning_text"}


def _message() -> Item:
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "status": "in_progress",
        "content": [],
    }


def _reasoning() -> Item:
    return {
        "id": f"rs_{uuid.uuid4().hex}",
        "type": "reasoning",
        "summary": [],
        "content": [],
    }


def _call(name: str, call_id: str) -> Item:
    return {
        "id": f"fc_{uuid.uuid4().hex}",
        "type": "function_call",
        "status": "in_progress",
        "call_id": call_id,
        "name": name,
        "arguments": "",
    }


def _copied(item: Item) -> Item:
    """As it is now: it grows."""
    return item | ({"content": [*item["content"]]} if "content" in item else {})
