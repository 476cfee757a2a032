"""Among the grammars of one owner: how long one waits that takes its compiler long."""

import asyncio
import heapq
import itertools
import threading
from dataclasses import dataclass, field

import pytest

from fdjax import LLM
from fdjax.generate.params import SamplingParams
from fdjax.generate.structured import StructuredOutputs
from fdjax.serve.fair_order import FairOrder
from fdjax.serve.forks import ExhaustedError
from fdjax.serve.grammar_trial import TRIAL_SECONDS
from fdjax.serve.grammars import Grammars

HOSTILE = 60
HOSTILE_SECONDS = 10.0
FIRST, SECOND, LAST = TRIAL_SECONDS
A_TURN = 7 / 8 * SECOND + 1 / 8 * LAST
QUICK, SLOW = 4, 2


# --- By a clock that is simulated -----------------------------------------------------


@dataclass
class Grammar:
    """One that takes so many seconds to compile, and came then."""

    seconds: float
    came: float
    trial: int = 0


@dataclass
class Lane:
    """Processes that try grammars."""

    free: int
    order: FairOrder[Grammar] = field(default_factory=FairOrder[Grammar])


class Server:
    """Tries grammars as `Grammars.compiled` does, each process on a core of its own."""

    def __init__(self) -> None:
        self.quick, self.slow = Lane(QUICK), Lane(SLOW)
        self.now = 0.0
        self._ends: list[tuple[float, int, Lane, str, Grammar]] = []
        self._places = itertools.count(1)

    def ask(self, seconds: float) -> Grammar:
        """Lets one come now: after all others of now."""
        grammar = Grammar(seconds, self.now + 1e-6 * next(self._places))
        self.quick.order.add(grammar)
        return grammar

    def step(self) -> Grammar | None:
        """Goes on to where a trial ends; the grammar, if it is compiled then."""
        for lane in (self.quick, self.slow):
            while lane.free and len(lane.order):
                self._begin(lane)
        self.now, _, lane, owner, grammar = heapq.heappop(self._ends)
        lane.free += 1
        may = TRIAL_SECONDS[grammar.trial]
        lane.order.spend(owner, min(may, grammar.seconds))
        if grammar.seconds <= may:
            return grammar
        grammar.trial += 1
        if grammar.trial < len(TRIAL_SECONDS):
            rank = TRIAL_SECONDS[grammar.trial]
            self.slow.order.add(grammar, rank=rank, since=grammar.came)
        return None

    def seconds_until(self, grammar: Grammar) -> float:
        """From when it came until it is compiled."""
        while self.step() is not grammar:
            pass
        return self.now - grammar.came

    def _begin(self, lane: Lane) -> None:
        owner, grammar = lane.order.pop()
        lane.free -= 1
        ends = self.now + min(TRIAL_SECONDS[grammar.trial], grammar.seconds)
        entry = ends, next(self._places), lane, owner, grammar
        heapq.heappush(self._ends, entry)


@pytest.mark.parametrize("seconds", [0.07, 0.3])
def test_behind_all_others_it_waits_for_their_first_trials(seconds: float):
    """And for at most three longer ones, two at once: each fourth is of the last."""
    server = Server()
    for _ in range(HOSTILE):
        server.ask(HOSTILE_SECONDS)
    most = (HOSTILE + 1) * FIRST / QUICK + FIRST + 2 * LAST + seconds
    assert server.seconds_until(server.ask(seconds)) <= most < 2.0


@pytest.mark.parametrize("before_s", [0.2, 1.0, 3.0, 10.0, 20.0])
def test_whenever_it_comes(before_s: float):
    server = Server()
    for _ in range(HOSTILE):
        server.ask(HOSTILE_SECONDS)
    while server.now < before_s:
        server.step()
    most = HOSTILE * FIRST / QUICK + FIRST + 2 * LAST + 0.3
    assert server.seconds_until(server.ask(0.3)) <= most < 2.0


@pytest.mark.parametrize("behind", [0, 15, 30, 45, 60])
def test_in_the_midst_of_others_it_waits_for_those_before_it(behind: int):
    """They have five turns in eight, or it is among the last before."""
    server = Server()
    for _ in range(HOSTILE - behind):
        server.ask(HOSTILE_SECONDS)
    grammar = server.ask(0.3)
    for _ in range(behind):
        server.ask(HOSTILE_SECONDS)
    turns = min(8 / 5 * (HOSTILE - behind), 4 * (behind + 1))
    most = HOSTILE * FIRST / QUICK + turns * A_TURN / SLOW + 2 * LAST
    assert server.seconds_until(grammar) <= most


@pytest.mark.parametrize("each_s", [0.5, 0.1, 0.02])
def test_however_many_come_later(each_s: float):
    """Five turns in eight are of those that were there before it, whatever comes."""
    server = Server()
    for _ in range(HOSTILE):
        server.ask(HOSTILE_SECONDS)
    grammar = server.ask(0.3)
    came, done = 0.0, None
    while done is not grammar:
        while came <= server.now:
            server.ask(HOSTILE_SECONDS)
            came += each_s
        done = server.step()
    assert server.now <= 8 / 5 * HOSTILE * A_TURN / SLOW + 2 * LAST


# --- As requests are tried ------------------------------------------------------------


class Forks:
    """Compiles nothing: says at once that hostile grammars take too long.

    Trials after the first wait until they may begin.
    """

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may_begin = threading.Event()

    def start(self) -> None:
        """Nothing is to be started."""

    def call(self, grammar: str, *, cpu_seconds: float) -> str:
        if cpu_seconds > FIRST:
            self.begun.append(grammar)
            assert self.may_begin.wait(30)
        if (HOSTILE_SECONDS if "hostile" in grammar else 0.3) > cpu_seconds:
            raise ExhaustedError
        return ""


def asking(regex: str) -> SamplingParams:
    return SamplingParams(structured_outputs=StructuredOutputs(regex=regex))


@pytest.mark.anyio
async def test_the_last_that_came_is_tried_next(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
):
    grammars = Grammars(
        llm.get_tokenizer(),
        vocab_size=llm.config.embedding.vocab_size,
        eos_token_ids=[2],
    )
    forks = Forks()
    monkeypatch.setattr(grammars._trial, "_forks", forks)
    regexes = [f"hostile{i}(a|b)" for i in range(HOSTILE)] + ["innocent(a|b)"]
    tasks = [asyncio.create_task(grammars.compiled(asking(one))) for one in regexes]
    waiting = grammars._compiling.slow._order
    while len(waiting) < HOSTILE + 1 - SLOW:
        await asyncio.sleep(0.001)
    forks.may_begin.set()
    assert await tasks.pop() is not None
    (place,) = [n for n, one in enumerate(forks.begun) if "innocent" in one]
    assert place <= SLOW + 3, "each fourth turn is of the last"
    await asyncio.gather(*tasks, return_exceptions=True)
