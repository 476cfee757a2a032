"""`fdjax serve` ends: told under load, and by an engine that hangs."""

import asyncio
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from typing import Any

import httpx2
import pytest

pytestmark = pytest.mark.anyio

FAKE = (sys.executable, "-m", "tests.support.fake_serve")
ROOT = pathlib.Path(__file__).parents[2]
BODY = {"prompt": [5], "max_tokens": 5000}
PATH = "/v1/completions"


@contextlib.contextmanager
def serving(
    folder: pathlib.Path, *options: str, **engine: Any
) -> Generator[tuple[subprocess.Popen[bytes], str, pathlib.Path]]:
    """A server over an engine without a model, its address and its log."""
    log = folder / "log"
    environment = {**os.environ, "FDJAX_FAKE": json.dumps(engine)}
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [*FAKE, *options],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=environment,
            cwd=ROOT,
        )
    try:
        end = time.monotonic() + 120
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text())):
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield process, found[0], log
    finally:
        process.kill()
        process.wait()


async def metric(client: httpx2.AsyncClient, name: str) -> float:
    text = (await client.get("/metrics")).text
    found = re.search(rf"^fdjax:{name}{{\S* (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1])


async def running(client: httpx2.AsyncClient, count: int) -> None:
    """Waits until so many requests run."""
    async with asyncio.timeout(60):
        while await metric(client, "num_requests_unfinished") < count:
            await asyncio.sleep(0.02)


async def test_told_under_load(tmp_path: pathlib.Path):
    options = ("--drain-seconds", "0.5")
    with serving(tmp_path, *options, step_s=0.02) as (process, url, log):
        async with httpx2.AsyncClient(base_url=url, timeout=60) as client:
            requests = [
                asyncio.create_task(
                    client.post(PATH, json=BODY | {"stream": i % 2 > 0})
                )
                for i in range(9)
            ]
            await running(client, 9)
            process.send_signal(signal.SIGTERM)
            answers = [await request for request in requests]
        for i, answer in enumerate(answers):
            if i % 2:
                *_, error, done, rest = answer.text.split("\n\n")
                assert (done, rest) == ("data: [DONE]", "")
                told = json.loads(error.removeprefix("data: "))["error"]
            else:
                assert answer.status_code == 503
                told = answer.json()["error"]
            assert told["code"] == "draining"
        assert process.wait(timeout=60) == 3
        text = log.read_text()
    assert "9 requests were ended before they were done" in text
    assert "Traceback" not in text


async def test_an_engine_that_hangs(tmp_path: pathlib.Path):
    options = ("--stall-seconds", "0.3", "--drain-seconds", "0.1")
    with serving(tmp_path, *options, hangs=True) as (process, url, log):
        async with httpx2.AsyncClient(base_url=url, timeout=60) as client:
            request = asyncio.create_task(client.post(PATH, json=BODY))
            async with asyncio.timeout(60):
                while (await client.get("/health")).status_code == 200:
                    await asyncio.sleep(0.02)
            assert await metric(client, "engine_step_age_seconds") > 0.3
            process.send_signal(signal.SIGTERM)
            assert (await request).json()["error"]["code"] == "draining"
        assert process.wait(timeout=60) == 3
        assert "the engine has not ended its step" in log.read_text()
