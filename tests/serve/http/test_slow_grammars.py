"""Grammars without end hold up neither streams nor innocent grammars."""

import asyncio
import threading
from typing import Any

import httpx2
import pytest

from fdjax.serve.grammar_trial import TRIAL_SECONDS
from fdjax.serve.grammars import Grammars
from tests.support.fake_engine import FakeEngine
from tests.support.http_server import PROMPT, TOKENS, listening, served
from tests.support.quiet import quiet

pytestmark = pytest.mark.anyio


def endless(number: int) -> dict[str, Any]:
    schema = {"type": "integer", "multipleOf": 999_983 + number}
    return PROMPT | {"structured_outputs": {"json": schema}}


def innocent(number: int) -> dict[str, Any]:
    return PROMPT | {"structured_outputs": {"regex": f"a{{{number + 1}}}b*"}}


async def test_innocent_ones_are_served_before_endless_ones_are_refused(
    monkeypatch: pytest.MonkeyPatch,
):
    compile, tried, free = Grammars.compile, list[float](), threading.Event()

    def held(self: Grammars, params: Any, *, cpu_seconds: float, owner: str) -> Any:
        """No endless one is refused before the innocent ones have been served."""
        tried.append(cpu_seconds)
        try:
            return compile(self, params, cpu_seconds=cpu_seconds, owner=owner)
        finally:
            if cpu_seconds > TRIAL_SECONDS[0]:
                assert free.wait(60)

    monkeypatch.setattr(Grammars, "compile", held)
    with (
        served(FakeEngine(TOKENS, step_s=0.005)) as server,
        listening(server.app) as port,
        quiet(port) as beside,
    ):
        url = f"http://127.0.0.1:{port}/v1/completions"
        # Grammars are tried in processes that let all else on the machine go first.
        async with httpx2.AsyncClient(timeout=None) as client:
            with beside.undisturbed():
                bad = [
                    asyncio.create_task(client.post(url, json=endless(i)))
                    for i in range(5)
                ]
                while not any(one > TRIAL_SECONDS[0] for one in tried):
                    await asyncio.sleep(0.001)
                posts = [client.post(url, json=innocent(i)) for i in range(3)]
                good = await asyncio.gather(*posts)
                assert not free.is_set() and not any(task.done() for task in bad)
                free.set()
                refused = await asyncio.gather(*bad)
            again = await client.post(url, json=endless(0))
    assert {answer.status_code for answer in good} == {200}
    assert {answer.status_code for answer in refused} <= {400, 503}
    assert again.status_code == 400
