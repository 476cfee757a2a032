"""`fdjax serve` as a process: it listens, answers, drains and ends."""

import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from tests.cli.conftest import Invoke

COMMAND = (
    sys.executable, "-m", "fdjax", "serve", "--port", "0", "--no-warm-up",
    "--max-model-len", "64", "--max-num-seqs", "2", "--served-model-name", "tales",
)  # fmt: skip
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


def test_a_server_serves_until_it_is_told_to_stop():
    process = subprocess.Popen(
        [*COMMAND, "--api-key", "secret"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = address(process)
        with httpx2.Client(base_url=url, headers=HEADERS, timeout=120) as client:
            assert httpx2.get(f"{url}/v1/models").status_code == 401
            models = client.get("/v1/models").json()["data"]
            assert [model["id"] for model in models] == ["tales"]
            first = client.post("/v1/completions", json=BODY).json()
            assert first["choices"][0]["text"].startswith(" there ")
            with ThreadPoolExecutor() as pool:
                waiting = [
                    pool.submit(client.post, "/v1/completions", json=BODY)
                    for _ in range(4)
                ]
                while num_taken(client) < 5:
                    time.sleep(0.01)
                process.send_signal(signal.SIGTERM)
                answers = [request.result().json() for request in waiting]
        assert [answer["choices"] for answer in answers] == [first["choices"]] * 4
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("package", ["fastapi", "uvicorn", "prometheus_client"])
def test_without_the_extra_it_says_what_to_install(
    invoke: Invoke, package: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, package, None)
    result = invoke("serve")
    assert result.exit_code == 1
    assert package in result.stderr
    assert "fdjax[serve]" in result.stderr
