"""The whole server over the shipped model: the same tokens, and no page lost."""

import asyncio
import dataclasses
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from fdjax import LLM, SamplingParams
from fdjax.engine.limits import QueueLimits
from fdjax.serve.async_llm import AsyncLLM
from fdjax.serve.http.wiring import application

pytestmark = pytest.mark.anyio

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
BODY = {"temperature": 0, "max_tokens": 12}
PROMPTS = ["Once upon a time", "The king said", "In the wood there was an old", "A"]

type Serving = tuple[httpx2.AsyncClient, AsyncLLM]


@pytest.fixture
def serving(llm: LLM) -> Iterator[Serving]:
    app, running = application(
        llm.loaded, names=["tales"], sampling={"temperature": 0.7}
    )
    transport = httpx2.ASGITransport(app)
    yield httpx2.AsyncClient(transport=transport, base_url="http://test"), running
    running.close()


async def test_clients_together_get_what_they_get_alone(llm: LLM, serving: Serving):
    expected = [output.text for output in llm.generate(PROMPTS, GREEDY)]
    client, _ = serving
    requests = [
        client.post("/v1/completions", json=BODY | {"prompt": prompt})
        for prompt in PROMPTS * 4
    ]
    texts = [
        response.json()["choices"][0]["text"]
        for response in await asyncio.gather(*requests)
    ]
    assert texts == expected * 4


async def test_a_chat_works_without_a_template(llm: LLM, serving: Serving):
    (expected,) = llm.generate("Once upon a time", GREEDY)
    messages = [{"role": "user", "content": "Once upon a time"}]
    response = await serving[0].post(
        "/v1/chat/completions", json=BODY | {"messages": messages}
    )
    assert response.json()["choices"][0]["message"]["content"] == expected.text


async def test_an_echo_has_the_log_probabilities_of_its_prompt(
    llm: LLM, serving: Serving
):
    params = dataclasses.replace(GREEDY, logprobs=2, prompt_logprobs=2)
    (expected,) = llm.generate(PROMPTS[0], params)
    assert expected.prompt_logprobs is not None and expected.logprobs is not None
    body = BODY | {"prompt": PROMPTS[0], "echo": True, "logprobs": 2}
    whole = (await serving[0].post("/v1/completions", json=body)).json()["choices"][0]
    logprobs = whole["logprobs"]
    assert whole["text"] == PROMPTS[0] + (expected.text or "")
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    told = [*expected.prompt_logprobs[1:], *expected.logprobs]
    assert all(one is not None for one in told)
    close = pytest.approx([one and one.logprob for one in told], abs=1e-4)
    assert logprobs["token_logprobs"][1:] == close
    assert {len(top) for top in logprobs["top_logprobs"][1:]} <= {2, 3}
    assert len(logprobs["tokens"]) == len(told) + 1
    (first, *tokens), (begin, *offsets) = logprobs["tokens"], logprobs["text_offset"]
    assert (first, begin) == ("<s>", 0), "the text does not have it"
    for token, offset in zip(tokens, offsets, strict=True):
        assert whole["text"][offset:].startswith(token)
    response = await serving[0].post("/v1/completions", json=body | {"stream": True})
    events = [json.loads(line[6:]) for line in response.text.split("\n\n")[:-2]]
    choices = [event["choices"][0] for event in events]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    pieces = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    assert [token for piece in pieces for token in piece["tokens"]] == logprobs[
        "tokens"
    ]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_prompt_has_its_log_probabilities_and_ids(
    llm: LLM, serving: Serving, path: str
):
    params = dataclasses.replace(GREEDY, prompt_logprobs=2)
    (expected,) = llm.generate(PROMPTS[0], params)
    assert expected.prompt_logprobs is not None
    turns = [{"role": "user", "content": PROMPTS[0]}]
    prompt = {"messages": turns} if "chat" in path else {"prompt": PROMPTS[0]}
    asked = {"prompt_logprobs": 2, "return_token_ids": True}
    answer = (await serving[0].post(path, json=BODY | prompt | asked)).json()
    (choice,) = answer["choices"]
    about = answer if "chat" in path else choice
    assert about["prompt_token_ids"] == [*expected.prompt_token_ids]
    assert choice["token_ids"] == expected.token_ids
    begin, *scores = about["prompt_logprobs"]
    assert begin is None
    for token, one, told in zip(
        expected.prompt_token_ids[1:], expected.prompt_logprobs[1:], scores, strict=True
    ):
        assert one is not None
        assert told[str(token)]["logprob"] == pytest.approx(one.logprob, abs=1e-4)
        ranked = {told[str(other)]["rank"]: other for other in one.top}
        assert ranked == dict(enumerate(one.top, start=1))


async def test_a_long_text_is_cut(llm: LLM, serving: Serving):
    text = "the fox and the owl " * 50
    cut = BODY | {"prompt": text, "truncate_prompt_tokens": -1, "max_tokens": 4}
    response = await serving[0].post("/v1/completions", json=cut)
    usage = response.json()["usage"]
    assert usage["total_tokens"] == llm.engine.plan.max_model_len


async def test_cancelled_requests_leave_no_page_behind(llm: LLM, serving: Serving):
    _, running = serving
    long = SamplingParams(max_tokens=100, ignore_eos=True)

    async def read(prompt: str) -> None:
        async for _ in running.generate(prompt, long):
            pass

    tasks = [asyncio.create_task(read(f"The fox {i}")) for i in range(20)]
    while not running.num_made:
        await asyncio.sleep(0.001)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    async with asyncio.timeout(60):
        while running.num_unfinished:
            await asyncio.sleep(0.01)
    (output,) = [chunk async for chunk in running.generate([5], GREEDY)][-1:]
    assert output.finish_reason is not None
    pool = llm.engine.scheduler.pool
    assert pool.num_free == pool.num_pages


async def test_a_full_queue_is_told_and_empties(
    llm: LLM, serving: Serving, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(llm.engine, "limits", QueueLimits(requests=2))
    client, running = serving
    step, free = llm.engine.step, threading.Event()

    def held() -> Any:
        assert free.wait(60)
        return step()

    monkeypatch.setattr(llm.engine, "step", held)
    body = BODY | {"prompt": "Once", "max_tokens": 100, "ignore_eos": True}
    requests = [
        asyncio.create_task(client.post("/v1/completions", json=body))
        for _ in range(24)
    ]
    await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
    free.set()
    answers = await asyncio.gather(*requests)
    assert {answer.status_code for answer in answers} == {200, 503}
    for answer in answers:
        if answer.status_code == 503:
            assert answer.json()["error"]["code"] == "queue_full"
            assert answer.headers["retry-after"] == "1"
    assert running.num_unfinished == 0
    assert (await client.post("/v1/completions", json=body)).status_code == 200


async def test_queued_tokens_are_limited_too(
    llm: LLM, serving: Serving, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(llm.engine, "limits", QueueLimits(samples=2, tokens=70))
    client, running = serving
    for body, param, message in (
        (
            {"prompt": [5] * 40, "n": 2},
            "prompt",
            "80 tokens .* max_queued_tokens is 70",
        ),
        ({"prompt": "Once", "n": 3}, "n", "3 samples .* max_queued_samples is 2"),
    ):
        refused = await client.post("/v1/completions", json=BODY | body)
        assert refused.status_code == 400, "it is no matter of trying again"
        assert refused.json()["error"]["param"] == param
        assert re.search(message, refused.json()["error"]["message"])
    assert running.num_unfinished == 0, "all samples of a request, or none"
    served = await client.post(
        "/v1/completions", json=BODY | {"prompt": [5] * 30, "n": 2}
    )
    assert served.status_code == 200


async def test_a_prompt_beyond_the_model_is_refused(serving: Serving):
    client, _ = serving
    response = await client.post("/v1/completions", json={"prompt": [5] * 128})
    assert response.status_code == 400
    assert "max_model_len is 128" in response.json()["error"]["message"]
