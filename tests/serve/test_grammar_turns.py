"""Among the grammars of one owner: how long one waits that takes its compiler long."""

import asyncio
import heapq
import itertools
import threading
from dataclasses import dataclass, field
from typing import Any

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
A_TURN = 5 / 8 * SECOND + 3 / 8 * LAST
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
        self._add(self.quick, grammar)
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
            self._add(self.slow, grammar)
        return None

    def seconds_until(self, grammar: Grammar) -> float:
        """From when it came until it is compiled."""
        while self.step() is not grammar:
            pass
        return self.now - grammar.came

    def _add(self, lane: Lane, grammar: Grammar) -> None:
        rank = TRIAL_SECONDS[grammar.trial]
        lane.order.add(grammar, rank=rank, since=grammar.came)

    def _begin(self, lane: Lane) -> None:
        owner, grammar = lane.order.pop()
        lane.free -= 1
        ends = self.now + min(TRIAL_SECONDS[grammar.trial], grammar.seconds)
        entry = ends, next(self._places), lane, owner, grammar
        heapq.heappush(self._ends, entry)


@pytest.mark.parametrize(("seconds", "bound"), [(0.07, 1.4), (0.3, 1.6), (0.5, 3.4)])
@pytest.mark.parametrize("after_s", [0.0, 0.2, 1.0, 3.0, 10.0, 20.0])
def test_behind_all_others_it_waits_for_three_turns(
    seconds: float, bound: float, after_s: float
):
    """For each of its trials, two at once: every fourth is of the last that came."""
    server = Server()
    for _ in range(HOSTILE):
        server.ask(HOSTILE_SECONDS)
    while server.now < after_s:
        server.step()
    failed = [may for may in TRIAL_SECONDS if may < seconds]
    most = 2 * FIRST + len(failed) * 2 * LAST + sum(failed) + seconds
    assert server.seconds_until(server.ask(seconds)) <= most < bound


@pytest.mark.parametrize("behind", [0, 15, 30, 45, 60])
def test_in_the_midst_of_others_it_waits_for_those_before_it(behind: int):
    """They have five turns in eight; or those behind it, two in eight."""
    server = Server()
    for _ in range(HOSTILE - behind):
        server.ask(HOSTILE_SECONDS)
    grammar = server.ask(0.3)
    for _ in range(behind):
        server.ask(HOSTILE_SECONDS)
    turns = min(8 / 5 * (HOSTILE - behind), 4 * 2 * (behind + 1))
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

    Attributes:
        places: of each lane, which turn each grammar had. By when a thread took it: one
            that took a later turn may begin its trial sooner.
        may_begin: set when trials of a lane may.
    """

    def __init__(self) -> None:
        self.places: dict[str, dict[str, int]] = {"quick": {}, "slow": {}}
        self.may_begin = {lane: threading.Event() for lane in self.places}
        self._taken = threading.local()

    def count(self, order: FairOrder[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        """Has each thread that takes a turn know which it is."""
        turns, pop = itertools.count(), order.pop

        def counted() -> Any:
            self._taken.turn = next(turns)
            return pop()

        monkeypatch.setattr(order, "pop", counted)

    def start(self) -> None:
        """Nothing is to be started."""

    def call(self, grammar: str, *, cpu_seconds: float) -> str:
        lane = "slow" if cpu_seconds > FIRST else "quick"
        self.places[lane][grammar] = self._taken.turn
        assert self.may_begin[lane].wait(30)
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
    lanes = grammars._compiling
    for threads in (lanes.quick, lanes.slow):
        forks.count(threads._order, monkeypatch)
    regexes = [f"hostile{i}(a|b)" for i in range(HOSTILE)] + ["innocent(a|b)"]
    tasks = [asyncio.create_task(grammars.compiled(asking(one))) for one in regexes]
    for lane, threads, count in (
        ("quick", lanes.quick, QUICK),
        ("slow", lanes.slow, SLOW),
    ):
        while len(threads._order) < len(regexes) - count:
            await asyncio.sleep(0.001)
        forks.may_begin[lane].set()
    assert await tasks.pop() is not None
    for lane, count in (("quick", QUICK), ("slow", SLOW)):
        (place,) = [n for one, n in forks.places[lane].items() if "innocent" in one]
        assert place <= count + 3, "each fourth turn is of the last"
    await asyncio.gather(*tasks, return_exceptions=True)
