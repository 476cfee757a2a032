"""The model of the package in a process of its own, and the same in this one."""

import asyncio
import contextlib
import dataclasses
import json
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import jax
import pytest
from fastapi import FastAPI

from fdjax import LLM, AsyncLLM, SamplingParams
from fdjax.cli import engine_apart
from fdjax.cli.options import ModelOptions
from fdjax.cli.served_model import ServedOptions
from fdjax.cli.start_times import StartTimes
from fdjax.engine.origin import Origin
from fdjax.errors import QuotaError
from fdjax.serve.apart.loaded import LoadedApart
from fdjax.serve.http.keyring import Keyring
from fdjax.serve.http.wiring import application
from tests.support.fake_apart import launched
from tests.support.http_server import listening
from tests.support.standing_apart import LONG_TOKENS, SOME_TOKENS

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        jax.default_backend() != "cpu", reason="two processes share no GPU's memory"
    ),
]

LIMITS: dict[str, Any] = {"max_num_seqs": 4, "max_model_len": 256}
PROMPT = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}
DRAWN = PROMPT | {"temperature": 1.0, "seed": 7}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}}
ENDLESS = {"max_tokens": LONG_TOKENS, "ignore_eos": True}
BEAMS = {"use_beam_search": True, "n": 3, "temperature": 0}


@pytest.fixture(scope="module")
def loaded() -> Iterator[LoadedApart]:
    options = ServedOptions(
        dataclasses.replace(ModelOptions(), **LIMITS),
        {"max_queued_samples": 40},
        warm_up=False,
        keeps_programs=False,
        programs_folder=None,
        log_format="text",
        debug=True,
    )
    with contextlib.ExitStack() as stack:
        process = launched("tests.support.standing_apart")
        stack.callback(process.end)
        loaded, _ = engine_apart.loaded(process, options, StartTimes())
        yield loaded


@pytest.fixture(scope="module")
def here() -> Iterator[FastAPI]:
    llm = LLM(**LIMITS, max_queued_samples=40)
    app, serving = application(llm.loaded, names=["tales"], sampling={})
    yield app
    serving.close()


@pytest.fixture(scope="module")
def there(loaded: LoadedApart) -> Iterator[tuple[FastAPI, AsyncLLM]]:
    app, serving = application(loaded, names=["tales"], sampling={})
    yield app, serving
    assert serving.close(seconds=20)


def client(app: FastAPI) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url="http://test", timeout=120)


async def posted(app: FastAPI, path: str, body: Any) -> tuple[int, Any]:
    """The status, and the answer without what is each one's own."""
    async with client(app) as one:
        answer = await one.post(f"/v1/{path}", json=body)
    told = answer.json()
    return answer.status_code, {
        name: value for name, value in told.items() if name not in ("id", "created")
    }


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", PROMPT),
        ("completions", DRAWN),
        ("completions", DRAWN | {"n": 3, "stop": ["."]}),
        ("completions", DRAWN | {"logprobs": 3, "prompt_logprobs": 2}),
        ("completions", DRAWN | {"prompt": ["Once", "There was"], "echo": True}),
        ("completions", DRAWN | {"bad_words": ["the"], "logit_bias": {"5": 2}}),
        ("completions", PROMPT | BEAMS),
        ("completions", PROMPT | BEAMS | {"stop": ["."], "logprobs": 1}),
        ("completions", PROMPT | {"structured_outputs": {"json": SCHEMA}}),
        ("completions", PROMPT | {"structured_outputs": {"choice": ["one", "two"]}}),
        ("embeddings", {"input": ["Once", "There was a fox"]}),
        ("embeddings", {"input": "Once", "dimensions": 8}),
    ],
)
async def test_the_same_answer(
    here: FastAPI, there: tuple[FastAPI, AsyncLLM], path: str, body: dict[str, Any]
):
    expected = await posted(here, path, body)
    assert expected[0] == 200
    assert await posted(there[0], path, body) == expected


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", PROMPT | {"prompt": [2**70]}),
        ("completions", PROMPT | {"prompt": [4096]}),
        ("completions", PROMPT | {"prompt": [5] * 300}),
        ("completions", PROMPT | {"prompt": []}),
        ("completions", PROMPT | BEAMS | {"n": 5}),
        ("completions", PROMPT | {"n": 64}),
        ("completions", PROMPT | {"logit_bias": {"5000": 1}}),
        ("completions", PROMPT | {"structured_outputs": {"regex": "(("}}),
        ("embeddings", {"input": "Once", "dimensions": 4096}),
    ],
)
async def test_the_same_refusal(
    here: FastAPI, there: tuple[FastAPI, AsyncLLM], path: str, body: dict[str, Any]
):
    """By the front, by the engine, and by the trial of a grammar."""
    expected = await posted(here, path, body)
    assert expected[0] == 400
    assert await posted(there[0], path, body) == expected


async def test_streams_of_many_at_once(here: FastAPI, there: tuple[FastAPI, AsyncLLM]):
    bodies = [DRAWN | {"seed": seed, "max_tokens": 40} for seed in range(12)]
    asked = (posted(here, "completions", one) for one in bodies)
    expected = [told["choices"][0]["text"] for _, told in await asyncio.gather(*asked)]
    texts = await asyncio.gather(*(streamed(there[0], one) for one in bodies))
    assert texts == expected


async def streamed(app: FastAPI, body: dict[str, Any]) -> str:
    async with client(app) as one:
        answer = await one.post("/v1/completions", json=body | {"stream": True})
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines)


async def test_who_leaves_ends_the_request(there: tuple[FastAPI, AsyncLLM]):
    app, serving = there
    body = PROMPT | ENDLESS | {"stream": True, "n": 2}
    with listening(app) as port:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as one:
            async with one.stream("POST", "/v1/completions", json=body) as answer:
                await anext(answer.aiter_bytes())
            async with asyncio.timeout(60):
                while await metric(one, "num_requests_unfinished"):
                    await asyncio.sleep(0.01)
                while await metric(one, "num_requests_running"):
                    await asyncio.sleep(0.01)
    assert serving.is_running


async def metric(one: httpx2.AsyncClient, name: str) -> float:
    text = (await one.get("/metrics")).text
    (line,) = (each for each in text.splitlines() if each.startswith(f"fdjax:{name}{{"))
    return float(line.split()[-1])


async def test_metrics_are_those_of_the_engine(there: tuple[FastAPI, AsyncLLM]):
    app, _ = there
    async with client(app) as one:
        before = await metric(one, "generation_tokens_total")
        told = (await one.post("/v1/completions", json=DRAWN)).json()
        made = await metric(one, "generation_tokens_total") - before
        assert made == told["usage"]["completion_tokens"]
        assert await metric(one, "num_requests_running") == 0
        assert await metric(one, "prefix_cache_queries_total") > 0


@pytest.fixture
def keyed(loaded: LoadedApart, tmp_path: pathlib.Path) -> Iterator[FastAPI]:
    """Another application over the same engine, with a key of few tokens."""
    file = tmp_path / "keys.toml"
    file.touch(mode=0o600)
    file.write_text('[keys.a]\nkey = "a"\ntokens_per_minute = 30\n')
    keyring = Keyring(file=file)
    app, serving = application(loaded, names=["tales"], sampling={}, keyring=keyring)
    yield app
    assert serving.texts is not None
    serving.texts.close()


async def test_a_search_is_charged_for_its_beams_while_it_runs(
    keyed: FastAPI, there: tuple[FastAPI, AsyncLLM]
):
    """And not for what it has not computed when it is aborted."""
    del there  # which closes the engine, later
    width, counted = BEAMS["n"], "key_generation_tokens_total"
    search = PROMPT | BEAMS | ENDLESS
    named = {"x-request-id": "mine"}
    async with client(keyed) as one:
        one.headers["authorization"] = "Bearer a"
        searching = asyncio.create_task(
            one.post("/v1/completions", json=search, headers=named)
        )
        async with asyncio.timeout(60):
            while await metric(one, counted) < SOME_TOKENS:
                await asyncio.sleep(0.001)
        refused = await one.post("/v1/completions", json=PROMPT)
        aborted = await one.post("/v1/requests/mine/abort")
        assert (refused.status_code, aborted.status_code) == (429, 200)
        answer = (await searching).json()
        assert answer["usage"]["completion_tokens"] == 0
        assert {one["finish_reason"] for one in answer["choices"]} == {"abort"}
        charged = await metric(one, counted)
        assert SOME_TOKENS <= charged < LONG_TOKENS * width and charged % width == 0


LONG = SamplingParams(max_tokens=LONG_TOKENS, ignore_eos=True)


async def test_a_tenant_has_its_rows_and_its_priorities(
    there: tuple[FastAPI, AsyncLLM],
):
    """Of three with a row for one, the engine lets in whoever has the lowest number."""
    _, serving = there
    origins = [Origin(tenant="a", max_running=1, priority=p) for p in (0, 5, 1)]
    streams = [(await serving.start([[5]], LONG, one))[0] for one in origins]
    await anext(streams[0])
    await serving.look()
    assert serving.statistics().tenants == {"a": (1, 2)}
    streams[0].close()
    await anext(streams[2])
    await serving.look()
    assert serving.statistics().tenants == {"a": (1, 1)}
    quota = Origin(tenant="a", max_running=1, max_queued=1)
    with pytest.raises(QuotaError, match="of 'a' is 1, of which 1 wait"):
        await serving.start([[5]], LONG, quota)
    for stream in streams[1:]:
        stream.close()


async def test_a_deadline_ends_the_request(
    there: tuple[FastAPI, AsyncLLM], monkeypatch: pytest.MonkeyPatch
):
    _, serving = there
    loop, later_s = asyncio.get_running_loop(), 0.0
    monkeypatch.setattr(loop, "time", lambda: time.monotonic() + later_s)
    (stream,) = await serving.start([[5]], LONG, seconds=999.5)
    chunks = [await anext(stream)]
    later_s = 1000.0
    async with asyncio.timeout(60):
        chunks += [chunk async for chunk in stream]
    assert chunks[-1].failure is not None
    assert chunks[-1].failure.code == "request_timeout"
    async with asyncio.timeout(60):
        while serving.statistics().num_running:
            await serving.look()
