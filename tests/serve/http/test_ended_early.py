"""Requests that end before their end: when their time is over, or when asked to."""

import asyncio
import dataclasses
import json
import threading
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from fdjax.engine.request import Increment
from tests.support.fake_engine import FakeEngine, FakeSequence
from tests.support.http_server import (
    CHAT,
    LIMITS,
    PROMPT,
    TEXT,
    TOKENIZER,
    TOKENS,
    Served,
    served,
)

pytestmark = pytest.mark.anyio

PATHS = [("/v1/completions", PROMPT), ("/v1/chat/completions", CHAT)]
COMPLETIONS = "/v1/completions"
HOUR = dataclasses.replace(LIMITS, seconds=3600.0)
BEGUN = TOKENIZER.decode(TOKENS[:2])


class Stuck(FakeEngine):
    """Requests with a seed from 10 on make two tokens and no more; from 20 on, none.

    Attributes:
        free: those with a seed of 0, too, make no more than two before it is set.
    """

    def __init__(self) -> None:
        super().__init__(TOKENS, step_s=0.002)
        self.free = threading.Event()

    def _advance(self, sequence: FakeSequence) -> Increment:
        seed = sequence.request.params.seed or 0
        most = {0: None if self.free.is_set() else 2, 1: 2, 2: 0}[seed // 10]
        if sequence.num_made == most:
            return Increment(sequence.request.index, [], None, None)
        return super()._advance(sequence)


def events(response: httpx2.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def an_hour_later() -> None:
    """Whatever waits for an hour has waited: a short time might be over too soon."""
    loop: Any = asyncio.get_running_loop()
    for timer in list(loop._scheduled):
        if not timer.cancelled() and timer.when() > loop.time() + 1800:
            timer._run()
            timer.cancel()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


async def all_gone(server: Served) -> None:
    await until(lambda: not server.engine.sequences and not server.llm.num_unfinished)


# --- Timeouts -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [10, 20], ids=["running", "waiting"])
@pytest.mark.parametrize(("path", "good"), PATHS)
async def test_a_request_that_takes_too_long_ends_alone(
    path: str, good: dict[str, Any], seed: int
):
    engine = Stuck()
    with served(engine) as server:
        others = asyncio.create_task(server.post(path, good))
        await server.all_taken(1)
        server.app.state.server.limits = HOUR
        slow = good | {"seed": seed, "n": 2}
        late = [
            asyncio.create_task(server.post(path, slow | {"stream": stream}))
            for stream in (False, True)
        ]
        await server.all_taken(3)
        an_hour_later()
        response, stream = await asyncio.gather(*late)
        assert not others.done()
        engine.free.set()
        other = await others
        await all_gone(server)
        metrics = (await server.get("/metrics")).text
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "request_timeout"
    assert events(stream)[-1]["error"]["code"] == "request_timeout"
    assert other.status_code == 200
    counted = 'request_failures_total{model_name="tales",reason="request_timeout"} 2.0'
    assert counted in metrics


async def test_a_request_in_time_leaves_no_timer():
    with served(limits=HOUR) as server:
        response = await server.post(COMPLETIONS, PROMPT)
    assert response.json()["choices"][0]["text"] == TEXT
    loop: Any = asyncio.get_running_loop()
    timers = [timer for timer in loop._scheduled if not timer.cancelled()]
    assert all(timer.when() < loop.time() + 1800 for timer in timers)


# --- Aborts ---------------------------------------------------------------------------


async def abort(server: Served, request_id: str, key: str = "first") -> httpx2.Response:
    async with server.client as client:
        return await client.post(
            f"/v1/requests/{request_id}/abort",
            headers={"authorization": f"Bearer {key}"},
        )


async def ask(server: Served, request_id: str, **fields: Any) -> httpx2.Response:
    headers = {"authorization": "Bearer first", "x-request-id": request_id}
    async with server.client as client:
        body = PROMPT | {"seed": 10} | fields
        return await client.post(COMPLETIONS, json=body, headers=headers)


@pytest.mark.parametrize("called", ["mine", "cmpl-mine"])
@pytest.mark.parametrize("stream", [False, True])
async def test_whoever_made_it_ends_a_request(called: str, stream: bool):
    engine = Stuck()
    with served(engine, api_keys=["first", "second"]) as server:
        asked = asyncio.create_task(ask(server, "mine", n=2, stream=stream))
        other = asyncio.create_task(ask(server, "other", seed=0))
        added = engine.added
        await until(
            lambda: (
                len(added) == 3 and all(sequence.num_made >= 2 for sequence in added)
            )
        )
        await server.all_taken(2)
        for wrong in (await abort(server, called, "second"), await abort(server, "x")):
            assert wrong.status_code == 404
            assert wrong.json()["error"]["code"] == "request_not_found"
        done = await abort(server, called)
        assert done.json() == {"id": called, "object": "request", "aborted": True}
        answer = await asked
        engine.free.set()
        assert (await other).json()["choices"][0]["text"] == TEXT
        await all_gone(server)
        assert (await abort(server, called)).status_code == 404, "it has ended"
    if stream:
        choices = [event["choices"][0] for event in events(answer)]
        ends = [one["finish_reason"] for one in choices if one["finish_reason"]]
        texts = ["".join(c["text"] for c in choices if c["index"] == i) for i in (0, 1)]
    else:
        ends = [choice["finish_reason"] for choice in answer.json()["choices"]]
        texts = [choice["text"] for choice in answer.json()["choices"]]
    assert (ends, texts) == (["abort"] * 2, [BEGUN] * 2)


async def test_requests_of_one_id_end_together():
    with served(Stuck(), api_keys=["first"]) as server:
        both = [asyncio.create_task(ask(server, "same")) for _ in range(2)]
        await server.all_taken(2)
        assert (await abort(server, "same")).status_code == 200
        for task in both:
            assert (await task).json()["choices"][0]["finish_reason"] == "abort"


# --- Log-probabilities ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "fields", "count"),
    [
        (COMPLETIONS, {"n": 4, "max_tokens": 6, "logprobs": 4}, 120),
        (COMPLETIONS, {"prompt": ["a"] * 2, "max_tokens": 51, "logprobs": 0}, 102),
        (COMPLETIONS, {"max_tokens": 10**6, "logprobs": 1}, 128),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 1}, 128),
    ],
)
async def test_an_answer_has_so_many_logprobs(
    path: str, fields: dict[str, Any], count: int
):
    limits = dataclasses.replace(LIMITS, logprobs=100)
    good = dict(PATHS)[path]
    with served(limits=limits) as server:
        refused = await server.post(path, good | fields)
        fewer = {"n": 1, "max_tokens": 5}
        assert (await server.post(path, good | fields | fewer)).status_code == 200
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert f"asks for {count} at once" in error["message"]
    assert "at most 100" in error["message"]
    assert error["param"] in ("logprobs", "top_logprobs")
