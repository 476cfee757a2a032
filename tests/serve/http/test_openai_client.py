"""OpenAI's own client, over a real connection: answers, streams, and typed errors."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import openai
import pytest
from openai.types import CompletionUsage
from openai.types.completion_usage import PromptTokensDetails

from tests.support.fake_engine import MAX_MODEL_LEN, FakeEngine
from tests.support.http_server import (
    TEXT,
    TOKENIZER,
    TOKENS,
    Served,
    listening,
    served,
)

pytestmark = pytest.mark.anyio

MESSAGES: Any = [{"role": "user", "content": "Once"}]
USAGE = CompletionUsage(
    prompt_tokens=len(TOKENIZER.encode("Once")),
    completion_tokens=len(TOKENS),
    total_tokens=len(TOKENIZER.encode("Once")) + len(TOKENS),
    prompt_tokens_details=PromptTokensDetails(cached_tokens=1),
)

type Connected = tuple[openai.AsyncOpenAI, Served]


def client_of(port: int, **options: Any) -> openai.AsyncOpenAI:
    options = {"api_key": "secret", "max_retries": 0} | options
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", **options)


@pytest.fixture
async def connected(request: pytest.FixtureRequest) -> AsyncGenerator[Connected]:
    """A client, and what it talks to; the parameter is the engine."""
    engine = getattr(request, "param", FakeEngine)
    with (
        served(engine(TOKENS), api_keys=["secret"]) as server,
        listening(server.app) as port,
    ):
        async with client_of(port) as client:
            yield client, server


async def test_the_models_are_listed(connected: Connected):
    models = [model async for model in connected[0].models.list()]
    assert [model.id for model in models] == ["tales", "tales-5m"]
    assert models[0].object == "model"


async def test_a_completion(connected: Connected):
    client, server = connected
    answer = await client.completions.create(
        model="tales",
        prompt="Once",
        max_tokens=32,
        n=2,
        seed=3,
        logprobs=2,
        temperature=0.5,
        logit_bias={"7": -5},
    )
    assert [choice.text for choice in answer.choices] == [TEXT] * 2
    assert [choice.finish_reason for choice in answer.choices] == ["stop"] * 2
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.tokens is not None
    assert "".join(logprobs.tokens) == TEXT
    assert logprobs.token_logprobs == [-0.5] * len(TOKENS)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2 * len(TOKENS)
    params = [sequence.request.params for sequence in server.engine.added]
    assert [one.seed for one in params] == [3, 4]
    assert (params[0].temperature, params[0].logit_bias) == (0.5, {7: -5.0})


async def test_a_streamed_completion(connected: Connected):
    stream = await connected[0].completions.create(
        model="tales",
        prompt="Once",
        max_tokens=32,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.text for chunk in chunks for c in chunk.choices) == TEXT
    assert [chunk.usage for chunk in chunks] == [None] * (len(chunks) - 1) + [USAGE]


async def test_a_stop_string(connected: Connected):
    answer = await connected[0].completions.create(
        model="tales", prompt="Once", max_tokens=32, stop=["ime the", "no such"]
    )
    assert answer.choices[0].text == " upon a t"
    assert answer.choices[0].finish_reason == "stop"


async def test_a_chat(connected: Connected):
    answer = await connected[0].chat.completions.create(
        model="tales", messages=MESSAGES, logprobs=True, top_logprobs=2, n=2
    )
    assert [choice.message.content for choice in answer.choices] == [TEXT] * 2
    assert answer.choices[0].message.role == "assistant"
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert [len(entry.top_logprobs) for entry in logprobs.content] == [2] * len(TOKENS)


async def test_the_helper_for_streamed_chats_makes_it_whole(connected: Connected):
    async with connected[0].chat.completions.stream(
        model="tales", messages=MESSAGES, stream_options={"include_usage": True}
    ) as stream:
        texts = [event.delta async for event in stream if event.type == "content.delta"]
        whole = await stream.get_final_completion()
    assert "".join(texts) == TEXT
    assert whole.choices[0].message.content == TEXT
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage == USAGE


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"prompt": [4096]}, "prompt"),
        ({"prompt": [1] * MAX_MODEL_LEN}, "prompt"),
        ({"best_of": 2}, "best_of"),
        ({"n": 5}, "n"),
    ],
    ids=str,
)
async def test_what_is_wrong_with_a_request_is_typed(
    connected: Connected, given: dict[str, Any], param: str
):
    fields: dict[str, Any] = {"model": "tales", "prompt": "Once"} | given
    with pytest.raises(openai.BadRequestError) as caught:
        await connected[0].completions.create(**fields)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


async def test_a_model_that_is_not_there(connected: Connected):
    with pytest.raises(openai.NotFoundError) as caught:
        await connected[0].completions.create(model="gpt", prompt="Once")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


async def test_a_wrong_key(connected: Connected):
    with pytest.raises(openai.AuthenticationError) as caught:
        await connected[0].with_options(api_key="wrong").models.list()
    assert caught.value.code == "invalid_api_key"


@pytest.mark.parametrize(
    "connected", [lambda tokens: FakeEngine(tokens, fails_at=3)], indirect=True
)
async def test_an_engine_that_dies_ends_the_stream_with_an_error(connected: Connected):
    client, _ = connected
    stream = await client.completions.create(
        model="tales", prompt="Once", max_tokens=32, stream=True
    )
    texts: list[str] = []
    with pytest.raises(openai.APIError) as caught:
        async for chunk in stream:
            texts.append(chunk.choices[0].text)
    assert "".join(texts) == TEXT[: len("".join(texts))] != ""
    assert caught.value.code == "engine_dead"
    with pytest.raises(openai.InternalServerError) as again:
        await client.completions.create(model="tales", prompt="Once")
    assert (again.value.status_code, again.value.code) == (503, "engine_dead")


@pytest.mark.parametrize(
    "connected", [lambda tokens: FakeEngine(tokens, max_sequences=0)], indirect=True
)
async def test_a_full_queue_is_tried_again_by_itself(connected: Connected):
    client, server = connected
    later = asyncio.get_running_loop().call_later
    later(0.2, lambda: setattr(server.engine, "max_sequences", 1))
    answer = await client.with_options(max_retries=2).completions.create(
        model="tales", prompt="Once", max_tokens=32
    )
    assert answer.choices[0].text == TEXT
