"""The program of longest sequences: its arithmetic, and runs of a tiny model."""

import json
import pathlib
from typing import Any

import jax
import pytest

from benchmarks import (
    memory,
    memory_chart,
    memory_one_call,
    memory_plans,
    memory_tables,
)
from benchmarks.memory_one_call import OneCallWay
from benchmarks.results import RESULTS
from fdjax.engine.engine import Engine
from fdjax.engine.lent_pages import LentPages
from fdjax.generate.params import SamplingParams
from fdjax.models.program import program_of
from fdjax.models.program.buffers import assign
from fdjax.serve import setup
from fdjax.serve.loading import load_decoder
from tests.support import h200
from tests.support.hf_model import FIXTURES

MODEL = str(FIXTURES / "llama")
GIB = 2**30
LLAMA = {"weights": 16_060_522_496, "kv": 131_072, "separate": 118_784}


@pytest.fixture
def on_h200(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    h200.pretend(monkeypatch, tmp_path)


@pytest.fixture(autouse=True)
def few_shapes(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Chunks of 64 tokens where something runs: few programs are compiled."""
    if "on_h200" not in request.fixturenames:
        monkeypatch.setitem(setup.MAX_BATCHED_TOKENS, "cpu", 64)


def _rows(out: pathlib.Path) -> dict[str, dict[str, Any]]:
    return {row["case"]: row for row in json.loads(out.read_text())}


# --- Arithmetic -----------------------------------------------------------------------


@pytest.mark.usefixtures("on_h200")
def test_the_ways_of_fig_19_are_told_apart():
    rows = memory.curves(memory.LLAMA, 80 * GIB)
    ways = {row["case"].rpartition("-")[2]: row for row in rows}
    assert list(ways) == ["separate", "arena", "chunked"]
    left = 80 * GIB - LLAMA["weights"]
    separate = left // (LLAMA["kv"] + LLAMA["separate"])
    assert separate - 64 <= ways["separate"]["prompt_tokens"] <= separate
    assert ways["separate"]["tokens"] == ways["separate"]["prompt_tokens"]
    assert 390_000 < ways["arena"]["prompt_tokens"] < left // (LLAMA["kv"] + 45_056)
    final = ways["chunked"]["tokens"]
    assert 528_000 < final < left // LLAMA["kv"]
    assert ways["arena"]["tokens"] == ways["chunked"]["prompt_tokens"] == final


def test_curves_are_those_of_a_device_that_is_not_here(tmp_path: pathlib.Path):
    """In this process too, whose device is a CPU; rows say so."""
    out = tmp_path / "memory.json"
    described = ["--described", "NVIDIA H200"]
    memory.main(["--case", "curves", *described, "--out", str(out)])
    rows = _rows(out)
    assert {name.partition("-80GiB-")[2] for name in rows} == {*memory_chart.WAYS}
    assert 528_000 < rows["llama3-8b-80GiB-chunked"]["tokens"] < 531_000
    assert {row["what"] for row in rows.values()} == {
        f"arithmetic for NVIDIA H200, on {jax.devices()[0].device_kind}"
    }
    with pytest.raises(SystemExit):
        memory.main(["--case", "llama3-8b-room", *described])


@pytest.mark.usefixtures("on_h200")
def test_one_page_more_does_not_fit():
    settings = memory_plans.settings_of(memory.LLAMA)
    plan = memory_plans.longest(settings, 80 * GIB)
    assert 0 <= plan.free_bytes < plan.layout.page_bytes
    assert memory_plans.room_tokens(plan) >= plan.max_model_len
    assert memory_plans.planned_bytes(plan) == 80 * GIB - plan.free_bytes
    prompt = memory_plans.arena_prompt(settings, plan)
    for pages, fits in ((prompt // 16, True), (prompt // 16 + 1, False)):
        needed = pages + memory_plans.borrowed_pages(settings, plan, pages)
        assert (needed <= plan.layout.num_pages) is fits


def test_activations_apart_took_what_the_buffers_are_planned_to():
    """The one case whose peak shows them, as the docs say."""
    rows = _rows(RESULTS / "nvidia-h200" / "memory.json")
    row = rows["llama3-8b-80GiB-one-call-apart"]
    config = memory.Settings.of(memory.LLAMA).config
    planned = 2 * assign(program_of(config, selects=True)).columns
    beside = LLAMA["weights"] + row["room_tokens"] * LLAMA["kv"]
    measured = (row["peak_bytes"] - beside) / row["prompt_tokens"]
    assert planned == 45_056 and round(measured) == 45_075
    assert planned <= measured <= 1.02 * planned


def test_the_largest_number_is_found_from_anywhere():
    for most in (0, 1, 5, 100):
        for near in (-3, 1, 4, 5, 6, 99, 100, 101, 1000):
            assert memory_plans.most(lambda n, m=most: n <= m, near=near) == most


# --- Runs -----------------------------------------------------------------------------


def test_the_longest_sequence_runs_to_its_end(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """Beyond the model's own limit, and in several chunks."""
    out = tmp_path / "memory.json"
    out.write_text('[{"case": "kept"}, {"case": "tiny", "tokens": 1}]')
    # What attention's definition gathers takes most of it.
    case = memory.MemoryCase("longest", MODEL, budget_gib=0.02)
    monkeypatch.setitem(memory.CASES, "tiny", case)
    memory.main(["--case", "tiny", "--output", "20", "--out", str(out)])
    rows = _rows(out)
    assert list(rows) == ["kept", "tiny"]
    row = rows["tiny"]
    assert row["tokens"] > memory.Settings.of(MODEL).max_model_len
    assert row["prompt_tokens"] == row["tokens"] - 20
    assert row["tokens"] <= row["room_tokens"]
    assert 0 < row["planned_bytes"] <= row["budget_bytes"] == int(0.02 * GIB)
    assert row["ttft_s"] > 0 and row["ms_per_token"] > 0


def test_a_shorter_sequence_has_the_same_room(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    case = memory.MemoryCase("longest", MODEL, budget_gib=0.02)
    monkeypatch.setitem(memory.CASES, "tiny", case)
    out = tmp_path / "memory.json"
    out.write_text('[{"case": "tiny"}]')
    shorter = ["--tokens", "50", "--output", "4"]
    memory.main(["--case", "tiny", *shorter, "--out", str(out)])
    rows = _rows(out)
    assert list(rows) == ["tiny", "tiny-50"]
    row = rows["tiny-50"]
    assert (row["tokens"], row["prompt_tokens"]) == (50, 46)
    assert row["room_tokens"] > 50
    with pytest.raises(SystemExit):
        memory.main(["--case", "curves", "--tokens", "32"])


@pytest.mark.parametrize("way", ["arena", "apart", "separate"])
def test_the_longest_prompt_of_one_call_runs(
    way: OneCallWay, monkeypatch: pytest.MonkeyPatch
):
    """On a CPU nothing is lent, and what an array could lend is nothing."""
    settings = memory_plans.settings_of(MODEL)
    asked = memory_one_call.one_call(settings, way, int(0.02 * GIB))
    case = memory.MemoryCase(way, MODEL, budget_gib=0.02)
    monkeypatch.setattr(memory, "one_call", lambda *_: asked)
    row = memory.measure("one", case, tokens=None, output=20)
    assert row["prompt_tokens"] == asked.num_prompt > 64
    assert row["tokens"] == asked.num_prompt + 20 <= asked.plan.max_model_len
    assert row["planned_bytes"] <= row["budget_bytes"] == int(0.02 * GIB)
    assert row["ttft_s"] > 0 and row["ms_per_token"] > 0


def test_a_prompt_that_has_no_room_for_one_call_is_not_cut_silently():
    settings = memory_plans.settings_of(MODEL)
    asked = memory_one_call.one_call(settings, "separate", int(0.02 * GIB))
    engine = asked.engine(load_decoder(settings))
    params = SamplingParams(temperature=0.0, max_tokens=1)
    with asked.running(engine), pytest.raises(RuntimeError, match="of a prompt of"):
        memory.run_sequence(engine, 10, params)


@pytest.mark.usefixtures("on_h200")
def test_prompts_of_one_call_are_those_of_the_curves_but_for_some_pages():
    settings = memory_plans.settings_of(memory.LLAMA)
    apart = memory_one_call.one_call(settings, "separate", 80 * GIB)
    arena = memory_one_call.one_call(settings, "arena", 80 * GIB)
    rows = {row["case"]: row for row in memory.curves(memory.LLAMA, 80 * GIB)}
    for one, way in ((apart, "separate"), (arena, "arena")):
        longest = rows[f"llama3-8b-80GiB-{way}"]["prompt_tokens"]
        assert longest - 256 <= one.num_prompt < longest
        assert 0 <= one.plan.free_bytes < 128 * 118_784 + 2**21
    assert arena.plan.layout.lent and not apart.plan.layout.lent
    # What it borrows, as the engine's room asks for it, and a page that is begun.
    width = arena.plan.layout.pages_for(arena.plan.max_model_len)
    lent = LentPages(
        settings.config,
        arena.plan.layout,
        num_rows=1,
        widths=(1, width),
        sizes={"decode": (1,), "extend": (16, arena.num_prompt)},
    )
    pages = lent.pages("extend", arena.num_prompt) + arena.num_prompt // 16 + 1
    assert pages <= arena.plan.layout.num_pages


def test_room_is_that_of_an_engine_warmed_up_for_anything(
    monkeypatch: pytest.MonkeyPatch,
):
    warmed = list[Any]()
    monkeypatch.setattr(Engine, "warm_up", lambda _, params: warmed.append(params))
    monkeypatch.setattr(memory, "ROWS", 2)
    case = memory.MemoryCase("room", MODEL, budget_gib=1.0)
    row = memory.measure("room", case, tokens=None, output=1)
    assert warmed == [None]
    assert row["tokens"] == row["room_tokens"] == 2 * 128
    assert row["ttft_s"] is row["ms_per_token"] is row["prompt_tokens"] is None


# --- The chart ------------------------------------------------------------------------


def test_a_run_stands_for_what_was_planned():
    rows: list[dict[str, Any]] = [
        {"case": f"llama3-8b-80GiB-{way}", "prompt_tokens": prompt, "tokens": last}
        for way, prompt, last in [
            ("separate", 279_000, 279_000),
            ("arena", 396_000, 531_000),
            ("chunked", 530_000, 530_000),
        ]
    ]
    drawn = memory_chart.chart(rows, "h200")
    assert "396,000; 531,000" in drawn and "530,000 (the paper: 502,000)" in drawn
    run = {"prompt_tokens": 529_968, "tokens": 530_000, "ttft_s": 140.0}
    drawn = memory_chart.chart([*rows, {"case": "llama3-8b-80GiB", **run}], "h200")
    assert "529,968; 530,000, run (the paper: 502,000)" in drawn
    case = {"case": "llama3-8b-80GiB-one-call-arena"}
    run = {"prompt_tokens": 393_000, "tokens": 393_032, "ttft_s": 90.0}
    drawn = memory_chart.chart([*rows, {**case, **run}], "h200")
    assert "393,000; 531,000, run" in drawn, "a few tokens came; there is room for more"
    with pytest.raises(ValueError, match="run the case curves first"):
        memory_chart.chart([], "h200")


# --- The table ------------------------------------------------------------------------


def test_the_table_tells_runs_from_what_is_planned():
    source = {"commit": "abc", "date": "2026-11-27", "jax": "0.11.2"}
    ran = {"planned_bytes": 85_899_127_936, "peak_over_plan": -0.00503}
    times = {"prompt_tokens": 529_344, "ttft_s": 152.887, "ms_per_token": 20.2782}
    none = dict.fromkeys(times)
    rows: list[dict[str, Any]] = [
        {"case": "longest", "tokens": 529_376, **times, **ran, **source},
        {"case": "room", "tokens": 902_096, **none, **ran, **source},
        {"case": "x-arena", "tokens": 530_896, "prompt_tokens": 395_184, **source},
        {"case": "x-separate", "tokens": 279_504, "prompt_tokens": 279_504, **source},
    ]
    _, _, longest, room, _, told = memory_tables.cases(rows).splitlines()
    assert longest == (
        "| longest | 529,376 | 529,344 | 152.9 | 20.3 | 85.90 | -0.50% | abc |"
    )
    assert room == "| room | 902,096 |  |  |  | 85.90 | -0.50% | abc |"
    assert told == (
        "Measured 2026-11-27, jax 0.11.2. By arithmetic alone: x-arena 395,184, "
        "530,896 at the end (abc); x-separate 279,504 (abc)."
    )
    assert memory_tables.cases([]) == memory_tables.NOTHING
