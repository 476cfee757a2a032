"""Crowds of samples that come and leave, beside a quiet stream of one."""

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from fdjax import LLM, SamplingParams
from fdjax.serve.async_llm import AsyncLLM
from fdjax.serve.http.keyring import Keyring
from fdjax.serve.http.wiring import application
from tests.support.http_server import listening
from tests.support.quiet import quiet
from tests.support.waiting import wait_until

CROWD = {"prompt": [[5] * 60] * 2, "n": 128, "stream": True, "ignore_eos": True}
NUM_CLIENTS = 4

type Serving = tuple[int, AsyncLLM]


@pytest.fixture(scope="module")
def warm(llm: LLM) -> LLM:
    """One that compiles nothing any more, which would hold up everybody."""
    llm.warm_up([SamplingParams(), SamplingParams(temperature=0)])
    return llm


@pytest.fixture
def serving(warm: LLM) -> Iterator[Serving]:
    keyring = Keyring(may_prioritise=True)
    app, running = application(
        warm.loaded, names=["tales"], sampling={}, keyring=keyring
    )
    with listening(app) as port:
        yield port, running
    running.close()


def test_a_crowd_that_comes_and_leaves_holds_up_nobody(
    warm: LLM, serving: Serving, monkeypatch: pytest.MonkeyPatch
):
    port, running = serving
    step = warm.engine.step

    def slow() -> Any:  # else a fast machine might have served them before they leave
        time.sleep(0.005)
        return step()

    monkeypatch.setattr(warm.engine, "step", slow)
    with quiet(port) as beside:
        with beside.undisturbed(), contextlib.ExitStack() as stack:
            for _ in range(NUM_CLIENTS):
                client = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
                stack.enter_context(client)
                request = client.stream("POST", "/v1/completions", json=CROWD)
                assert stack.enter_context(request).status_code == 200
            assert running.statistics().num_waiting > 500
            beside.go_on(32)
        wait_until(lambda: running.num_unfinished <= 1)


def test_those_who_are_always_urgent_stop_nobody(serving: Serving):
    """They ask again as soon as they have their answers, as long as others do not."""
    port, _ = serving
    ending = threading.Event()
    body = {"prompt": [6], "n": 4, "max_tokens": 8, "priority": -(2**31)}

    def ask() -> None:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            while not ending.is_set():
                assert client.post("/v1/completions", json=body).status_code == 200

    with quiet(port, body={"max_tokens": 8}) as beside, ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(ask) for _ in range(6)]
        try:
            beside.go_on(48)
        finally:
            ending.set()
        for one in asked:
            one.result()
