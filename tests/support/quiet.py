"""Quiet clients beside something hostile: one streams, one asks for `/health`."""

import contextlib
import gc
import itertools
import json
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.support.waiting import wait_until

BODY = {"prompt": [5], "max_tokens": 32, "temperature": 0, "ignore_eos": True}
FACTOR = 20
"""Times of the longest pause before: a machine that others use has pauses too."""
BUSY_S = 2.0
"""That a machine which others use may keep everybody waiting, whatever a server does:
what is tried beside must take longer where it harms."""
_WARM = 20


@dataclass
class Quiet:
    """What two clients have seen, which go on until the end.

    Attributes:
        events: when each event of a stream came, by `time.monotonic`.
        healthy: when each 200 of `/health` came.
        faults: what was wrong with an answer.
    """

    events: list[float] = field(default_factory=list[float])
    healthy: list[float] = field(default_factory=list[float])
    faults: list[str] = field(default_factory=list[str])

    def go_on(self, count: int = _WARM) -> None:
        """Waits for some more of both; fails if they do not come, or wrong ones do."""
        for what, marks in (("stream", self.events), ("/health", self.healthy)):
            wanted = len(marks) + count
            wait_until(
                lambda m=marks, w=wanted: self.faults or len(m) >= w,
                120,
                fault=f"{what} did not go on",
            )
        assert not self.faults, self.faults[0]

    @contextlib.contextmanager
    def undisturbed(self, *, busy_s: float = BUSY_S) -> Generator[None]:
        """Fails unless both went on during the block, as they did before it.

        Whoever stands still while a server does has a pause as long as the block. So
        pauses may last half of the block, or a multiple of the longest one before.

        Args:
            busy_s: of a pause that a machine may make which others use.
        """
        before = time.monotonic()
        self.go_on()
        start = time.monotonic()
        yield
        end = time.monotonic()
        self.go_on(1)
        for what, marks in (("stream", self.events), ("/health", self.healthy)):
            usual = longest_pause(marks, before, start)
            pause = longest_pause(marks, start, end)
            allowed = max(FACTOR * usual, (end - start) / 2, busy_s)
            assert pause <= allowed, f"{what} stood still for {pause:.2f} s"


def longest_pause(marks: list[float], start: float, end: float) -> float:
    """Seconds between two marks, or between one and an end of the time, at most."""
    inside = [start, *(mark for mark in marks if start < mark < end), end]
    return max(b - a for a, b in itertools.pairwise(inside))


@contextlib.contextmanager
def _others_frozen() -> Generator[None]:
    """What is there already is not collected meanwhile, as in `fdjax serve`.

    A worker of tests holds two million objects of those before, which it takes the
    collector up to two seconds to go through; what the server makes now still counts.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def quiet(
    port: int, *, headers: dict[str, str] | None = None, body: Any = None
) -> Generator[Quiet]:
    """Two clients of a server on the loopback, each in a thread, until the end.

    Args:
        port: of the server.
        headers: of the streams' requests; keys, say.
        body: of the streams' requests, besides `BODY`.
    """
    seen, ending = Quiet(), threading.Event()
    streamed = {**BODY, **(body or {}), "stream": True}

    def talk(client: httpx2.Client) -> None:
        path = "/v1/completions"
        with client.stream("POST", path, json=streamed, headers=headers) as response:
            if response.status_code != 200:
                seen.faults.append(f"a stream: {response.read()[:300]}")
            for line in response.iter_lines():
                if ending.is_set():
                    return
                _note(line, seen)

    def look(client: httpx2.Client) -> None:
        response = client.get("/health")
        if response.status_code == 200:
            seen.healthy.append(time.monotonic())
        else:
            seen.faults.append(f"/health: {response.status_code}")
        ending.wait(0.01)

    def repeat(once: Callable[[httpx2.Client], None]) -> None:
        try:
            with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=600) as one:
                while not ending.is_set() and not seen.faults:
                    once(one)
        except httpx2.HTTPError as error:
            seen.faults.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=repeat, args=[each]) for each in (talk, look)]
    with _others_frozen():
        for thread in threads:
            thread.start()
        try:
            yield seen
        finally:
            ending.set()
            for thread in threads:
                thread.join()
    assert not seen.faults, seen.faults[0]


def _note(line: str, seen: Quiet) -> None:
    content = line.removeprefix("data: ")
    if not content or content == "[DONE]":
        return
    if "error" in json.loads(content):
        seen.faults.append(f"an event: {content[:300]}")
    else:
        seen.events.append(time.monotonic())
