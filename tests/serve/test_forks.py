"""What could end or stall a process does it to one that was forked for it."""

import contextlib
import json
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from llguidance import LLMatcher

from fdjax.serve import forks as forks_module
from fdjax.serve import grammar_trial
from fdjax.serve.forks import ExhaustedError, Forks
from tests.support.waiting import wait_until

MODULE = grammar_trial.__name__
GOOD = LLMatcher.grammar_from_regex("a+")
# The first is a segmentation fault with 8 MB of stack, the second takes 16 seconds.
CRASHES = LLMatcher.grammar_from_lark(
    "start: a0\n" + "".join(f"a{i}: a{i + 1}\n" for i in range(4000)) + 'a4000: "x"\n'
)
STALLS = LLMatcher.grammar_from_json_schema('{"type": "integer", "multipleOf": 999983}')


@pytest.fixture(scope="module")
def shared() -> Forks:
    return Forks(MODULE)


def forked_by(pid: int) -> list[int]:
    """Processes that are there, of one parent."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def ask(forks: Forks, question: object = GOOD, *, cpu_seconds: float = 0.3) -> object:
    return forks.call(question, cpu_seconds=cpu_seconds)


def test_an_answer(shared: Forks):
    assert ask(shared) == ""


def test_it_starts_ahead():
    forks = Forks(MODULE)
    forks.start()
    process = forks._process
    assert process is not None
    ask(forks)
    assert forks._process is process


@pytest.mark.parametrize("question", [CRASHES, STALLS], ids=["crashes", "stalls"])
def test_what_takes_too_much_is_ended_alone(shared: Forks, question: object):
    ask(shared)
    process = shared._process
    with pytest.raises(ExhaustedError):
        ask(shared, question)
    assert ask(shared) == ""
    assert shared._process is process, "one process for all"


def test_many_at_once(shared: Forks):
    with ThreadPoolExecutor(4) as threads:
        stalled = [threads.submit(ask, shared, STALLS) for _ in range(3)]
        assert [threads.submit(ask, shared).result() for _ in range(5)] == [""] * 5
        assert {type(one.exception()) for one in stalled} == {ExhaustedError}


def niceness(forks: Forks, cpu_seconds: float) -> int:
    """Of the process that answers a call, relative to this one's."""
    ours, theirs = socket.socketpair()
    process = forks._process
    assert process is not None
    with ours:
        with theirs:
            process.send(theirs, cpu_seconds)
        assert ours.recv(1) == b"+"
        wait_until(lambda: len(forked_by(process.popen.pid)) == 1)
        (forked,) = forked_by(process.popen.pid)
        nice = os.getpriority(os.PRIO_PROCESS, forked)
        assert os.getsid(process.popen.pid) == os.getsid(0), (
            "in a session of its own, its niceness may mean nothing to ours"
        )
    return nice - os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_what_may_take_long_goes_behind_the_rest():
    forks = Forks(MODULE)
    ask(forks)
    short, long = niceness(forks, 0.03), niceness(forks, 0.6)
    assert 0 < short < long


def test_limits_that_the_system_has_set_already_stay():
    """They may not be raised; whoever tried would not start."""
    forks = Forks(MODULE)
    forks._command = ["sh", "-c", 'ulimit -s 1024; exec "$@"', "sh", *forks._command]
    assert ask(forks) == ""


def test_it_ends_with_its_owner():
    forks = Forks(MODULE)
    ask(forks)
    process = forks._process
    assert process is not None
    assert process.popen.poll() is None
    del forks
    assert process.popen.poll() is not None


def test_one_that_does_not_start_is_no_fault_of_the_request():
    forks = Forks("fdjax.no_such_module")
    with pytest.raises(RuntimeError, match="did not answer"):
        ask(forks)
    forks._command[-1] = MODULE
    assert ask(forks) == ""


def test_one_that_was_killed_meanwhile_is_replaced():
    """By the system for want of memory, say: no request's fault."""
    forks = Forks(MODULE)
    ask(forks)
    process = forks._process
    assert process is not None
    process.popen.kill()
    process.popen.wait()
    assert ask(forks) == ""
    assert forks._process is not process


def test_one_that_is_killed_while_it_is_asked_is_no_fault_of_the_request(
    monkeypatch: pytest.MonkeyPatch,
):
    forks = Forks(MODULE)
    ask(forks)
    process = forks._process
    assert process is not None
    begun, answer = threading.Event(), forks_module._answer

    def answered(connection: socket.socket, question: object) -> object:
        begun.set()
        return answer(connection, question)

    monkeypatch.setattr(forks_module, "_answer", answered)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ask, forks, STALLS, cpu_seconds=20)
        assert begun.wait(60)
        os.killpg(process.popen.pid, 9)
        with pytest.raises(RuntimeError, match="has ended"):
            asked.result(timeout=60)
    assert ask(forks) == ""


def test_nothing_is_left_of_what_stalls():
    """Its process ends by itself, whatever became of those that asked."""
    forks = Forks(MODULE)
    ask(forks)
    process = forks._process
    assert process is not None
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process.send(theirs, 0.3)
        ours.sendall(json.dumps(STALLS).encode())
        ours.shutdown(socket.SHUT_WR)
        assert ours.recv(1) == b"+"
        process.popen.kill()  # the one that forked it, and not its group
        ours.settimeout(60)
        assert ours.recv(1) == b"", "the process is there and keeps its end"
