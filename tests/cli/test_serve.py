"""`fdjax serve` as a process: it listens, answers, drains and ends."""

import asyncio
import contextlib
import functools
import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
import typer

from fdjax.cli.app import app
from fdjax.cli.connection_options import _sites
from fdjax.errors import to_install
from tests.cli.conftest import Invoke
from tests.support.load import load
from tests.support.waiting import wait_until

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "serving.md"
OPTIONS = (
    "serve", "--no-warm-up", "--max-model-len", "64", "--max-num-seqs", "2",
    "--served-model-name", "tales", "--max-queued-requests", "80",
    "--max-queued-tokens", "0", "--log-format", "json",
)  # fmt: skip
FDJAX = (sys.executable, "-m", "fdjax")
# The same, in a process that began a second before.
WAITING = ("sh", "-c", 'sleep 1; exec "$@"', "sh", *FDJAX)
# Where the first decode step raises.
FAULTY = (
    sys.executable,
    "-c",
    "from fdjax.cli import main\n"
    "from fdjax.engine.executor import Executor\n"
    "Executor.decode = lambda *_: 1 / 0\n"
    "main()\n",
)
HEADERS = {"authorization": "Bearer secret"}
KEYS = '[keys.alice]\nkey = "{}"\n'
BODY = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 40}


def address(process: subprocess.Popen[bytes], log: pathlib.Path) -> str:
    while process.poll() is None:
        if found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text()):
            return found[0]
        time.sleep(0.05)
    pytest.fail(log.read_text())


def ready_in(log: str) -> dict[str, Any]:
    """What the line says that tells of the start."""
    lines = [json.loads(line) for line in log.splitlines()]
    (found,) = (one for one in lines if one["message"].startswith("ready after"))
    return found


def requests_in(log: str) -> list[dict[str, Any]]:
    """What every line, each of which is an object, says of a request."""
    lines = [json.loads(line) for line in log.splitlines()]
    return [line for line in lines if line["message"] == "request"]


def num_taken(client: httpx2.Client) -> float:
    """Requests that the engine has taken so far."""
    metrics = client.get("/metrics").text
    found = re.search(r"^fdjax:request_params_n_count\S* (\S+)$", metrics, re.MULTILINE)
    assert found is not None
    return float(found[1])


def change_keys(
    process: subprocess.Popen[bytes],
    client: httpx2.Client,
    keys: pathlib.Path,
    log: pathlib.Path,
) -> None:
    """Writes another key, then a broken file, and has both read."""

    def opened(key: str) -> bool:
        headers = {"authorization": f"Bearer {key}"}
        return client.get("/v1/models", headers=headers).is_success

    assert opened("before")
    keys.write_text(KEYS.format("after"))
    process.send_signal(signal.SIGHUP)
    wait_until(lambda: opened("after"))
    assert not opened("before")
    keys.write_text("broken")
    process.send_signal(signal.SIGHUP)
    wait_until(lambda: "the API keys stay as they were" in log.read_text())
    assert opened("after")


@contextlib.contextmanager
def serving(
    command: Sequence[str], folder: pathlib.Path, *, port: str
) -> Generator[tuple[subprocess.Popen[bytes], str, pathlib.Path]]:
    """A server, its address and its log; it keeps its programs in a folder."""
    log = folder.with_name(f"log-{port}")
    keys = folder.with_name("keys.toml")
    keys.touch(mode=0o600)
    keys.write_text(KEYS.format("before"))
    options = ("--port", port, "--compilation-cache-dir", str(folder))
    options += ("--api-key-file", str(keys))
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [*command, *OPTIONS, *options, "--api-key", "secret"],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    try:
        yield process, address(process, log), log
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def failed(programs: pathlib.Path) -> str:
    """The port of a server whose engine failed, and which has ended."""
    with serving(FAULTY, programs, port="0") as (process, url, _):
        with httpx2.Client(base_url=url, headers=HEADERS, timeout=120) as client:
            bodies = [BODY | {"stream": i % 2 == 0} for i in range(6)]
            with ThreadPoolExecutor(len(bodies)) as pool:
                post = functools.partial(client.post, "/v1/completions")
                answers = list(pool.map(lambda body: post(json=body), bodies))
            assert all("engine_dead" in answer.text for answer in answers)
            assert {answer.status_code for answer in answers[1::2]} == {503}
            assert client.get("/health").status_code == 503
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 1
    return url.rpartition(":")[2]


def test_a_server_serves_until_it_is_told_to_stop(failed: str, programs: pathlib.Path):
    """On the port of one that failed, and with its programs."""
    assert any(programs.iterdir())
    with serving(WAITING, programs, port=failed) as (process, url, log):
        with httpx2.Client(base_url=url, headers=HEADERS, timeout=120) as client:
            assert httpx2.get(f"{url}/v1/models", timeout=120).status_code == 401
            models = client.get("/v1/models").json()["data"]
            assert [model["id"] for model in models] == ["tales"]
            first = client.post("/v1/completions", json=BODY).json()
            assert first["choices"][0]["text"].startswith(" there ")
            crowd = load(url, clients=64, seconds=5, max_tokens=16, key="secret")
            answered = asyncio.run(crowd)
            assert answered.faults == []
            assert len(answered.seconds) >= 64
            change_keys(process, client, programs.with_name("keys.toml"), log)
            taken = num_taken(client)
            with ThreadPoolExecutor() as pool:
                waiting = [
                    pool.submit(client.post, "/v1/completions", json=BODY)
                    for _ in range(4)
                ]
                wait_until(lambda: num_taken(client) >= taken + 4)
                process.send_signal(signal.SIGTERM)
                answers = [request.result().json() for request in waiting]
        assert [answer["choices"] for answer in answers] == [first["choices"]] * 4
        assert process.wait(timeout=120) == 0
        limits = "80 requests, 4096 samples and any number of tokens may wait"
        assert limits in log.read_text()
        ready = ready_in(log.read_text())
        names = ("imports", "device", "weights", "engine", "server")
        parts = [ready[f"{name}_s"] for name in names]
        seconds = float(ready["message"].split()[2])
        assert seconds == pytest.approx(sum(parts), abs=0.3)
        assert seconds > ready["imports_s"] > 0.9, "since the process began"
        assert "programs_s" not in ready, "there was no warm-up"
        lines = requests_in(log.read_text())
        served = [line for line in lines if line["path"] == "/v1/completions"]
        assert {line["finish_reason"] for line in served} == {"length"}
        assert len({line["request_id"] for line in served}) == len(served)
        assert len(served) == 1 + len(answered.seconds) + 4


@pytest.mark.parametrize(
    "package", ["fastapi", "uvicorn", "prometheus_client", "jinja2"]
)
def test_without_the_extra_it_says_what_to_install(
    invoke: Invoke, package: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, package, None)
    result = invoke("serve")
    assert result.exit_code == 1
    assert package in result.stderr
    assert to_install("serve") in result.stderr


def test_a_port_in_use_is_found_before_a_model_is_loaded(invoke: Invoke):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        result = invoke("serve", "--port", port, "--model", "no/such-model")
    assert result.exit_code == 1
    assert f"cannot listen at 127.0.0.1, port {port}" in result.stderr
    assert "in use" in result.stderr


def test_pages_are_not_read_once_where_others_must_not_matter():
    command = "serve", "--batch-invariant", "--shared-prefix-reads", "--port", "0"
    done = subprocess.run(
        [*FDJAX, *command], check=False, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "error: --batch-invariant and --shared-prefix-reads are" in done.stderr


@pytest.mark.parametrize("key", ["", " "])
def test_an_empty_key_is_refused(invoke: Invoke, key: str):
    """A variable that was not set: all would be served where a key was meant."""
    result = invoke("serve", "--api-key", "first", "--api-key", key)
    assert result.exit_code == 1
    assert "an API key is empty" in result.stderr


@pytest.mark.parametrize("site", ['["*"]', "chat.example.com", "https://a.org/", ""])
def test_a_site_that_no_browser_names_is_refused(invoke: Invoke, site: str):
    """It would match none: vLLM takes a list as JSON."""
    result = invoke("serve", "--allowed-origins", "*", "--allowed-origins", site)
    told = " ".join(result.stderr.replace("│", " ").split())
    assert result.exit_code == 2
    assert "is no site; write it like https://chat.example.com, or *" in told


def test_sites_as_browsers_name_them_are_taken():
    sites = ["https://a.org", "http://[::1]:3000", "http://localhost:3000", "*"]
    assert _sites(sites) == sites


def test_the_docs_say_what_each_option_does():
    command: Any = typer.main.get_command(app)
    parameters = command.commands["serve"].params
    options = {name for one in parameters for name in one.opts if name[:2] == "--"}
    written = set(re.findall(r"`(--[a-z-]+)`", DOCS.read_text()))
    assert options - {"--help"} <= written
