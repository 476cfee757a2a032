"""`/v1/responses`: by OpenAI's client, whole and as typed events."""

import contextlib
import dataclasses
import json
from collections.abc import AsyncGenerator
from typing import Any

import openai
import pydantic
import pytest

from fdjax import LLM
from fdjax.serve.http.server import ServedModel
from fdjax.serve.http.wiring import application
from fdjax.serve.turns.turns import Turns
from tests.support.conversation import ARGUMENTS, CALL, SECOND, TIME, Conversation
from tests.support.conversation import WEATHER as CHAT_WEATHER
from tests.support.fake_engine import FakeEngine
from tests.support.http_server import (
    MODEL,
    TEXT,
    TOKENIZER,
    TOKENS,
    listening,
    served,
)

pytestmark = pytest.mark.anyio

PATH = "/v1/responses"
WEATHER: Any = {"type": "function", "strict": False} | CHAT_WEATHER["function"]
REASONING = dataclasses.replace(
    MODEL,
    turns=Turns(TOKENIZER, tool_call_parser="hermes", reasoning_parser="qwen3"),
)


class Told(Conversation):
    """A server that says one text, and OpenAI's client of it."""

    def __init__(
        self, text: str, *, per_step: int = 1, model: ServedModel = MODEL
    ) -> None:
        super().__init__(text, per_step=per_step, model=model)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncGenerator[openai.AsyncOpenAI]:
        async with self._client() as client:
            yield client

    async def create(self, **fields: Any) -> Any:
        async with self.client() as client:
            given: Any = {"model": "tales", "input": "Once"} | fields
            return await client.responses.create(**given)

    async def stream(self, **fields: Any) -> tuple[Any, list[Any]]:
        """The response that the client puts together, and the events."""
        events: list[Any] = []
        given: Any = {"model": "tales", "input": "Once"} | fields
        async with (
            self.client() as client,
            client.responses.stream(**given) as stream,
        ):
            async for event in stream:
                events.append(event)
            return await stream.get_final_response(), events


async def test_a_text():
    conversation = Told(TEXT)
    response = await conversation.create(instructions="Be kind.", temperature=0.5)
    assert (response.object, response.status) == ("response", "completed")
    assert response.output_text == TEXT
    assert response.store is False and response.temperature == 0.5
    (message,) = response.output
    assert (message.type, message.role, message.status) == (
        "message",
        "assistant",
        "completed",
    )
    assert [*conversation.messages] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Once"},
    ]
    prompt = len(TOKENIZER.encode("Once"))
    assert response.usage.input_tokens == prompt
    assert response.usage.output_tokens == len(TOKENS)
    assert response.usage.total_tokens == prompt + len(TOKENS)
    assert response.usage.input_tokens_details.cached_tokens == 1


@pytest.mark.usefixtures("apart")
async def test_a_text_as_events():
    response, events = await Told(TEXT).stream()
    assert response.output_text == TEXT and response.status == "completed"
    assert [event.sequence_number for event in events] == [*range(len(events))]
    kinds = [event.type for event in events]
    count = kinds.count("response.output_text.delta")
    assert count == len(TOKENS)
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * count,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert events[0].response.output == [] and events[0].response.usage is None
    assert events[2].item.content == []
    ids = {e.item_id for e in events if hasattr(e, "item_id")}
    assert ids == {response.output[0].id}


async def test_the_bytes_of_events():
    with served(FakeEngine(TOKENS)) as server:
        answer = await server.post(PATH, {"input": "Once", "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    first, *_ = answer.text.split("\n\n")
    name, data = first.split("\n")
    assert name == "event: response.created"
    assert data.startswith('data: {"type":"response.created"')
    assert "[DONE]" not in answer.text


@pytest.mark.parametrize("per_step", [1, 1000])
async def test_calls_and_reasoning(per_step: int):
    text = f"<think>Hm.</think>Let me see.\n\n{CALL}\n{SECOND}"
    tools = [WEATHER, {"type": "function"} | TIME["function"]]

    def told() -> Told:
        return Told(text, per_step=per_step, model=REASONING)

    whole = await told().create(tools=tools)
    streamed, events = await told().stream(tools=tools)
    for response in (whole, streamed):
        kinds = [item.type for item in response.output]
        assert kinds == ["reasoning", "message", "function_call", "function_call"]
        thought, message, weather, time = response.output
        assert thought.content[0].text == "Hm."
        assert message.content[0].text == "Let me see."
        assert (weather.name, weather.arguments) == ("get_weather", ARGUMENTS)
        assert (time.name, time.arguments) == ("get_time", "{}")
        assert weather.call_id != time.call_id and weather.status == "completed"
        assert response.usage.output_tokens_details.reasoning_tokens > 0
    assert whole.tools[0].name == "get_weather" and whole.tool_choice == "auto"
    kinds = [event.type for event in events]
    assert kinds.count("response.function_call_arguments.done") == 2
    assert "response.reasoning_text.delta" in kinds
    added = [e for e in events if e.type == "response.output_item.added"]
    done = [e for e in events if e.type == "response.output_item.done"]
    assert [e.output_index for e in added] == [0, 1, 2, 3]
    assert [e.output_index for e in done] == [0, 1, 2, 3]


async def test_a_conversation_goes_on():
    """The output of one response, and what came of its call, are the next input."""
    first = await Told(f"<think>Hm.</think>Well.{CALL}", model=REASONING).create(
        tools=[WEATHER]
    )
    conversation = Told(TEXT, model=REASONING)
    call = first.output[-1]
    items: list[Any] = [{"role": "user", "content": "Rain?"}]
    items += [item.to_dict() for item in first.output]
    items += [
        {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."},
        {"role": "user", "content": [{"type": "input_text", "text": "So?"}]},
    ]
    await conversation.create(input=items, tools=[WEATHER])
    user, turn, tool, last = conversation.messages
    assert user == {"role": "user", "content": "Rain?"}
    assert (turn["content"], turn["reasoning"]) == ("Well.", "Hm.")
    (made,) = turn["tool_calls"]
    assert made["function"]["arguments"] == json.loads(ARGUMENTS)
    assert tool == {"role": "tool", "content": "Sunny.", "tool_call_id": call.call_id}
    assert last == {"role": "user", "content": "So?"}
    assert conversation.tools == [CHAT_WEATHER]


async def test_an_answer_that_meets_its_limit():
    response = await Told(TEXT).create(max_output_tokens=3)
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"
    conversation = Told(TEXT)
    async with conversation.client() as client:
        events = [
            event
            async for event in await client.responses.create(
                model="tales", input="Once", max_output_tokens=3, stream=True
            )
        ]
    assert events[-1].type == "response.incomplete"


class Way(pydantic.BaseModel):
    way: bool


async def test_the_form_of_the_text(llm: LLM):
    app, running = application(llm.loaded, names=["tales"], sampling={})
    tool: Any = {
        "type": "function",
        "name": "walk",
        "parameters": {
            "type": "object",
            "properties": {"way": {"enum": ["north", "south"]}},
            "required": ["way"],
        },
    }
    llm.engine.reset()
    with listening(app) as port:
        url = f"http://127.0.0.1:{port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            given: Any = {"model": "tales", "input": "Once"}
            parsed = await client.responses.parse(text_format=Way, **given)
            called = await client.responses.create(
                tools=[tool], tool_choice={"type": "function", "name": "walk"}, **given
            )
    running.close()
    assert isinstance(parsed.output_parsed, Way)
    (call,) = called.output
    assert call.type == "function_call" and call.name == "walk"
    assert json.loads(call.arguments)["way"] in ("north", "south")


async def test_a_stream_that_fails_says_so():
    conversation = Told(TEXT)
    conversation.engine.fails_at = 3
    async with conversation.client() as client:
        events = [
            event
            async for event in await client.responses.create(
                model="tales", input="Once", stream=True
            )
        ]
    assert events[-1].type == "response.failed"
    assert events[-1].response.status == "failed"
    assert events[-1].response.error is not None
    assert events[-1].response.error.code == "engine_dead"


CALLED = {"type": "function_call", "call_id": "a", "name": "b"}


@pytest.mark.parametrize(
    ("given", "param", "said"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "nothing is sto"),
        ({"conversation": "conv_1"}, "conversation", "nothing is stored"),
        ({"background": True}, "background", "nothing is stored"),
        ({"background": 0}, "background", "give true or false"),
        ({"prompt": {"id": "a"}}, "prompt", "nothing is stored"),
        ({"n": 2}, "n", "not supported"),
        ({"input": None}, "input", "give a text, or a list"),
        ({"input": []}, "input", "give a text, or a list"),
        ({"input": ["a"]}, "input", "input[0] is 'a'"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input", "nothing is"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input", "input[0].role"),
        ({"input": [{"role": "user"}]}, "input", "input[0].content is None"),
        ({"input": [{"role": "user", "content": "a", "b": 1}]}, "input", "[0].b is"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input",
            "'input_image'; give input_text only",
        ),
        ({"input": [CALLED]}, "input", "input[0].arguments must be a text"),
        ({"input": "word " * 100}, "input", "max_model_len"),
        ({"input": [{"role": "user", "content": "a"}] * 5000}, "input", "5000 entries"),
        ({"temperature": 200}, "temperature", "temperature is 200"),
        ({"max_output_tokens": 0}, "max_output_tokens", "greater than or equal"),
        ({"tools": [{"type": "web_search"}]}, "tools", "only 'function' is served"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools", "'a b'"),
        ({"tool_choice": "required"}, "tool_choice", "give some"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice", "only 'function'"),
        ({"text": {"format": {"type": "xml"}}}, "text", "must be one of"),
        ({"text": {"format": {"type": "json_schema"}}}, "text", "must be a JSON sch"),
        ({"text": {"verbosity": "low"}}, "text", "verbosity is not served"),
        ({"top_logprobs": 2}, "top_logprobs", "0"),
        ({"top_logprobs": False}, "top_logprobs", "give a number"),
        ({"include": ["message.output_text.logprobs"]}, "include", "encrypted_con"),
        ({"truncation": "auto"}, "truncation", "disabled"),
        ({"reasoning": {"effort": "huge"}}, "reasoning", "reasoning.effort"),
        ({"metadata": 3}, "metadata", "dictionary"),
        ({"priority": 2}, "priority", "only 0"),
        ({"model": "gpt"}, "model", "not served"),
    ],
    ids=str,
)
async def test_what_is_wrong_is_named(given: dict[str, Any], param: str, said: str):
    with served() as server:
        response = await server.post(PATH, {"input": "Once"} | given)
    assert response.status_code == (404 if "model" in given else 400), response.text
    error = response.json()["error"]
    assert said in error["message"], error["message"]
    assert error["param"] == param


async def test_what_needs_no_state_is_taken():
    with served() as server:
        fine = {"previous_response_id": None, "background": False, "store": True}
        fine |= {"include": ["reasoning.encrypted_content"], "max_tool_calls": None}
        fine |= {"reasoning": {"effort": "low", "summary": "auto"}}
        response = await server.post(PATH, {"input": "Once"} | fine)
    assert response.status_code == 200
    assert response.json()["store"] is False
    assert response.json()["reasoning"] == {"effort": "low", "summary": None}
