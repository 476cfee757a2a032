"""Requests that ask for too much: they are refused, or wait for their turns."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2

from tests.support.attacked import Attacked
from tests.support.quiet import quiet
from tests.support.waiting import wait_until

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
# Pauses of a machine that others use; those of a server that is harmed are longer.
BUSY_S = 3.0
# As long as rows that are taken may keep another one waiting there.
CROWDED_S = 20.0
# Less than to make what a crowd has asked for.
SOON_S = 10.0
LONG = {"prompt": "a " * 2_097_112}


def test_texts_of_megabytes(attacked: Attacked):
    chat = {"messages": [{"role": "user", "content": "a " * 100}] * 4096}
    with quiet(attacked.port) as beside, ThreadPoolExecutor(6) as pool:
        with beside.undisturbed(busy_s=BUSY_S):
            answers = [attacked.post(COMPLETIONS, LONG)]
        with beside.undisturbed(busy_s=BUSY_S):
            answers += pool.map(attacked.post, [COMPLETIONS] * 6, [LONG] * 6)
        with beside.undisturbed(busy_s=BUSY_S):
            answers.append(attacked.post(CHATS, chat))
            answers.append(attacked.post("/tokenize", {"prompt": " " * 4_000_000}))
    assert {answer.status_code for answer in answers} == {400}


def test_a_crowd_that_leaves(attacked: Attacked):
    """What they have asked for costs nobody anything, from the moment they leave."""
    body = {"prompt": [[5] * 900] * 2, "n": 128, "stream": True}
    with quiet(attacked.port) as beside, beside.undisturbed(busy_s=CROWDED_S):
        crowd = [attacked.asking(COMPLETIONS, body) for _ in range(150)]
        for connection in crowd:
            assert connection.recv(1)  # it is taken, or refused
        for connection in crowd:
            connection.close()
        # A request that overtakes the news that they have left finds the queue full.
        wait_until(lambda: attacked.small().status_code == 200, seconds=SOON_S)


def test_the_lowest_priority_there_is(attacked: Attacked):
    """Who asks for nothing special is served before those who always ask for more."""
    body = {"prompt": "Once", "max_tokens": 200, "n": 4, "ignore_eos": True}
    answered, taken = threading.Event(), list[int]()

    def ask() -> None:
        while not answered.is_set() and len(taken) < 60:
            answer = attacked.post(COMPLETIONS, body | {"priority": -(2**31)})
            if answer.status_code == 200:
                taken.append(answer.status_code)

    with quiet(attacked.port) as beside, ThreadPoolExecutor(12) as pool:
        for _ in range(12):
            pool.submit(ask)
        beside.go_on(1)
        try:
            with attacked.begun() as small:  # from now on it is in the queue
                before = len(taken)
                assert b"[DONE]" in small.read()
        finally:
            answered.set()
    assert len(taken) - before < 24, "two of each were answered before"


def test_many_samples_of_one_request(attacked: Attacked):
    """Others have their turns between them."""
    body = {"prompt": [5], "n": 128, "max_tokens": 900, "ignore_eos": True}
    ends = 0

    def ask() -> bool:
        with attacked.begun() as small:
            begun.set()
            return b"[DONE]" in small.read()

    begun = threading.Event()
    with (
        quiet(attacked.port) as beside,
        httpx2.Client(base_url=attacked.url, timeout=300) as client,
        client.stream("POST", COMPLETIONS, json=body | {"stream": True}) as many,
        ThreadPoolExecutor(1) as pool,
    ):
        lines = many.iter_lines()
        next(lines)
        small = pool.submit(ask)
        for line in lines:
            if small.done():
                break
            ended = '"finish_reason":"length"' in line.replace(" ", "")
            ends += ended and begun.is_set()
        assert small.result()
        beside.go_on()
    assert ends < 64, "half of a request's samples went before another's only one"


def test_searches_of_nearly_all_rows(attacked: Attacked):
    """Others find a row while one runs and others wait for its end."""
    search = {
        "prompt": [5],
        "use_beam_search": True,
        "beam_width": 7,
        "n": 1,
        "max_tokens": 900,
        "ignore_eos": True,
    }
    waiting, running = "num_requests_waiting", "num_requests_running"
    with (
        quiet(attacked.port) as beside,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(20):  # as many as nobody waits for
            stack.enter_context(attacked.asking(COMPLETIONS, search))
        wait_until(
            lambda: attacked.metric(waiting) and attacked.metric(running) > 1, 120
        )
        beside.go_on(80)  # a stream has 32
        assert attacked.metric(waiting), "searches wait, as before"
    wait_until(lambda: not attacked.metric(running), 120)


def test_an_answer_of_a_hundred_megabytes(attacked: Attacked):
    body = {"prompt": "Once", "n": 128, "max_tokens": 500, "ignore_eos": True}
    with quiet(attacked.port) as beside, beside.undisturbed(busy_s=BUSY_S):
        answer = attacked.post(COMPLETIONS, body | {"logprobs": 20})
    assert answer.status_code == 400
    assert len(answer.content) < 1000
