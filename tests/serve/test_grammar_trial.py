"""What could end or stall a process does it to another one."""

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
    process = trial._process
    trial.check(GOOD)
    assert trial._process is process, "one process for all"


def test_what_is_wrong_is_said(trial: GrammarTrial):
    with pytest.raises(RequestError, match="unclosed group"):
        trial.check(LLMatcher.grammar_from_regex("(a"))


@pytest.mark.parametrize("grammar", [CRASHES, STALLS], ids=["crashes", "stalls"])
def test_what_ends_the_process_is_refused(trial: GrammarTrial, grammar: str):
    trial.check(GOOD)
    start = time.monotonic()
    with pytest.raises(
        RequestError, match=r"more than 0.6 seconds, or too much memory"
    ):
        trial.check(grammar)
    assert time.monotonic() - start < 1
    trial.check(GOOD)


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
    with pytest.raises(RuntimeError, match="did not start"):
        GrammarTrial().check(GOOD)
