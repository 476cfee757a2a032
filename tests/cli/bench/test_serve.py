"""`fdjax bench serve` against a server that answers as it is told."""

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from tests.cli.conftest import Invoke
from tests.support.openai_stub import MODEL, Answer, running

TRACE = pathlib.Path(__file__).parents[3] / "benchmarks/data/azure_conv_2023_500.csv"
SMALL = ("--num-prompts", "8", "--input-len", "5", "--output-len", "3", "--warmup", "0")


def at(url: str) -> tuple[str, ...]:
    return ("bench", "serve", "--base-url", url, "--model", MODEL)


def mixed(place: int) -> Answer:
    """Of eight, one finds a full server, one loses its stream, one is too slow."""
    return {
        1: Answer(status=503),
        4: Answer(ending="cut"),
        6: Answer(first_s=60),
    }.get(place, Answer(first_s=0.02, gap_s=0.01))


def report(invoke: Invoke, *arguments: str) -> dict[str, Any]:
    result = invoke(*arguments, "--json", "-")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_failures_are_reported_and_not_dropped(invoke: Invoke, tmp_path: pathlib.Path):
    path, plot = tmp_path / "serve.json", tmp_path / "serve.png"
    with running(mixed) as stub:
        result = invoke(
            *at(stub.url),
            *SMALL,
            *("--timeout", "4", "--goodput", "ttft:3800 e2e:3900"),
            *("--json", str(path), "--plot", str(plot), "--api-key", "secret"),
        )
    assert result.exit_code == 0, result.stderr
    for text in (
        "8: 5 completed, 3 failed",
        "15 tokens",
        "62.5% of all, within ttft 3800 ms, e2e 3900 ms",
        "time to first token",
        "lag of this client",
        "HTTP 503",
        "connection lost",
        "no complete answer within 4 s",
    ):
        assert text in result.stdout
    assert "\x1b" not in result.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")
    found = json.loads(path.read_text())
    kinds = {one["kind"]: one["count"] for one in found["failures"]}
    assert kinds == {"HTTP 503": 1, "connection lost": 1, "timeout": 1}
    assert (found["requests"], found["completed"], found["input_tokens"]) == (8, 5, 25)
    assert found["goodput"]["requests"] == 5
    assert found["latency_ms"]["ttft"]["count"] == 5
    assert found["latency_ms"]["itl"]["count"] == 10
    assert found["latency_ms"]["ttft"]["p50"] >= 20
    assert [one["index"] for one in found["outcomes"]] == list(range(8))
    assert sum(one["error"] is None for one in found["outcomes"]) == 5
    assert "secret" not in path.read_text()
    assert set(stub.keys) == {"Bearer secret"}


def test_a_run_in_which_nothing_succeeds(invoke: Invoke):
    with running(lambda _: Answer(status=500)) as stub:
        result = invoke(*at(stub.url), *SMALL, "--plot", "no-such-folder/a.png")
        assert result.exit_code == 1
        assert not stub.requests
        result = invoke(*at(stub.url), *SMALL)
    assert result.exit_code == 1
    assert "8: 0 completed, 8 failed" in result.stdout
    assert "error: all 8 requests failed" in result.stderr
    assert len(stub.requests) == 8


def test_a_trace_is_replayed_at_its_times(invoke: Invoke):
    with running(lambda _: Answer()) as stub:
        options = ("--trace", str(TRACE), "--num-prompts", "5", "--speed", "10")
        found = report(invoke, *at(stub.url), *options, "--length-scale", "0.1")
    assert found["traffic"]["trace"] == str(TRACE)
    due = [one["due_s"] for one in found["outcomes"]]
    assert due == pytest.approx([0.0, 0.4315, 0.4542, 0.4710, 0.5893], abs=1e-4)
    assert found["duration_s"] >= 0.58
    warm_up, *sent = stub.requests
    assert len(warm_up["prompt"]) == 37
    assert sorted(len(body["prompt"]) for body in sent) == [9, 9, 37, 40, 88]
    assert sorted(body["max_tokens"] for body in sent) == [2, 2, 4, 6, 11]


def test_a_seed_repeats_prompts_and_poisson_arrivals(invoke: Invoke):
    prompts: list[Any] = []
    times: list[Any] = []
    for seed in ("3", "3", "4"):
        with running(lambda _: Answer()) as stub:
            options = ("--request-rate", "200", "--seed", seed, "--vocab-size", "9")
            found = report(invoke, *at(stub.url), *SMALL, *options)
        prompts.append(sorted(body["prompt"] for body in stub.requests))
        times.append([one["due_s"] for one in found["outcomes"]])
        assert found["traffic"]["seed"] == int(seed)
        assert max(map(max, prompts[-1])) < 9
    assert prompts[0] == prompts[1] != prompts[2]
    assert times[0] == times[1] != times[2]


def test_a_key_from_the_environment(invoke: Invoke, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with running(lambda _: Answer()) as stub:
        found = report(invoke, *at(stub.url), *SMALL)
    assert set(stub.keys) == {"Bearer secret"}
    assert "secret" not in str(found)


def test_a_seed_that_was_drawn_is_told(invoke: Invoke):
    with running(lambda _: Answer()) as stub:
        result = invoke(*at(stub.url), *SMALL, "--json", "-")
    seed = json.loads(result.stdout)["traffic"]["seed"]
    assert result.stderr == f"[seed {seed}]\n"


def test_concurrency_is_limited_and_the_wait_is_told(invoke: Invoke):
    with running(lambda _: Answer(first_s=0.1)) as stub:
        found = report(invoke, *at(stub.url), *SMALL, "--max-concurrency", "2")
    assert stub.most == 2
    assert found["late_ms"]["largest"] >= 300
    assert found["latency_ms"]["ttft"]["count"] == 8


def test_a_server_that_does_not_count_tokens(invoke: Invoke):
    with running(lambda _: Answer(usage=False)) as stub:
        result = invoke(*at(stub.url), *SMALL)
    assert result.exit_code == 0
    assert "not counted by the server" in result.stdout


def test_answers_that_are_too_short_are_told(invoke: Invoke):
    with running(lambda _: Answer(tokens=2)) as stub:
        result = invoke(*at(stub.url), *SMALL)
    assert "8 completed, 8 with fewer tokens than asked for, 0 failed" in result.stdout


def test_a_warm_up_that_fails_ends_it(invoke: Invoke):
    with running(lambda _: Answer(status=401)) as stub:
        result = invoke(*at(stub.url), *SMALL[:-2])
    assert result.exit_code == 1
    assert "fails a request to warm up: HTTP 401: refused" in result.stderr
    assert len(stub.requests) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--base-url", "nowhere"], "--base-url is 'nowhere'"),
        (["--goodput", "speed:1"], "there is no 'speed'"),
        (["--speed", "2"], "--speed has no meaning here"),
        (["--plot", "a.unknown"], "no format of a picture"),
        (["--json", "no-such-folder/a.json"], "no-such-folder is no folder"),
    ],
)
def test_errors_come_before_any_request(
    invoke: Invoke, options: list[str], message: str
):
    with running(lambda _: Answer()) as stub:
        result = invoke(*at(stub.url), *options)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert not stub.requests


@pytest.mark.parametrize(
    "options",
    [
        ("--request-rate", "0"),
        ("--request-rate", "nan"),
        ("--timeout", "nan"),
        ("--timeout", "0"),
        ("--num-prompts", "0"),
        ("--trace", "no-such-trace.csv"),
    ],
)
def test_wrong_usage(invoke: Invoke, options: tuple[str, str]):
    assert invoke(*at("http://127.0.0.1:9"), *options).exit_code == 2
    assert invoke("bench", "serve", "--model", MODEL).exit_code == 2


def test_a_server_is_measured_without_a_device():
    """A backend of JAX would take the memory of the GPU that the server needs."""
    program = (
        "from jax._src import xla_bridge\n"
        "from fdjax.cli import main\n"
        "try: main()\n"
        "finally: assert not xla_bridge.backends_are_initialized()\n"
    )
    with running(lambda _: Answer()) as stub:
        done = subprocess.run(
            [sys.executable, "-c", program, *at(stub.url), *SMALL],
            check=False,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    assert "8: 8 completed" in done.stdout
