"""Grammars are tried elsewhere, and once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from llguidance import LLMatcher

from fdjax.errors import RequestError
from fdjax.serve import grammar_trial
from fdjax.serve.forks import ExhaustedError
from fdjax.serve.grammar_trial import TRIAL_SECONDS, GrammarTrial

GOOD = LLMatcher.grammar_from_regex("a+")
STALLS = LLMatcher.grammar_from_json_schema('{"type": "integer", "multipleOf": 999983}')


class Counting:
    """Stands for `Forks`: says to each grammar what it was told to."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[tuple[str, float]] = []
        self.free = threading.Event()
        self.free.set()

    def call(self, question: str, *, cpu_seconds: float) -> Any:
        self.asked.append((question, cpu_seconds))
        assert self.free.wait(30)
        answer = self.answers.get(question, "")
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(scope="module")
def trial() -> GrammarTrial:
    return GrammarTrial()


@pytest.fixture
def forks() -> Counting:
    return Counting(bad="wrong", huge=ExhaustedError(), lost=RuntimeError("gone"))


@pytest.fixture
def counted(forks: Counting, monkeypatch: pytest.MonkeyPatch) -> GrammarTrial:
    trial = GrammarTrial()
    monkeypatch.setattr(trial, "_forks", forks)
    return trial


def test_what_is_good_passes(trial: GrammarTrial):
    trial.check(GOOD)


def test_what_is_wrong_is_said(trial: GrammarTrial):
    with pytest.raises(RequestError, match="unclosed group"):
        trial.check(LLMatcher.grammar_from_regex("(a"))


def test_what_takes_too_much_is_said(trial: GrammarTrial):
    with pytest.raises(ExhaustedError):
        trial.check(STALLS, cpu_seconds=TRIAL_SECONDS[0])
    with pytest.raises(RequestError, match=r"more than 0.6 seconds, or too much"):
        trial.check(STALLS)


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ('start: "a" <nothing/>', "unknown special token"),
        (r"start: /[^\s\S]/", "no text has this form"),
        ('start: A\nA: "a" & "b"', "no text has this form"),
    ],
)
def test_errors_can_be_read(trial: GrammarTrial, grammar: str, message: str):
    with pytest.raises(RequestError, match=message) as caught:
        trial.check(LLMatcher.grammar_from_lark(grammar))
    assert "non-verbose" not in str(caught.value)
    assert "NoExtensionBias" not in str(caught.value)


def test_outcomes_are_remembered(counted: GrammarTrial, forks: Counting):
    for _ in range(3):
        counted.check("good")
        with pytest.raises(RequestError, match=r"^wrong$"):
            counted.check("bad")
        with pytest.raises(RequestError, match="too much memory"):
            counted.check("huge")
        with pytest.raises(ExhaustedError):
            counted.check("huge", cpu_seconds=TRIAL_SECONDS[0])
    assert [question for question, _ in forks.asked] == ["good", "bad", "huge", "huge"]


def test_what_could_not_be_tried_is_tried_again(counted: GrammarTrial, forks: Counting):
    for _ in range(2):
        with pytest.raises(RuntimeError, match="gone"):
            counted.check("lost")
    assert len(forks.asked) == 2
    forks.answers.clear()
    counted.check("lost")


def test_only_so_many_are_remembered(
    counted: GrammarTrial, forks: Counting, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(grammar_trial, "_MAX_REMEMBERED", 2)
    for grammar in ("a", "b", "a", "c", "a", "b"):
        counted.check(grammar)
    assert [question for question, _ in forks.asked] == ["a", "b", "c", "b"]
    assert len(counted._known) == 2


def test_the_same_at_once_is_tried_once(counted: GrammarTrial, forks: Counting):
    forks.free.clear()
    with ThreadPoolExecutor(4) as threads:
        checks = [threads.submit(counted.check, "good") for _ in range(4)]
        assert not any(check.done() for check in checks)
        forks.free.set()
        assert [check.result(30) for check in checks] == [None] * 4
    assert len(forks.asked) == 1


def chained(count: int) -> str:
    """Rules of which each is the next, beside a long one: seconds to rewrite."""
    rules = [f"r{i} ::= r{i + 1}" for i in range(count)]
    return "\n".join(
        ["root ::= r0", f"long ::= {'.' * 9000}r0", *rules, f'r{count} ::= "a"']
    )


def test_gbnf_is_rewritten_elsewhere(trial: GrammarTrial):
    lark = trial.lark('root ::= "a" root | "b"')
    assert "start:" in lark
    trial.check(LLMatcher.grammar_from_lark(lark))
    with pytest.raises(RequestError, match="cannot be read as GBNF: Rule 'foo'"):
        trial.lark("root ::= foo")
    with pytest.raises(ExhaustedError):
        trial.lark(chained(6000), cpu_seconds=TRIAL_SECONDS[0])
    with pytest.raises(RequestError, match=r"more than 0\.6 seconds"):
        trial.lark(chained(6000))
    kept = [outcome.result() or "" for outcome in trial._known.values()]
    assert max(map(len, kept)) < 1000, "grammars that were rewritten are not kept"
