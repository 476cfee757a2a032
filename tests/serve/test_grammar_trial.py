"""What could end or stall a process does it to another one."""

import json
import os
import select
import time

import pytest
from llguidance import LLMatcher

from fdjax.errors import RequestError
from fdjax.serve import grammar_trial
from fdjax.serve.grammar_trial import GrammarTrial

GOOD = LLMatcher.grammar_from_regex("a+")
# The first is a segmentation fault with 8 MB of stack, the second takes 16 seconds.
CRASHES = LLMatcher.grammar_from_lark(
    "start: a0\n" + "".join(f"a{i}: a{i + 1}\n" for i in range(4000)) + 'a4000: "x"\n'
)
STALLS = LLMatcher.grammar_from_json_schema('{"type": "integer", "multipleOf": 999983}')


@pytest.fixture(scope="module")
def trial() -> GrammarTrial:
    return GrammarTrial()


def test_what_is_good_passes(trial: GrammarTrial):
    trial.check(GOOD)


def test_it_starts_ahead():
    trial = GrammarTrial()
    trial.start()
    process = trial._process
    assert process is not None
    trial.check(GOOD)
    assert trial._process is process


def test_what_is_wrong_is_said(trial: GrammarTrial):
    with pytest.raises(RequestError, match="unclosed group"):
        trial.check(LLMatcher.grammar_from_regex("(a"))


@pytest.mark.parametrize("grammar", [CRASHES, STALLS], ids=["crashes", "stalls"])
def test_what_would_end_a_process_is_refused(trial: GrammarTrial, grammar: str):
    trial.check(GOOD)
    process = trial._process
    start = time.monotonic()
    with pytest.raises(
        RequestError, match=r"more than 0.6 seconds, or too much memory"
    ):
        trial.check(grammar)
    assert time.monotonic() - start < 1
    trial.check(GOOD)
    assert trial._process is process, "one process for all"


def test_it_ends_with_its_owner():
    trial = GrammarTrial()
    trial.check(GOOD)
    process = trial._process
    assert process is not None
    assert process.poll() is None
    del trial
    assert process.poll() is not None


def test_one_that_does_not_start_is_no_fault_of_the_request(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(grammar_trial, "__name__", "fdjax.no_such_module")
    trial = GrammarTrial()
    with pytest.raises(RuntimeError, match="did not answer"):
        trial.check(GOOD)
    monkeypatch.undo()
    trial.check(GOOD)


@pytest.fixture
def killed() -> GrammarTrial:
    """Its process was, by the system for want of memory: no request's fault."""
    trial = GrammarTrial()
    trial.check(GOOD)
    process = trial._process
    assert process is not None
    process.kill()
    process.wait()
    return trial


def test_one_that_was_killed_meanwhile_is_replaced(killed: GrammarTrial):
    process = killed._process
    killed.check(GOOD)
    assert killed._process is not process


def test_one_that_dies_while_it_is_asked_is_replaced(
    killed: GrammarTrial, monkeypatch: pytest.MonkeyPatch
):
    process = killed._process
    monkeypatch.setattr(process, "poll", lambda: None)  # it was alive a moment ago
    monkeypatch.setattr(os, "killpg", lambda *_: None)
    with pytest.raises(RuntimeError, match="did not answer"):
        killed.check(GOOD)
    monkeypatch.undo()
    killed.check(GOOD)


def test_nothing_is_left_of_what_stalls():
    """Not even if the server ends while it is tried."""
    trial = GrammarTrial()
    trial.check(GOOD)
    process = trial._process
    assert process is not None
    assert process.stdin is not None
    assert process.stdout is not None
    with os.fdopen(os.dup(process.stdout.fileno()), "rb") as pipe:
        process.stdin.write(json.dumps(STALLS) + "\n")
        process.stdin.flush()
        time.sleep(0.1)  # it forks
        del trial
        ended, _, _ = select.select([pipe], [], [], 10)
        assert ended, "a process still holds the pipe"
        assert pipe.read() == b""
