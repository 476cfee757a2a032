"""One request against a server that answers as it is told."""

import asyncio
import dataclasses
import socket
import time
from typing import Any

import pytest

from fdjax import ConfigError
from fdjax.cli.bench.arrivals import Arrival
from fdjax.cli.bench.client import Client, check_server
from fdjax.cli.bench.options import ServerOptions
from fdjax.cli.bench.outcome import Outcome
from fdjax.cli.bench.replay import Clock
from tests.support.openai_stub import MODEL, Answer, running
from tests.support.waiting import wait_until

PROMPTS = [[5, 6, 7], [8]]
ASKED = 4


def outcome_of(index: int) -> Outcome:
    return Outcome(index, 0.0, len(PROMPTS[index]), ASKED)


def asked(
    url: str,
    *,
    index: int = 0,
    warm_up: bool = False,
    clock: Clock = time.perf_counter,
    **options: Any,
) -> Outcome:
    """What becomes of one request."""
    outcome = outcome_of(index)

    async def run() -> None:
        server = ServerOptions(base_url=url, model=MODEL, **options)
        async with Client(server, PROMPTS) as client:
            if warm_up:
                await client.warm_up(index, Arrival(0.0, len(PROMPTS[index]), ASKED))
            await client.send(outcome, clock)

    asyncio.run(run())
    return outcome


def answered(answer: Answer, **options: Any) -> Outcome:
    with running(lambda _: answer) as stub:
        return asked(stub.url, **options)


def answered_as_read(answer: Answer, **options: Any) -> Outcome:
    """The same, where no event comes before those before it were read."""
    told: list[float] = []  # when it was sent, and when each piece came

    def clock() -> float:
        told.append(time.perf_counter())
        return told[-1]

    def read(place: int) -> None:
        wait_until(lambda: len(told) > place)

    return answered(dataclasses.replace(answer, before=read), clock=clock, **options)


@pytest.fixture
def refusing() -> str:
    """An address where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_what_is_sent(suffix: str):
    with running(lambda _: Answer()) as stub:
        asked(stub.url + suffix, index=1, api_key="secret")
    assert stub.keys == ["Bearer secret"]
    assert stub.requests == [
        {
            "model": MODEL,
            "prompt": [8],
            "max_tokens": ASKED,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
    ]


def test_what_openai_does_not_know_can_be_left_out():
    with running(lambda _: Answer()) as stub:
        asked(stub.url, ignore_eos=False)
    assert "ignore_eos" not in stub.requests[0]
    assert stub.keys == [None]


def test_a_stream_is_timed_event_by_event():
    before = time.perf_counter()
    one = answered_as_read(Answer(first_s=0.2, gap_s=0.1))
    assert one.error is None
    assert before < one.sent_s
    assert one.end_s < time.perf_counter()
    assert (one.prompt_tokens, one.output_tokens) == (3, 4)
    assert len(one.token_s) == 4
    assert one.ttft_s is not None and one.ttft_s >= 0.2
    assert sum(one.gaps_s) >= 0.25
    assert one.sent_s < one.token_s[0] < one.token_s[-1] <= one.end_s


def test_tokens_of_one_event_are_one_arrival():
    """A server under load may join them; only it knows how many there are."""
    one = answered_as_read(Answer(joined=2, gap_s=0.1))
    assert one.error is None
    assert (len(one.token_s), one.output_tokens) == (2, 4)
    assert one.tpot_s == pytest.approx(sum(one.gaps_s) / 3)
    assert one.gaps_s[0] >= 0.05


def test_a_closing_event_without_text_is_no_token():
    assert len(answered(Answer(closing=True)).token_s) == 4


def test_tokens_without_text_are_tokens():
    """A lone token may be a part of a character, or special."""
    one = answered(Answer(tokens=0, closing=True))
    assert one.error is None
    assert len(one.token_s) == 1


def test_a_server_that_does_not_count():
    one = answered(Answer(usage=False))
    assert one.error is None
    assert (one.prompt_tokens, one.output_tokens) == (None, None)


@pytest.mark.parametrize(
    ("answer", "error", "detail"),
    [
        (Answer(status=503), "HTTP 503", "refused with \N{REPLACEMENT CHARACTER}[31m"),
        (Answer(status=400), "HTTP 400", "refused with"),
        (Answer(status=307), "HTTP 307", "refused with"),
        (Answer(ending="cut"), "connection lost", "not completed"),
        (Answer(ending="no done"), "incomplete stream", "without [DONE]"),
        (Answer(ending="error"), "error in the stream", "the engine is dead"),
        (Answer(ending="error, cut"), "error in the stream", "the engine is dead"),
        (Answer(ending="malformed"), "malformed event", '{"choices": [7]}'),
        (Answer(tokens=0), "no tokens", "ended without any"),
        (Answer(kind="application/json"), "no event stream", "application/json"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_failure_is_named(answer: Answer, error: str, detail: str):
    one = answered(answer)
    assert one.error == error
    assert detail in one.detail
    assert one.end_s > one.sent_s


def test_long_messages_are_cut(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fdjax.cli.bench.client._DETAIL", 9)
    assert answered(Answer(status=503)).detail == "refused w..."


def test_a_slow_answer_times_out():
    one = answered(Answer(gap_s=60), timeout=3)
    assert one.error == "timeout"
    assert one.detail == "no complete answer within 3 s"
    assert one.token_s
    assert one.e2e_s >= 3


def test_nobody_listens(refusing: str):
    assert asked(refusing).error == "cannot connect"


def test_a_warm_up_that_fails_is_an_error():
    with (
        running(lambda _: Answer(status=404)) as stub,
        pytest.raises(ConfigError, match=r"fails a request to warm up: HTTP 404: ref"),
    ):
        asked(stub.url, warm_up=True)
    assert len(stub.requests) == 1


def test_a_proxy_of_the_environment_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, refusing: str
):
    monkeypatch.setenv("HTTP_PROXY", refusing)
    monkeypatch.setenv("http_proxy", refusing)
    assert answered(Answer()).error is None


def test_all_requests_are_under_way_together():
    """The libraries for it have a limit of 100, unless they are told."""
    count = 120
    outcomes = [outcome_of(0) for _ in range(count)]

    def together(_: int) -> None:
        wait_until(lambda: stub.most == count)

    async def run(url: str) -> None:
        async with Client(ServerOptions(base_url=url, model=MODEL), PROMPTS) as client:
            await asyncio.gather(*(client.send(o, time.perf_counter) for o in outcomes))

    with running(lambda _: Answer(before=together)) as stub:
        asyncio.run(run(stub.url))
    assert stub.most == count
    assert all(one.error is None for one in outcomes)


def test_a_connection_is_used_again():
    with running(lambda _: Answer()) as stub:
        asked(stub.url, warm_up=True)
    assert len(stub.requests) == 2
    assert len(set(stub.ports)) == 1


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://here", "http://", "", "http://me:secret@here"]
)
def test_an_address_that_is_none(url: str):
    with pytest.raises(ConfigError, match=r"write it as http://127\.0\.0\.1:8000"):
        check_server(url)


def test_it_needs_its_library(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"--extra serve"):
        check_server("http://127.0.0.1:8000")
