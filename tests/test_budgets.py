"""`benchmarks.budgets` with the model of the package, on a CPU, and its table."""

import asyncio
import gc
import json
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import jax
import pytest

from benchmarks import budgets
from benchmarks.budget_tables import budgets as table
from benchmarks.online_engines import EngineSettings, Started, start_fdjax
from benchmarks.serving_online import Load
from fdjax.cli.bench.arrivals import Arrival
from fdjax.engine.policy import PrefillOrder

LENGTHS = [(20, 4), (2200, 9), (5, 1), (30, 6), (12, 3)]


@pytest.fixture
def asked(tmp_path: pathlib.Path) -> list[str]:
    """A command line, but for what is measured; the third word is the results' file."""
    trace, out = tmp_path / "trace.csv", tmp_path / "out.json"
    lines = [f"2023-11-16 18:15:{i:02},{a},{b}" for i, (a, b) in enumerate(LENGTHS)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    return [
        *(str(trace), "--out", str(out), "--model", "tales-5m", "--skip", "0"),
        *("--max-model-len", "64", "--max-num-seqs", "2", "--seconds", "0.05"),
    ]


def alive() -> int:
    """Bytes of arrays, but for those of engines that other tests have had."""
    gc.unfreeze()  # a server's engine has set aside what it had when it started
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


def test_a_row_for_each_load_budget_and_order(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
):
    """And nothing is left of an engine when the next one starts."""
    before, found = alive(), list[int]()

    def start(settings: EngineSettings) -> Started:
        found.append(sum(array.nbytes for array in jax.live_arrays()))
        return start_fdjax(settings)

    monkeypatch.setattr(budgets, "start_fdjax", start)
    out = pathlib.Path(asked[2])
    kept = {"load": "conv-80", "budget": 8, "order": "fcfs", "model": "tales-5m"}
    out.write_text(json.dumps([kept, kept | {"budget": 32, "max_num_seqs": 2}]))
    budgets.main([*asked, "--loads", "conv-80,conv-512", "--budgets", "32,48"])
    first, *rows = json.loads(out.read_text())
    assert first == kept
    assert found == [before, before]
    assert [(row["load"], row["budget"], row["order"]) for row in rows] == [
        (load, budget, order)
        for budget in (32, 48)
        for load in ("conv-80", "conv-512")
        for order in ("fcfs", "shortest")
    ]
    for row in rows:
        assert (row["requests"], row["output_tokens"]) == (4, 14)
        assert row["ttft_long_ms"] is None and row["ttft_short_ms"] == row["ttft_ms"]
        assert not {*budgets.REPLACED} & {*row}


def test_orders_have_other_prompts_of_the_same_lengths():
    prompts, asked_for = list[tuple[int, ...]](), list[PrefillOrder]()

    async def answer(prompt: list[int], count: int) -> AsyncIterator[int]:
        prompts.append(tuple(prompt))
        yield count

    async def measured() -> list[dict[str, Any]]:
        return [row async for row in budgets.measured(started, [load], orders)]

    started = Started(answer, {}, 1000, None, lambda: None, asked_for.append)
    load = Load("conv-2", [Arrival(0.0, 20, 2), Arrival(0.0, 3000, 3)])
    orders: list[PrefillOrder] = ["fcfs", "shortest"]
    rows = asyncio.run(measured())
    assert [row["order"] for row in rows] == asked_for == orders
    assert [*map(len, prompts)] == [20, 3000, 20, 3000]
    assert len({*prompts}) == 4
    for row in rows:
        assert len(row["ttft_short_ms"]) == len(row["ttft_long_ms"]) == 3


def test_other_orders_are_refused(asked: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        budgets.main([*asked, "--orders", "longest"])
    assert "longest" in capsys.readouterr().err


def test_the_table():
    assert table([]) == "No results yet."
    row = {
        "load": "conv-20", "budget": 8192, "order": "fcfs", "requests_per_s": 17.14,
        "ttft_ms": [68.9, 163.5, 377.1], "ttft_short_ms": [60.0, 150.5, 1377.1],
        "ttft_long_ms": None, "tpot_ms": [14.7, 20.4, 30.1],
        "gap_ms": [8.6, 30.9, 100.1],
        "commit": "abc", "date": "2026-11-28", "jax": "0.11.2",
    }  # fmt: skip
    _, _, second, first, *_ = table([row, row | {"load": "conv-7"}, row]).splitlines()
    assert first == second
    assert first == (
        "| 20 a second | 8,192 | fcfs | 68.9 / 164 / 377 | 60.0 / 150 / 1,377 | none "
        "| 14.7 / 20.4 / 30.1 | 8.6 / 30.9 / 100 | 17.1 | abc |"
    )
