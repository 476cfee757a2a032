"""`fdjax serve` as a process: it listens, answers, drains and ends."""

import asyncio
import contextlib
import functools
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from tests.cli.conftest import Invoke
from tests.support.load import load

OPTIONS = (
    "serve", "--no-warm-up", "--max-model-len", "64", "--max-num-seqs", "2",
    "--served-model-name", "tales",
)  # fmt: skip
FDJAX = (sys.executable, "-m", "fdjax")
# The same, where the first decode step raises.
FAULTY = (
    sys.executable,
    "-c",
    "from fdjax.cli import main\n"
    "from fdjax.engine.executor import Executor\n"
    "Executor.decode = lambda *_: 1 / 0\n"
    "main()\n",
)
HEADERS = {"authorization": "Bearer secret"}
BODY = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 40}


def address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return found[0]
    pytest.fail("".join(lines))


def num_taken(client: httpx2.Client) -> float:
    """Requests that the engine has taken so far."""
    metrics = client.get("/metrics").text
    found = re.search(r"^fdjax:request_params_n_count\S* (\S+)$", metrics, re.MULTILINE)
    assert found is not None
    return float(found[1])


@contextlib.contextmanager
def serving(
    command: Sequence[str], folder: pathlib.Path, *, port: str
) -> Generator[tuple[subprocess.Popen[str], str]]:
    """A server, and its address; it keeps its programs in a folder."""
    options = ("--port", port, "--compilation-cache-dir", str(folder))
    process = subprocess.Popen(
        [*command, *OPTIONS, *options, "--api-key", "secret"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, address(process)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def failed(programs: pathlib.Path) -> str:
    """The port of a server whose engine failed, and which has ended."""
    with serving(FAULTY, programs, port="0") as (process, url):
        with httpx2.Client(base_url=url, headers=HEADERS, timeout=120) as client:
            bodies = [BODY | {"stream": i % 2 == 0} for i in range(6)]
            with ThreadPoolExecutor(len(bodies)) as pool:
                post = functools.partial(client.post, "/v1/completions")
                answers = list(pool.map(lambda body: post(json=body), bodies))
            assert all("engine_dead" in answer.text for answer in answers)
            assert {answer.status_code for answer in answers[1::2]} == {503}
            assert client.get("/health").status_code == 503
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 1
    return url.rpartition(":")[2]


def test_a_server_serves_until_it_is_told_to_stop(failed: str, programs: pathlib.Path):
    """On the port of one that failed, and with its programs."""
    assert any(programs.iterdir())
    with serving(FDJAX, programs, port=failed) as (process, url):
        with httpx2.Client(base_url=url, headers=HEADERS, timeout=120) as client:
            assert httpx2.get(f"{url}/v1/models").status_code == 401
            models = client.get("/v1/models").json()["data"]
            assert [model["id"] for model in models] == ["tales"]
            first = client.post("/v1/completions", json=BODY).json()
            assert first["choices"][0]["text"].startswith(" there ")
            crowd = load(url, clients=64, seconds=5, max_tokens=16, key="secret")
            answered = asyncio.run(crowd)
            assert answered.faults == []
            assert len(answered.seconds) >= 64
            taken = num_taken(client)
            with ThreadPoolExecutor() as pool:
                waiting = [
                    pool.submit(client.post, "/v1/completions", json=BODY)
                    for _ in range(4)
                ]
                while num_taken(client) < taken + 4:
                    time.sleep(0.01)
                process.send_signal(signal.SIGTERM)
                answers = [request.result().json() for request in waiting]
        assert [answer["choices"] for answer in answers] == [first["choices"]] * 4
        assert process.wait(timeout=30) == 0


@pytest.mark.parametrize("package", ["fastapi", "uvicorn", "prometheus_client"])
def test_without_the_extra_it_says_what_to_install(
    invoke: Invoke, package: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, package, None)
    result = invoke("serve")
    assert result.exit_code == 1
    assert package in result.stderr
    assert "fdjax[serve]" in result.stderr
