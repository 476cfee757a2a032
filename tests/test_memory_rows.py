"""The program of rows that fit: its arithmetic, its table, and a tiny model's steps."""

import json
import pathlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from benchmarks import memory_rows, memory_steps, memory_tables
from benchmarks.cases import Case
from benchmarks.decode import Bench, layout_of
from benchmarks.memory_rows import Lengths
from fdjax.engine.programs import Programs
from fdjax.serve import setup
from fdjax.serve.loading import load_decoder
from fdjax.serve.setup import Settings
from tests.support import h200
from tests.support.hf_model import FIXTURES

MODEL = str(FIXTURES / "llama")
LLAMA = "configs/models/llama3-8b.json"
GIB = 2**30


def _fitting(settings: Settings, lengths: Lengths, budget: int) -> dict[str, int]:
    found = memory_rows.rows_that_fit(settings, lengths, budget)
    return {way.name: rows for way, rows in found.items()}


# --- Arithmetic -----------------------------------------------------------------------


@pytest.fixture
def llama(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Settings:
    """Of one row, as if for an H200."""
    h200.pretend(monkeypatch, tmp_path)
    return Settings.of(LLAMA, max_model_len=2048, max_num_seqs=1)


def test_rows_of_llama_by_hand(llama: Settings):
    """Bytes a row: keys and values, what sampling keeps, and activations or logits."""
    found = _fitting(llama, Lengths(1024, 1024), 80 * GIB)
    kept = 128_256 * 42 // 8
    # Weights, slack, and what sampling keeps of 64 arrivals.
    left = 80 * GIB - 16_060_522_496 - 128 * 2**20 - 64 * kept
    row = 2048 * 131_072 + kept
    apart = left // (row + 1024 * 118_784)
    assert found["one_call_apart"] == apart == 178
    # Sampling has 3 x float32 logits, and a byte for what may come.
    row += 13 * 128_256
    lent = left // row
    # A step of so many rows borrows less than one of them holds.
    assert found["chunks_lent"] == lent == 257
    # What the one call borrows holds keys and values of the outputs later.
    assert found["one_call_lent"] == lent
    # Beside the array a call of 5,120 tokens always has its room.
    assert llama.max_batched_tokens == 5120
    assert found["chunks_apart"] == (left - 5120 * 118_784) // (row - 13 * 128_256)
    assert found["chunks_apart"] == 256
    # 45,056 bytes of each row, and what attention keeps of pieces, in pages of 2 MiB.
    sized = replace(llama, max_num_seqs=lent)
    needed = memory_rows.needed_bytes(memory_rows.WAYS[0], sized, Lengths(1024, 1024))
    pages, rest = divmod(needed - (80 * GIB - left) - lent * row, 2**21)
    assert rest == 0 and -(-lent * 45_056 // 2**21) <= pages < 20


def test_a_call_of_all_prompts_costs_rows_where_outputs_are_short(llama: Settings):
    short = replace(llama, max_model_len=1040)
    found = _fitting(short, Lengths(1024, 16), 80 * GIB)
    assert found["one_call_apart"] < found["one_call_lent"] < found["chunks_lent"]


def test_no_more_rows_than_kernels_take(llama: Settings):
    found = _fitting(replace(llama, max_model_len=32), Lengths(16, 16), 80 * GIB)
    assert found["chunks_lent"] == found["one_call_apart"] == 4096


# --- Steps ----------------------------------------------------------------------------


def test_rows_have_none_of_the_pages_that_are_lent():
    model = load_decoder(Settings.of(MODEL))
    case = Case(batch=3, context=20, steps=8)
    layout = layout_of(model, case)
    lent = replace(layout, lent=True).with_pages(layout.num_pages + 2)
    bench = Bench(model, Programs(model, steps_per_launch=8), case, lent)
    bench.rewind()
    bench.decode()
    kv = bench.progress.kv
    assert kv.lent and kv.array.shape[0] == layout.num_pages + 2
    written = np.any(np.asarray(kv.array), axis=(1, 2, 3, 4, 5))
    assert written.sum() == 3 and not written[-2:].any()


def test_each_batch_that_fits_is_measured(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """On a CPU nothing is lent; prompts of one call leave room for fewer rows."""
    monkeypatch.setitem(setup.MAX_BATCHED_TOKENS, "cpu", 64)
    out = tmp_path / "memory_rows.json"
    sizes = "--budget-gib 0.01 --prompt 32 --output 8 --batches 1,2,99"
    run = f"--model {MODEL} --steps 8 --repeats 2 --out {out}"
    memory_rows.main(f"{sizes} {run}".split())
    rows: list[dict[str, Any]] = json.loads(out.read_text())
    fits = {row["way"]: row["rows"] for row in rows}
    assert 2 < fits["one_call_apart"] < fits["chunks_apart"] < 99
    for way, most in fits.items():
        own = [row for row in rows if row["way"] == way]
        assert [row["batch"] for row in own] == [1, 2, most, 99]
        assert {(row["context"], row["model"]) for row in own} == {(36, "llama")}
        assert own[-1]["ms_per_step"] is own[-1]["tokens_per_s"] is None
        for row in own[:-1]:
            rate = row["batch"] / row["ms_per_step"] * 1e3
            assert row["tokens_per_s"] == pytest.approx(rate, rel=1e-2)


def test_lent_and_apart_take_turns_over_one_array(monkeypatch: pytest.MonkeyPatch):
    """Each is first in every other one; by the times of a turn they are compared."""
    model = load_decoder(Settings.of(MODEL))
    case = Case(batch=2, context=20, steps=8)
    seen, arrays = list[bool](), set[int]()
    seconds = iter([9.0, 9.0, 0.9, 1.0, 2.0, 2.2, 0.8, 1.0])

    def timed(run: Callable[[], None], *, repeats: int) -> list[float]:
        assert repeats == 1
        bench = cast(Any, run).__self__
        seen.append(bench.progress.kv.lent)
        run()
        arrays.add(bench.progress.kv.array.unsafe_buffer_pointer())
        return [next(seconds)]

    monkeypatch.setattr(memory_steps, "timed", timed)
    programs = Programs(model, steps_per_launch=8)
    ways = {True, False}
    found = memory_steps.step_times(model, programs, case, lents=ways, repeats=3)
    assert seen == [True, False, True, False, False, True, True, False]
    assert len(arrays) == 1, "there may be no room for two"
    assert found[True]["ms_per_step"] == 900 / 8
    assert found[False]["ms_per_step"] == 1000 / 8
    assert found[True]["of_apart"] == 0.9, "0.9 / 1.0, 2.2 / 2.0 and 0.8 / 1.0"
    assert found[True]["of_apart_quartiles"] == [0.85, 1.0]
    assert found[True]["repeats"] == 3 and "of_apart" not in found[False]


def test_ways_that_run_the_same_step_have_its_time(monkeypatch: pytest.MonkeyPatch):
    ran = list[tuple[int, set[bool]]]()

    def times(
        _: object, __: object, case: Case, *, lents: set[bool], **___: int
    ) -> Any:
        ran.append((case.batch, lents))
        return {lent: {"ms_per_step": 1.0 + lent} for lent in lents}

    monkeypatch.setattr(memory_rows, "step_times", times)
    fitting = dict(zip(memory_rows.WAYS, (6, 6, 5, 3), strict=True))
    unused: Any = None
    sizes = {"context": 8, "steps": 1, "repeats": 1}
    rows = [*memory_rows.measure(unused, unused, fitting, [2, 5, 9], **sizes)]
    both = {True, False}
    assert ran == [(2, both), (3, {False}), (5, both), (6, {True})]
    found = {(row["way"], row["batch"]): row["ms_per_step"] for row in rows}
    assert found["one_call_lent", 6] == 2.0
    assert found["chunks_apart", 5] == 1.0
    assert found["one_call_apart", 5] is found["chunks_lent", 9] is None
    assert ("one_call_apart", 6) not in found


# --- The table ------------------------------------------------------------------------


def test_the_table_has_batches_and_all_rows_that_fit():
    source = {"date": "2026-11-26", "jax": "0.11.2"}
    rows: list[dict[str, Any]] = [
        {"way": way, "rows": most, "batch": batch, "tokens_per_s": rate, **source}
        | {"spread": None if rate is None else 0.01}
        for way, most, batch, rate in [
            ("chunks_lent", 257, 1, 250.4),
            ("one_call_lent", 257, 1, 250.4),
            ("one_call_apart", 178, 1, 249.6),
            ("one_call_apart", 178, 178, 11_000.0),
            ("chunks_apart", 255, 1, 250.0),
            ("chunks_apart", 255, 255, 11_900.0),
            ("chunks_apart", 255, 256, None),
            ("chunks_lent", 257, 256, 12_090.0),
            ("one_call_lent", 257, 256, 12_090.0),
            ("one_call_apart", 178, 256, None),
            ("chunks_lent", 257, 257, 11_800.0),
            ("one_call_lent", 257, 257, 11_800.0),
        ]
    ]
    lines = memory_tables.rows(rows).splitlines()
    assert lines[0] == "| tokens/s | 1 | 256 | rows that fit | tokens/s of these |"
    assert lines[2] == "| chunks lent | 250 | 12,090 | 257 | 11,800 |"
    assert lines[4] == "| one call apart | 250 | OOM | 178 | 11,000 |"
    told = lines[-1]
    # The fastest batch that fits: 256 of 257, and all 255 or 178.
    assert "in chunks 257 rows for 255, 1.01 times, and 1.02 times the tokens" in told
    assert "in one call 257 rows for 178, 1.44 times, and 1.10 times the tokens" in told
    assert "1.0% at most" in told and "in turns" not in told
    for row in rows:
        if row["way"].endswith("_lent"):
            batch = row["batch"]
            row |= {"of_apart": 1.002 if batch == 1 else 0.999, "repeats": 15}
    told = memory_tables.rows(rows).splitlines()[-1]
    assert "In turns, 15 of each, a step took 0.999 to 1.002 times as long" in told
    assert memory_tables.rows([]) == memory_tables.NOTHING
