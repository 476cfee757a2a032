"""Runs in this process: what is run, and what is timed."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from fdjax import LLM, Chunk, SamplingParams
from fdjax.cli.bench import offline
from fdjax.cli.bench.options import RunOptions

OPTIONS = RunOptions(input_len=5, output_len=3, warmup=1, repeats=2)


@pytest.fixture
def seen(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Prompts of every run, whose tokens come second by second.

    Prompt 0 gets its first token after 1 s and two more after 3 s; prompt 1 all three
    after 2 s.
    """
    runs: list[Any] = []
    clock = itertools.count(100.0)

    def stream(
        prompts: Sequence[Sequence[int]], params: SamplingParams
    ) -> Iterator[Chunk]:
        runs.append(prompts)
        assert (params.temperature, params.max_tokens, params.ignore_eos) == (
            0,
            3,
            True,
        )
        yield Chunk(0, [7], None, None)
        yield Chunk(1, [7, 8, 9], None, "length")
        yield Chunk(0, [8, 9], None, "length")

    monkeypatch.setattr(llm, "stream", stream)
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    return runs


def test_times_of_a_run(llm: LLM, seen: list[Any]):
    runs = offline.measure(llm, OPTIONS, num_prompts=2)
    expected = offline.Run(total_s=4.0, first_token_s=(1.0, 2.0), per_token_s=(1.0,))
    assert runs == [expected] * 2
    assert len(seen) == 3


def test_no_two_runs_share_a_prompt(llm: LLM, seen: list[Any]):
    ended: list[None] = []
    offline.measure(llm, OPTIONS, num_prompts=2, on_run=lambda: ended.append(None))
    prompts = [tuple(prompt) for run in seen for prompt in run]
    assert len(set(prompts)) == 6
    assert {len(prompt) for prompt in prompts} == {5}
    assert len(ended) == 3


def test_every_token_is_waited_for(llm: LLM):
    (run,) = offline.measure(llm, RunOptions(4, 9, 0, 1), num_prompts=3)
    assert len(run.first_token_s) == len(run.per_token_s) == 3
    assert 0 < min(run.first_token_s) <= max(run.first_token_s) < run.total_s
