"""Groups of samples: what they fork and hold, beside searches that select."""

import dataclasses
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from fdjax import SamplingParams
from fdjax.engine.engine import Engine
from fdjax.engine.group import Samples
from fdjax.engine.origin import Origin
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.beam_params import BeamSearchParams
from tests.engine.test_continuous import LONG
from tests.engine.test_segments import NUM_PAGES, PAGE, Searches
from tests.support.engines import GREEDY, run, tiny_engine
from tests.support.soak import is_idle, soak

PROMPT, BRANCHES = 8, 3
NUM_SHARED = (PROMPT - 1) // PAGE


class Branch:
    """A sample: its pages, and what must lie in them."""

    def __init__(self, pages: list[int]) -> None:
        self.pages = pages
        self.line = [-100 - place for place in range(len(pages) * PAGE)]


class Groups(Searches):
    """Besides the searches, samples of one prompt: forks and selections in any order.

    The keys of a prompt's token are the same whoever computes them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.samples = Samples(PROMPT, page_size=PAGE, count=BRANCHES)
        self.branches: dict[int, Branch] = {}
        # So that what comes lies above, and may be moved when they have left.
        self.strange = self.pool.take(NUM_PAGES // 2)

    @rule(place=st.integers(0, BRANCHES - 1))
    def seat(self, place: int) -> None:
        if place in self.branches or self.samples.is_coming:
            return
        branch = Branch(self.pool.fork(self.samples.prompt))
        self.branches[place] = branch
        self.samples.seat()

    @rule(place=st.integers(0, BRANCHES - 1))
    def seat_one_that_must_read_all(self, place: int) -> None:
        """As one that tells the log-probabilities of its prompt."""
        if place not in self.branches:
            self.branches[place] = Branch([])
            self.samples.seat()

    @rule(place=st.integers(0, BRANCHES - 1), count=st.integers(1, PROMPT))
    def write(self, place: int, count: int) -> None:
        """Computes more of the prompt, or makes a token."""
        branch = self.branches.get(place)
        if branch is None:
            return
        first = len(branch.line)
        stop = min(first + count, PROMPT) if first < PROMPT else first + 1
        missing = -(-stop // PAGE) - len(branch.pages)
        if missing > self.pool.num_free:
            return
        branch.pages += self.pool.take(missing)
        for token in range(first, stop):
            known = token < PROMPT
            branch.line.append(-100 - token if known else self.num_written)
            self.memory[branch.pages[token // PAGE], token % PAGE] = branch.line[-1]
            self.num_written += not known
        full = branch.pages[: min(stop, PROMPT) // PAGE]
        self.pool.fork(self.samples.compute(full))

    @precondition(lambda self: self.branches)
    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        """It ends, or is put back."""
        branch = self.branches.pop(data.draw(st.sampled_from(sorted(self.branches))))
        self.pool.give_back(self.samples.leave())
        self.pool.give_back(branch.pages)

    def follow(self, moves: dict[int, int]) -> None:
        super().follow(moves)
        for branch in self.branches.values():  # each of them tells its group
            self.samples.move(moves)
            branch.pages = [moves.get(page, page) for page in branch.pages]

    @property
    def owned(self) -> list[int]:
        """As above; what branches share is counted once."""
        shared = {*self.samples.prompt}
        own = {page for one in self.branches.values() for page in one.pages}
        return super().owned + sorted(shared | own)

    @invariant()
    def every_sample_reads_what_it_has_written(self) -> None:
        for branch in self.branches.values():
            for place, token in enumerate(branch.line):
                page = branch.pages[place // PAGE]
                assert self.memory[page, place % PAGE] == token

    @invariant()
    def what_is_written_next_is_nobody_elses(self) -> None:
        for branch in self.branches.values():
            others = {
                page
                for other in self.branches.values()
                if other is not branch
                for page in other.pages
            }
            begun = branch.pages[max(NUM_SHARED, len(branch.line) // PAGE) :]
            assert others.isdisjoint(begun)

    @invariant()
    def the_group_holds_the_prompt_while_a_sample_runs(self) -> None:
        done = [b for b in self.branches.values() if len(b.line) >= PROMPT]
        assert len(self.samples.prompt) <= NUM_SHARED
        assert self.branches or not self.samples.prompt
        assert not done or len(self.samples.prompt) == NUM_SHARED


TestGroups = Groups.TestCase


# --- In an engine ---------------------------------------------------------------------

SEEDED = SamplingParams(temperature=1.0, seed=5, max_tokens=9, ignore_eos=True, n=4)


@pytest.fixture(scope="module")
def bare() -> Engine:
    """Nothing is found by its tokens."""
    return tiny_engine(prefix_caching=False)


class Asked:
    """The samples of a request, and what has come of them."""

    def __init__(
        self,
        engine: Engine,
        params: SamplingParams = SEEDED,
        origin: Origin | None = None,
    ) -> None:
        first, *others = params.samples()
        request = engine.request(0, LONG[:17], first)
        samples = [request, *map(request.sampled, others)]
        self.engine = engine
        self.sequences = engine.add_samples(samples, origin)
        self.outputs: defaultdict[EngineSequence, list[int]] = defaultdict(list)

    def step(self) -> None:
        for sequence, increment in self.engine.step():
            self.outputs[sequence] += increment.token_ids

    def seat(self, place: int) -> EngineSequence:
        """Until a sample has a row."""
        while self.sequences[place].row is None:
            self.step()
        return self.sequences[place]

    def finish(self) -> list[list[int]]:
        """What each has made in the end, when nothing is left to do."""
        while self.engine.has_work:
            self.step()
        return [self.outputs[sequence] for sequence in self.sequences]


def alone(engine: Engine, params: SamplingParams = SEEDED) -> list[list[int]]:
    """What each sample gives by itself."""
    return [run(engine, [LONG[:17]], sample)[0] for sample in params.samples()]


def test_a_prompt_is_computed_once_where_nothing_is_cached(bare: Engine):
    expected, asked = alone(bare), Asked(bare)
    asked.seat(3)
    sequences, pool = asked.sequences, bare.scheduler.pool
    assert [one.num_cached for one in sequences] == [0, 16, 16, 16]
    assert len({tuple(one.pages[:2]) for one in sequences}) == 1
    assert len({one.pages[-1] for one in sequences}) == 4
    held = {page for one in sequences for page in one.pages}
    assert pool.num_free == pool.num_pages - len(held)
    assert asked.finish() == expected
    assert is_idle(bare)
    assert bare.scheduler.prefixes.num_cached_tokens == 0, "it was not by a cache"


def test_a_sample_is_aborted_by_itself_and_the_others_go_on(bare: Engine):
    expected, asked = alone(bare), Asked(bare)
    asked.step()
    assert [one.row for one in asked.sequences] == [0, None, None, None]
    bare.abort(asked.sequences[0])  # who has computed the prompt for all
    bare.abort(asked.seat(2))
    outputs = asked.finish()
    assert [outputs[1], outputs[3]] == [expected[1], expected[3]]
    assert is_idle(bare)


def test_nobody_waits_for_a_sample_that_is_parked(bare: Engine):
    expected, asked = alone(bare), Asked(bare)
    asked.step()
    bare.park(asked.sequences[0])
    assert asked.finish()[1:] == expected[1:]
    bare.resume(asked.sequences[0])
    assert asked.finish() == expected
    assert is_idle(bare)


def test_more_samples_than_rows_are_served_one_after_the_other(bare: Engine):
    many = dataclasses.replace(SEEDED, n=7)
    expected = alone(bare, many)
    assert Asked(bare, many).finish() == expected
    assert is_idle(bare)


@pytest.mark.parametrize("caching", [False, True], ids=["bare", "cached"])
def test_samples_that_are_put_back_get_the_same(bare: Engine, caching: bool):
    """Pages for two samples, which share those of their prompt."""
    small = tiny_engine(num_pages=5, steps_per_launch=2, prefix_caching=caching)
    expected, asked = alone(bare), Asked(small, origin=Origin(tenant="a"))
    assert asked.finish() == expected
    assert small.scheduler.num_preemptions > 0
    assert is_idle(small)


def test_a_scored_prompt_is_read_whole_by_the_first_sample(bare: Engine):
    expected = alone(bare)
    asked = Asked(bare, dataclasses.replace(SEEDED, prompt_logprobs=1))
    assert asked.finish() == expected
    assert [one.num_cached for one in asked.sequences] == [0, 16, 16, 16]
    assert is_idle(bare)


def test_samples_keep_their_prompt_when_pages_move(bare: Engine):
    """One that is let in after that begins from where it lies now."""
    many = dataclasses.replace(SEEDED, n=5)
    expected = alone(bare, many)
    others = [bare.add(bare.request(0, LONG, GREEDY)) for _ in range(2)]
    bare.step()
    asked, pool = Asked(bare, many), bare.scheduler.pool
    asked.seat(1)
    for other in others:
        bare.abort(other)
    before = asked.sequences[0].pages[:2]
    bare._pipeline._clear(pool.num_free)
    after = asked.sequences[0].pages[:2]
    assert before != after == asked.sequences[0].group.prompt
    assert asked.seat(4).pages[:2] == after
    assert asked.finish() == expected
    assert is_idle(bare)


@pytest.mark.parametrize("caching", [False, True], ids=["bare", "cached"])
def test_dozens_of_samples_and_searches_leave_every_page_free(caching: bool):
    engine = tiny_engine(num_pages=9, steps_per_launch=2, prefix_caching=caching)
    done = soak(engine, num_requests=40, seed=1, asked=("drawn", 2), max_samples=4)
    assert min(done.num_aborted, done.num_searches) > 3
    assert engine.scheduler.num_preemptions > 0
    assert is_idle(engine)
    assert list(done.differing(engine)) == []


def test_a_search_is_a_group_whose_sequence_holds_the_prompt(bare: Engine):
    params = BeamSearchParams(beam_width=3, max_tokens=4, ignore_eos=True)
    sequence = bare.add(bare.request(0, LONG[:17], params))
    while sequence.num_launched < 20:
        bare.step()
    assert (len(sequence.pages), len(sequence.search.pages)) == (3, 3)
    assert not sequence.group.is_coming and not sequence.group.prompt
    bare.abort(sequence)
    assert is_idle(bare)
