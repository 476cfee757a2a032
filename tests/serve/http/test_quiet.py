"""The quiet clients notice a server that stands still, and one that does not."""

import asyncio
import time
from collections.abc import Iterator

import httpx2
import pytest
from fastapi import FastAPI

from tests.support import quiet as quiet_module
from tests.support.fake_engine import FakeEngine
from tests.support.http_server import TOKENS, listening, served
from tests.support.quiet import BUSY_S, Quiet, quiet


@pytest.fixture(scope="module")
def app() -> Iterator[FastAPI]:
    with served(FakeEngine(TOKENS, step_s=0.002)) as server:

        @server.app.get("/stall/{seconds}")
        async def _stall(seconds: float) -> None:
            time.sleep(seconds)

        @server.app.get("/wait")
        async def _wait() -> None:
            await asyncio.sleep(1)

        yield server.app


@pytest.fixture(scope="module")
def port(app: FastAPI) -> Iterator[int]:
    with listening(app) as port:
        yield port


@pytest.fixture(scope="module")
def beside(port: int) -> Iterator[Quiet]:
    with quiet(port) as clients:
        yield clients


def ask(port: int, path: str) -> None:
    response = httpx2.get(f"http://127.0.0.1:{port}{path}", timeout=60)
    assert response.status_code == 200


def test_one_who_waits_disturbs_nobody(port: int, beside: Quiet):
    with beside.undisturbed():
        ask(port, "/wait")


def test_one_who_stands_still_is_noticed(
    port: int, beside: Quiet, monkeypatch: pytest.MonkeyPatch
):
    # Else a pause of the machine just before would allow for twenty times as much.
    monkeypatch.setattr(quiet_module, "FACTOR", 0)
    with pytest.raises(AssertionError, match="stood still"), beside.undisturbed():
        ask(port, f"/stall/{2 * BUSY_S}")
