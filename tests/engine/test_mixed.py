"""Prompts beside rows that decode, in one call; each gets what it gets alone."""

import itertools
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import jax
import pytest

from fdjax.engine.engine import Engine
from fdjax.engine.executor import AnyAwaited
from fdjax.engine.policy import StepPolicy
from fdjax.engine.sequence import EngineSequence, PromptChunk
from tests.support.engines import GREEDY, PROMPTS, run, shallow_model, tiny_engine
from tests.support.host_reads import no_host_reads
from tests.support.soak import STYLES, is_idle, soak

LONG = [int(token) for token in random.Random(0).choices(range(3, 120), k=24)]

type Call = tuple[set[EngineSequence], list[tuple[EngineSequence, int]]]


def small_engine(*, max_batched_tokens: int = 16, mixed: bool = True) -> Engine:
    """One layer, calls of few tokens, one step a launch."""
    return tiny_engine(
        shallow_model(),
        steps_per_launch=1,
        max_batched_tokens=max_batched_tokens,
        policy=StepPolicy(mixed=mixed),
    )


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    """What prompts give one by one, in an engine that mixes nothing."""
    engine = small_engine(mixed=False)
    return [run(engine, [prompt])[0] for prompt in [*PROMPTS, LONG]]


def watched(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Sequences that decode, and tokens of prompts, of each call with prompts."""
    calls: list[Call] = []
    extend = engine.executor.extend

    def noted(
        sequences: Sequence[EngineSequence], chunks: Sequence[PromptChunk]
    ) -> list[AnyAwaited]:
        calls.append(
            (set(sequences), [(chunk.sequence, chunk.size) for chunk in chunks])
        )
        return extend(sequences, chunks)

    monkeypatch.setattr(engine.executor, "extend", noted)
    return calls


def staggered(engine: Engine, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Requests that come one a step."""
    outputs: defaultdict[EngineSequence, list[int]] = defaultdict(list)
    sequences: list[EngineSequence] = []
    for prompt in itertools.chain(prompts, itertools.repeat(None)):
        if prompt is not None:
            sequences.append(engine.add(engine.request(0, prompt, GREEDY)))
        elif not engine.has_work:
            break
        for sequence, increment in engine.step():
            outputs[sequence] += increment.token_ids
    return [outputs[sequence] for sequence in sequences]


def test_a_row_that_decodes_has_a_token_in_every_call_with_a_prompt(
    alone: list[list[int]], monkeypatch: pytest.MonkeyPatch
):
    """The budget is for both: 16 tokens, one of them of the row that decodes."""
    engine = small_engine()
    calls = watched(engine, monkeypatch)
    assert staggered(engine, [PROMPTS[0], LONG]) == [alone[0], alone[3]]
    (nobody, [(first, size)]), *rest = calls
    assert (nobody, size) == (set(), 1)
    assert [sequences for sequences, _ in rest] == [{first}, {first}]
    assert [size for _, [(_, size)] in rest] == [15, 9]


def test_rows_and_prompts_are_one_call_of_the_layers_and_one_that_samples(
    monkeypatch: pytest.MonkeyPatch,
):
    """First tokens are sampled with the rows' next ones."""
    engine = small_engine(max_batched_tokens=64)
    asked: list[str] = []
    for name in ("extend", "sample", "decode", "score", "pool", "logits", "allow"):
        program = getattr(engine.executor.programs, name)

        def noted(
            *given: Any, name: str = name, program: Any = program, **named: Any
        ) -> Any:
            asked.append(name)
            return program(*given, **named)

        monkeypatch.setattr(engine.executor.programs, name, noted)
    engine.add(engine.request(0, PROMPTS[0], GREEDY))
    engine.step()
    engine.step()
    assert asked == ["extend", "sample", "decode"]
    asked.clear()
    for prompt in PROMPTS[1:3]:
        engine.add(engine.request(0, prompt, GREEDY))
    engine.step()
    assert asked == ["extend", "sample"]
    assert len([*engine.scheduler.decoding]) == 3


def test_without_mixing_they_take_turns(
    alone: list[list[int]], monkeypatch: pytest.MonkeyPatch
):
    engine = small_engine(mixed=False)
    calls = watched(engine, monkeypatch)
    assert staggered(engine, [*PROMPTS, LONG]) == alone
    assert not any(sequences for sequences, _ in calls)


def test_prompts_have_at_least_half_of_a_call(
    alone: list[list[int]], monkeypatch: pytest.MonkeyPatch
):
    engine = small_engine(max_batched_tokens=5)
    calls = watched(engine, monkeypatch)
    assert staggered(engine, [*PROMPTS, LONG]) == alone
    assert {len(sequences) for sequences, _ in calls} == {0, 1, 2}, (
        "a third decodes in turns"
    )


def test_nothing_is_traced_or_waited_for_when_requests_come_one_by_one(
    alone: list[list[int]],
):
    engine = small_engine()
    engine.warm_up([GREEDY])
    with jax.no_tracing(True), no_host_reads():
        assert staggered(engine, [*PROMPTS, LONG]) == alone
        assert staggered(engine, [LONG, *PROMPTS[::-1]]) == [alone[3], *alone[2::-1]]


def test_all_kinds_of_requests_mix():
    """And pages run out; `python -m tests.soak` has 10,000."""
    engine = tiny_engine(
        shallow_model(), num_pages=6, steps_per_launch=2, max_batched_tokens=16
    )
    done = soak(engine, num_requests=120, seed=2, asked=STYLES)
    assert done.num_mixed > 30
    assert engine.scheduler.num_preemptions > 0
    assert is_idle(engine)
    assert list(done.differing(engine)) == []
