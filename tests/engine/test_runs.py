"""Runs of one engine: each is driven by whoever reads it, and ends with its reader."""

import dataclasses
import itertools
from collections.abc import Generator, Sequence
from typing import Any

import pytest

from fdjax import QueueFullError, RequestError
from fdjax.engine.engine import Engine
from fdjax.engine.limits import QueueLimits
from fdjax.engine.runs import Runs
from tests.support.engines import GREEDY, PROMPTS, run, tiny_engine


@pytest.fixture(scope="module")
def alone(engine: Engine) -> list[list[int]]:
    """What each prompt gives when it runs by itself."""
    return [run(engine, [prompt])[0] for prompt in PROMPTS]


def all_free(engine: Engine) -> bool:
    return engine.scheduler.pool.num_free == engine.plan.layout.num_pages


def start(engine: Engine, runs: Runs, prompt: Sequence[int]) -> Generator[list[int]]:
    """The tokens of a run, as they come."""
    sequences = runs.add([engine.request(0, prompt, GREEDY)])
    for _, increment in runs.follow(sequences):
        yield increment.token_ids


def test_a_run_given_up_gives_its_pages_back(engine: Engine, alone: list[list[int]]):
    tokens = start(engine, Runs(engine), PROMPTS[0])
    next(tokens)
    assert not all_free(engine)
    tokens.close()
    assert all_free(engine)
    assert run(engine, [PROMPTS[0]]) == alone[:1]


def test_runs_may_take_turns(engine: Engine, alone: list[list[int]]):
    runs = Runs(engine)
    several = [start(engine, runs, prompt) for prompt in PROMPTS]
    outputs: list[list[int]] = [[] for _ in several]
    for turn in itertools.zip_longest(*several, fillvalue=()):
        for output, tokens in zip(outputs, turn, strict=True):
            output.extend(tokens)
    assert outputs == alone
    assert all_free(engine)


def test_a_run_waits_for_the_pages_of_another(alone: list[list[int]]):
    engine = tiny_engine(max_num_seqs=1)
    runs = Runs(engine)
    first, second = (start(engine, runs, PROMPTS[i]) for i in (2, 1))
    tokens = next(first)
    assert [token for more in second for token in more] == alone[1]
    assert [*tokens, *(token for more in first for token in more)] == alone[2]
    assert all_free(engine)


def test_a_job_aborted_on_the_way_ends_its_run_and_no_other(
    engine: Engine, alone: list[list[int]]
):
    runs = Runs(engine)
    sequences = runs.add([engine.request(i, p, GREEDY) for i, p in enumerate(PROMPTS)])
    outputs: list[list[int]] = [[] for _ in sequences]
    for sequence, increment in runs.follow(sequences):
        outputs[increment.index] += increment.token_ids
        if sequence is sequences[1]:
            engine.abort(sequence)
    assert outputs[0] == alone[0] and outputs[2] == alone[2]
    assert 0 < len(outputs[1]) < len(alone[1])
    assert all_free(engine)


def test_all_requests_are_queued_or_none():
    engine = tiny_engine(limits=QueueLimits(samples=2))
    runs, request = Runs(engine), engine.request(0, [7], GREEDY)
    with pytest.raises(RequestError, match="3 samples to wait together, but max_queu"):
        runs.add([request] * 3)
    runs.add([request])
    with pytest.raises(QueueFullError, match=r"1 samples wait, and 2 may; .* 2 more"):
        runs.add([request] * 2)
    assert engine.scheduler.num_waiting == 1


def test_an_interrupt_after_donation_does_not_end_the_engine(
    engine: Engine, alone: list[list[int]], monkeypatch: pytest.MonkeyPatch
):
    decode = engine.executor.programs.decode

    def interrupted(*operands: Any, **options: Any) -> Any:
        decode(*operands, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.executor.programs, "decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(engine, [PROMPTS[0]])
    monkeypatch.undo()
    assert not engine.executor.kv.array.is_deleted()
    assert all_free(engine)
    assert run(engine, [PROMPTS[0]]) == alone[:1]


def test_a_step_that_fails_is_told_to_every_run_that_it_ended(
    engine: Engine, alone: list[list[int]], monkeypatch: pytest.MonkeyPatch
):
    runs = Runs(engine)
    long = dataclasses.replace(GREEDY, max_tokens=28)
    ended, failing = (start(engine, runs, prompt) for prompt in PROMPTS[1:])
    tokens = next(ended)
    sequences = runs.add([engine.request(0, PROMPTS[0], long)])
    other = runs.follow(sequences)
    next(other)
    next(failing)
    assert not sequences[0].ended

    def fails() -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "step", fails)
    with pytest.raises(KeyboardInterrupt):
        list(failing)
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="ended all that were under way; ask again"):
        list(other)
    # What had ended before has lost nothing.
    assert tokens + [token for more in ended for token in more] == alone[1]
    assert all_free(engine)
    again = start(engine, runs, PROMPTS[1])
    assert [token for more in again for token in more] == alone[1]
