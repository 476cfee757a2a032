"""The programs of the beam figures: exact memory, and measurements at tiny shapes."""

import json
import pathlib
from typing import Any

from benchmarks import (
    beam_attention,
    beam_charts,
    beam_memory,
    beam_pages,
    beam_tables,
    beams,
)
from fdjax import LLM
from tests.support.hf_model import FIXTURES


def test_memory_is_that_of_the_papers_figure_4():
    """137 GB for copies of the prompt, 86 GB for prompts that are held once."""
    rows = beam_memory.memory()
    (row,) = (r for r in rows if (r["model"], r["prompts"]) == ("GPT-J-6B", 32))
    token = 2 * 32 * 32 * 128 * 2
    assert row["standard_bytes"] == 32 * 4 * 2048 * token
    assert row["segment_bytes"] == 32 * (1024 + 4 * 1024) * token
    assert round(row["standard_bytes"] / 1e9) == 137
    assert round(row["segment_bytes"] / 1e9) == 86
    assert beam_memory.chart(rows).count("86 GB") == 1


def test_pages_are_counted_beside_the_papers_equation():
    """All but the last of 24 tokens are fed: two pages of 16 for each beam."""
    llm = LLM(max_num_seqs=4, enable_prefix_caching=False)
    held, most = beam_pages.pages(llm, "The fox", beams=4, tokens=24)
    assert most == 1 + 4 * 2
    assert 1 + 4 < held <= most


def test_the_table_of_many_searches_has_their_spreads():
    row = {"case": "fig9", "engine": "fdjax", "model": "llama3-8b", "prompts": 2}
    row |= {"beams": 4, "context": 1024, "tokens": 128, "requests_per_s": 6.0}
    row |= {"spread": 0.161, "commit": "abc"}
    peer = row | {"engine": "transformers 5.17.0", "requests_per_s": 2.0}
    longer = row | {"context": 2048, "requests_per_s": 1.0}
    *_, last = beam_tables.throughput([row, peer, longer]).splitlines()
    assert last == "| 2 x 4 | 6.00 | 16.1% | 2.00 | 3.0 x | abc |"
    *_, last = beam_tables.throughput([row | {"spread": None}, peer]).splitlines()
    assert last == "| 2 x 4 | 6.00 | one run | 2.00 | 3.0 x | abc |"


def test_cases_are_what_is_asked_for():
    steps = beams.searches("steps", context=1024, tokens=128)
    pairs = [(one.prompts, one.beams) for one in steps if one.beams]
    assert pairs == [(1, 4), (8, 8), (1, 64), (1, 512)]
    lengths = [one.context for one in beams.searches("fig7", context=256, tokens=8)]
    assert lengths == [32, 64, 128, 224]  # and 32 after it


def test_a_step_of_beams_is_measured_beside_rows(tmp_path: pathlib.Path):
    """With a tiny model; what the file has of other cases is kept."""
    out = tmp_path / "beams.json"
    out.write_text('[{"case": "fig7", "engine": "fdjax", "model": "llama"}]')
    given = ["steps", "--model", str(FIXTURES / "llama"), "--context", "16"]
    limits = ["--tokens", "5", "--most-rows", "4", "--repeats", "1"]
    rows = beams.main([*given, *limits, "--out", str(out)])
    assert [(row["prompts"], row["beams"]) for row in rows] == [(1, 4), (1, 0), (4, 0)]
    for row in rows:
        assert row["case"] == "steps" and row["engine"] == "fdjax"
        assert min(row["ms_per_step"], row["first_ms"], row["requests_per_s"]) > 0
    kept = json.loads(out.read_text())
    assert [row["case"] for row in kept] == ["fig7", *["steps"] * 3]
    beam_charts.write(rows, tmp_path, "cpu")
    (drawn,) = tmp_path.glob("*.svg")
    assert drawn.name == "beams-steps-ms-per-step-cpu.svg"
    words = drawn.read_text()
    assert words.count(">fdjax, llama, 16 in<") == 1, "common to all"
    assert [words.count(f">{one}<") for one in ("1 x 4 beams", "4 rows")] == [1, 1]


def test_results_of_other_widths_are_kept(tmp_path: pathlib.Path):
    """And the same measurement, made again, replaces the one before."""
    out = tmp_path / "beams.json"
    kept = {"case": "steps", "engine": "fdjax", "model": "llama", "prompts": 1}
    kept |= {"beams": 4, "context": 16, "tokens": 3}
    others = [kept, kept | {"beams": 2, "tokens": 9}, kept | {"beams": 2, "old": True}]
    out.write_text(json.dumps(others))
    given = ["steps", "--model", str(FIXTURES / "llama"), "--context", "16"]
    limits = ["--tokens", "3", "--widths", "2", "--repeats", "1", "--out", str(out)]
    rows = beams.main([*given, *limits])
    assert json.loads(out.read_text()) == [*others[:2], *rows]


def test_a_chart_tells_engines_apart():
    rows: list[dict[str, Any]] = [
        {"case": "fig9", "prompts": n, "beams": 4, "context": 8, "requests_per_s": n}
        | {"engine": engine, "model": "m"}
        for engine in ("fdjax", "vLLM 0.26.0, plugin 0.1.5")
        for n in (1, 2)
    ]
    (name,) = (drawn := beam_charts.charts(rows, "cpu"))
    assert name == "beams-fig9-requests-per-s-cpu.svg"
    words = drawn[name]()
    assert ">m, 8 in<" in words
    assert ">fdjax, 2 x 4 beams<" in words and ">vLLM 0.26.0, 2 x 4 beams<" in words


def test_attention_counts_what_some_beam_reads():
    (row,) = beam_attention.measure_attention(
        context=32, tokens=16, batches=(2,), heads=2, repeats=1
    )
    assert row["us"] > 0
    _, num_bytes = beam_attention._call(2, 32, 16, 2)
    each = 2 * 2 * 128 * 4
    assert 2 * (32 + 16) * each < num_bytes < 2 * (32 + 4 * 16) * each
