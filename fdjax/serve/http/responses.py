"""`/v1/responses`: OpenAI's newer words for the next turn of a chat."""

import contextlib
import itertools
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from fdjax.serve.http.answers import REFUSING, ResponseAnswer, events
from fdjax.serve.http.chat import asked_turn, turn_refusals
from fdjax.serve.http.encoding import encoded
from fdjax.serve.http.json_aside import AsideRoute
from fdjax.serve.http.response_events import Event, ResponseItems
from fdjax.serve.http.response_fields import ResponsesBody, in_these_words
from fdjax.serve.http.server import Server
from fdjax.serve.http.taken import Taken, take
from fdjax.serve.http.whole import in_pieces
from fdjax.serve.turns.turns import new_call_id

_EVENTS = events("With `stream`: OpenAI's typed events, in their order.", named=True)


def router(server: Server) -> APIRouter:
    """The path, over a server."""
    routes = APIRouter(route_class=AsideRoute)

    @routes.post(
        "/v1/responses",
        response_model=None,
        responses={200: {"model": ResponseAnswer, "content": _EVENTS}, **REFUSING},
    )
    async def responses(request: Request, body: ResponsesBody) -> Response:
        server.check_model(body.model)
        with in_these_words():
            chat = body.chat()
            with turn_refusals(chat):
                turn = await asked_turn(request, server, chat)
                taken = await take(
                    request,
                    server,
                    body,
                    prompts=[turn.tokens],
                    params=turn.params,
                    id_prefix="resp",
                    make_reader=turn.make_reader,
                )
        new_id = turn.turns.new_id if turn.turns is not None else new_call_id
        answer = _Answer(taken, body, ResponseItems(new_id))
        if body.stream:
            return taken.streamed(answer.events())
        return await taken.answered(request, answer.whole())

    return routes


@dataclass
class _Answer:
    """One response, whole or as events."""

    taken: Taken
    body: ResponsesBody
    items: ResponseItems

    async def whole(self) -> Response:
        """All of it."""
        reason = None
        async with contextlib.aclosing(self.taken.chunks()) as chunks:
            async for _, chunk in chunks:
                _run(self.items.add(chunk))
                reason = chunk.finish_reason
        _run(self.items.end(_status(reason)))
        return in_pieces([encoded(self._response(_status(reason), reason))])

    async def events(self) -> AsyncGenerator[bytes]:
        """Each with its place in the stream; the last one has all of the response."""
        numbers = itertools.count()

        def written(event: Event) -> bytes:
            event = {**event, "sequence_number": next(numbers)}
            return b"event: %s\ndata: %s\n\n" % (
                event["type"].encode(),
                encoded(event),
            )

        begun = self._response("in_progress", None)
        yield written({"type": "response.created", "response": begun})
        yield written({"type": "response.in_progress", "response": begun})
        reason = None
        try:
            async with contextlib.aclosing(self.taken.chunks()) as chunks:
                async for _, chunk in chunks:
                    for event in self.items.add(chunk):
                        yield written(event)
                    reason = chunk.finish_reason
        except Exception as error:  # the status is sent: only an event can tell
            told = self.taken.told(error).body["error"]
            _run(self.items.end("incomplete"))
            failed = self._response("failed", None)
            failed["error"] = {"code": told["code"] or told["type"]} | {
                "message": told["message"]
            }
            yield written({"type": "response.failed", "response": failed})
            return
        status = _status(reason)
        for event in self.items.end(status):
            yield written(event)
        response = self._response(status, reason)
        yield written({"type": f"response.{status}", "response": response})

    def _response(self, status: str, reason: str | None) -> dict[str, Any]:
        taken, body = self.taken, self.body
        params = taken.streams[0].request.params
        effort = body.reasoning.effort if body.reasoning else None
        details = None
        if status == "incomplete":
            why = "max_output_tokens" if reason == "length" else "aborted"
            details = {"reason": why}
        return {
            "id": taken.name,
            "object": "response",
            "created_at": taken.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": details,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": taken.server.model.names[0],
            "output": self.items.output if status != "in_progress" else [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": effort, "summary": None},
            "service_tier": "default",
            "store": False,
            "temperature": params.temperature,
            "text": {"format": body.shown_format},
            "tool_choice": body.shown_choice,
            "tools": body.shown_tools,
            "top_p": params.top_p,
            "truncation": "disabled",
            "usage": None if status == "in_progress" else self._usage,
            "user": body.user,
        }

    @property
    def _usage(self) -> dict[str, Any]:
        usage, stream = self.taken.usage, self.taken.streams[0]
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": stream.num_cached},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self.items.num_reasoning},
            "total_tokens": usage["total_tokens"],
        }


def _status(reason: str | None) -> str:
    return "completed" if reason == "stop" else "incomplete"


def _run(events: Iterable[Event]) -> None:
    """For what they do to the items."""
    for _ in events:
        pass
