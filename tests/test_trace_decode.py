"""Steps of unequal rows: what is drawn, what counts, and the shipped model."""

import asyncio
import json
import pathlib
from collections.abc import AsyncIterator

import numpy as np
import pytest

from benchmarks.serving_online import Answered
from benchmarks.trace_decode import answers, drawn_lengths, main, steps_of
from fdjax.cli.bench.arrivals import Arrival


def test_requests_are_drawn_as_often_as_they_have_output():
    trace = [Arrival(0.0, 10, 1), Arrival(0.0, 1000, 99), Arrival(0.0, 5000, 9)]
    random = np.random.default_rng(0)
    drawn = [drawn_lengths(trace, 1, most=2000, random=random)[0] for _ in range(2000)]
    long = [one for one in drawn if one >= 1000]
    assert {one for one in drawn if one < 1000} == {10}, "it has one token alone"
    assert len(long) / len(drawn) == pytest.approx(0.99, abs=0.01)
    assert max(drawn) < 1000 + 99 and min(long) == 1000
    assert np.mean(long) == pytest.approx(1049, abs=3)


def test_rows_are_other_requests():
    trace = [Arrival(0.0, n, 1) for n in range(1, 9)]
    random = np.random.default_rng(0)
    assert sorted(drawn_lengths(trace, 8, most=9, random=random)) == [*range(1, 9)]
    with pytest.raises(SystemExit, match="7 requests of the trace fit, of 8 rows"):
        drawn_lengths(trace, 8, most=8, random=random)


def test_only_steps_of_all_rows_count():
    """The first row alone is fast; with the second one a step takes 10 ms."""
    fast = Answered([0.001, 0.002, 0.102, 0.112, 0.122, 0.132], [1] * 6)
    late = Answered([0.102, 0.122, 0.142], [1, 2, 2])
    steps = steps_of([50, 7], [fast, late])
    assert steps.ms == pytest.approx(10.0)
    assert steps.count == 2, "of the row that comes two at a time"
    assert steps.tokens == [50 + 3 + 1, 7 + 1 + 1]


def test_rows_that_never_meet_are_an_error():
    early, late = Answered([0.1, 0.2], [1, 1]), Answered([0.3, 0.4], [1, 1])
    with pytest.raises(SystemExit, match="more --tokens"):
        steps_of([1, 1], [early, late])


def test_times_have_one_clock():
    """What comes later has later times, also where it waits before it begins."""
    ended = asyncio.Event()

    async def generate(prompt: list[int], count: int) -> AsyncIterator[int]:
        if prompt[0]:
            await ended.wait()
            await asyncio.sleep(0.05)
        for _ in range(count):
            yield 1
        ended.set()

    first, second = asyncio.run(answers(generate, [[0], [5]], tokens=3))
    assert first.counts == second.counts == [1, 1, 1]
    assert 0 <= first.times[-1] <= second.times[0] - 0.04


def test_the_shipped_model_on_a_cpu(tmp_path: pathlib.Path):
    trace, out = tmp_path / "trace.csv", tmp_path / "rows.json"
    sizes = [(20, 4), (2200, 9), (5, 30), (30, 6), (12, 8)]
    lines = [f"2023-11-16 18:15:{i:02},{a},{b}" for i, (a, b) in enumerate(sizes)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    other = {"case": "trace-3", "engine": "vllm", "model": "tales-5m"}
    stale = other | {"engine": "fdjax"}
    out.write_text(json.dumps([other, stale]))
    options = "--model tales-5m --rows 3 --tokens 48 --repeats 1 --max-model-len 96"
    main([str(trace), *options.split(), "--out", str(out)])
    kept, row = json.loads(out.read_text())
    assert kept == other
    assert (row["case"], row["engine"], row["rows"]) == ("trace-3", "fdjax", 3)
    assert row["ms_per_step"] > 0 and row["steps"] >= 1
    assert 5 < row["tokens_least"] <= row["tokens_mean"] <= row["tokens_most"] < 96
    assert row["commit"] and row["max_num_seqs"] == 3
