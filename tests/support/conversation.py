"""A server that says one text, for tests of what chats make of it."""

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import openai

from fdjax.serve.chat_template import ChatText
from fdjax.serve.http.server import ServedModel
from tests.support.fake_engine import FakeEngine
from tests.support.http_server import CHAT, MODEL, TOKENIZER, listening, served

MESSAGES: Any = CHAT["messages"]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "What the weather is like.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
TIME: Any = {"type": "function", "function": {"name": "get_time"}}
TOOLS = [WEATHER, TIME]
ARGUMENTS = '{"city": "Łódź, \\"東京\\"", "a": [1, {"b": "}\\n</tool_call>"}]}'
CALL = '<tool_call>\n{"name": "get_weather", "arguments": %s}\n</tool_call>' % ARGUMENTS  # noqa: UP031  (braces)
SECOND = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'


class Conversation:
    """A server that says one text, and what its template was given."""

    def __init__(
        self, text: str, *, per_step: int = 1, model: ServedModel = MODEL
    ) -> None:
        self.text = text
        self.engine = FakeEngine(
            TOKENIZER.encode_plain(text), per_step=per_step, max_model_len=10**6
        )
        self.messages: Sequence[dict[str, Any]] = ()
        self.tools: Any = None
        self.options: Any = None
        self.end: Any = None
        self.prompt = "Once"
        self.model = dataclasses.replace(model, chat=self._chat)

    def _chat(
        self, messages: Sequence[dict[str, Any]], tools: Any, options: Any, end: Any
    ) -> ChatText:
        self.messages, self.tools, self.options = messages, tools, options
        self.end = end
        return ChatText(self.prompt, plain=False)

    async def answer(self, **fields: Any) -> dict[str, Any]:
        """The one choice, whole."""
        async with self._client() as client:
            answer = await client.chat.completions.create(**_defaults(fields))
        return answer.choices[0].to_dict()

    async def streamed(self, **fields: Any) -> tuple[dict[str, Any], list[Any]]:
        """The one choice, put together by the client; and the deltas."""
        deltas: list[Any] = []
        async with (
            self._client() as client,
            client.chat.completions.stream(**_defaults(fields)) as stream,
        ):
            async for event in stream:
                if event.type == "chunk":
                    deltas += [choice.delta for choice in event.chunk.choices]
            whole = await stream.get_final_completion()
        return whole.choices[0].to_dict(), deltas

    async def begun_arguments(self, before: str, **fields: Any) -> str:
        """What a client reads of a call's arguments while the engine is amid them.

        The engine makes the tokens of the text up to `before`, and no more until the
        client has read some arguments; fails if it does not.
        """
        made = TOKENIZER.encode_plain(self.text.partition(before)[0])
        self.engine.hung, self.engine.hangs_after = threading.Event(), len(made)
        async with (
            self._client() as client,
            client.chat.completions.stream(**_defaults(fields)) as stream,
        ):
            try:
                return await asyncio.wait_for(_first_arguments(stream), timeout=20)
            finally:
                self.engine.hung.set()

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncGenerator[openai.AsyncOpenAI]:
        with (
            served(self.engine, model=self.model) as server,
            listening(server.app) as port,
        ):
            url = f"http://127.0.0.1:{port}/v1"
            options: Any = {"base_url": url, "api_key": "none", "max_retries": 0}
            async with openai.AsyncOpenAI(**options) as client:
                yield client


async def _first_arguments(stream: Any) -> str:
    async for event in stream:
        if event.type == "tool_calls.function.arguments.delta" and event.arguments:
            return event.arguments
    raise AssertionError("the stream ended without arguments")


def _defaults(fields: dict[str, Any]) -> dict[str, Any]:
    return {"model": "tales", "messages": MESSAGES, "tools": TOOLS} | fields


def calls_of(choice: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and arguments."""
    functions = [call["function"] for call in choice["message"]["tool_calls"]]
    return [(function["name"], function["arguments"]) for function in functions]
