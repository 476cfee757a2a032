"""Rows shared among requests: nobody waits for another's samples, or gets less."""

import dataclasses
from collections import defaultdict

import pytest

from fdjax.engine.engine import Engine
from fdjax.engine.origin import Origin
from fdjax.engine.sequence import EngineSequence
from tests.support.engines import GREEDY, PROMPTS, run, shallow_model, tiny_engine
from tests.support.soak import is_idle

LONG = dataclasses.replace(GREEDY, max_tokens=50)


@pytest.fixture(scope="module")
def engine() -> Engine:
    """Four rows, and room for as many of the longest sequences."""
    return tiny_engine(shallow_model(), max_model_len=64, steps_per_launch=2)


@pytest.mark.parametrize("tenant", ["many", "one"])
def test_one_request_does_not_keep_all_rows(engine: Engine, tenant: str):
    """It gives one up before any of its samples has ended, and loses no token."""
    alone = run(engine, [PROMPTS[1], PROMPTS[2]], LONG)
    many, one = Origin(tenant="many"), Origin(tenant=tenant)
    sequences = [
        engine.add(engine.request(0, PROMPTS[1], LONG), many) for _ in range(8)
    ]
    while len(engine.scheduler.running) < 4:
        engine.step()
    late = engine.add(engine.request(0, PROMPTS[2], LONG), one)
    before = engine.scheduler.num_preemptions
    outputs: defaultdict[EngineSequence, list[int]] = defaultdict(list)
    while engine.has_work:
        for sequence, increment in engine.step():
            if sequence is late and not outputs[late]:
                assert not any(sequence.ended for sequence in sequences)
            outputs[sequence] += increment.token_ids
    assert engine.scheduler.num_preemptions == before + 1
    assert [sequence.output for sequence in sequences] == [alone[0]] * 8
    assert outputs[late] == alone[1]
    assert is_idle(engine)
