"""Calls of searches that are no power of two are padded where that saves calls."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from fdjax.engine.beam_batches import first_call, padded_count
from fdjax.engine.beam_executor import BeamExecutor
from fdjax.engine.engine import Engine
from fdjax.engine.request import Found, Hypothesis, Increment
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.kernels.shared_prefix import table
from fdjax.kernels.shared_prefix.table import Worth
from tests.support.engines import PROMPTS, shallow_model, tiny_engine
from tests.support.soak import is_idle

type Asked = tuple[list[int], BeamSearchParams]

SEARCH = BeamSearchParams(beam_width=2, ignore_eos=True, repetition_penalty=1.2)
# They end one after the other, and are of one kind: tables have room for 16 tokens.
ASKED: list[Asked] = [
    (PROMPTS[1][place:], dataclasses.replace(SEARCH, max_tokens=9 + place))
    for place in range(5)
]


@pytest.mark.parametrize(
    ("count", "rows", "first"),
    [
        (1, 1, 1),
        (3, 4, 4),
        (29, 4, 32),
        (33, 2, 64),
        (33, 4, 32),  # 31 more searches for one call less
        (5, 64, 4),
        (8, 512, 8),
    ],
)
def test_padding_costs_less_than_the_calls_that_it_saves(
    count: int, rows: int, first: int
):
    assert first_call(count, rows=rows) == first


def test_padded_counts_are_powers_of_two():
    assert [padded_count(count) for count in range(1, 10)] == [
        *(1, 2, 4, 4, 8, 8, 8, 8, 16)
    ]


@pytest.mark.parametrize("least", [0, Worth.prompt_bytes])
def test_searches_of_padded_calls_find_what_each_finds_alone(
    least: int, monkeypatch: pytest.MonkeyPatch
):
    """A call each step, whether prompts are read once for all beams or by each."""
    monkeypatch.setattr(table.PART, "find", lambda: Worth(prompt_bytes=least))
    engine = tiny_engine(shallow_model(), page_size=4, max_num_seqs=16)
    alone = [_found(engine, [one])[0] for one in ASKED]
    sizes: list[int] = []
    step = BeamExecutor.step

    def counted(self: BeamExecutor, searches: Any, kv: Any) -> Any:
        sizes.append(len(searches))
        return step(self, searches, kv)

    monkeypatch.setattr(BeamExecutor, "step", counted)
    assert _found(engine, ASKED) == alone
    assert is_idle(engine)
    longest = max(params.max_tokens or 0 for _, params in ASKED)
    assert len(sizes) == longest - 1 and {3, 5} < set(sizes)


def test_groups_are_padded_as_far_as_there_are_rows():
    """Three of three beams: ten rows have no room for groups of four."""
    params = dataclasses.replace(
        SEARCH, beam_width=9, num_beam_groups=3, diversity_penalty=0.5, max_tokens=8
    )
    found: list[list[list[list[int]]]] = []
    for rows, width in ((10, 3), (16, 4)):
        engine = tiny_engine(shallow_model(), page_size=4, max_num_seqs=rows)
        request = engine.request(0, PROMPTS[1], params)
        sums = engine.executor.beams.preparation.state(request).progress.sums
        assert sums.shape == (3, width)
        found.append(_found(engine, [(PROMPTS[1], params)]))
    assert found[0] == found[1]


def _found(engine: Engine, asked: Sequence[Asked]) -> list[list[list[int]]]:
    """The tokens of all hypotheses of each."""
    sequences = [engine.add(engine.request(0, *one)) for one in asked]
    last: dict[EngineSequence, Increment] = {}
    while engine.has_work:
        last.update(engine.step())
    found = [last[sequence] for sequence in sequences]
    return [[each.token_ids for each in _hypotheses(one)] for one in found]


def _hypotheses(increment: Increment) -> list[Hypothesis]:
    assert isinstance(increment, Found)
    return increment.hypotheses
