"""What an engine keeps free at the KV array's end, and what its programs put there."""

import dataclasses
import itertools
import pathlib
import re
from typing import Any, Literal

import jax
import jax.numpy as jnp
import pytest

from fdjax.engine.beam_prompts import BeamPrompts
from fdjax.engine.borrowing import BorrowingCall
from fdjax.engine.buckets import SMALLEST_PREFILL
from fdjax.engine.lent_pages import LentPages, lends
from fdjax.engine.step_calls import StepCalls
from fdjax.kernels.layer_program import call as layer_program
from fdjax.kernels.layer_program.memory import ALIGNMENT, Blocks, places_in
from fdjax.memory.kv import KVLayout
from fdjax.models.config import ModelConfig
from fdjax.models.program import cuda
from fdjax.serve.setup import Settings
from tests.support import h200

CONFIGS = pathlib.Path(__file__).parents[2] / "configs" / "models"
ROWS, LENGTH = 256, 8192
GIB = 2**30


@pytest.fixture(autouse=True)
def on_h200(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    h200.pretend(monkeypatch, tmp_path)


def _settings(name: str = "llama3-8b", **options: Any) -> Settings:
    path = CONFIGS / f"{name}.json"
    sizes: dict[str, Any] = {"max_model_len": LENGTH, "max_num_seqs": ROWS}
    return Settings.of(path, dtype="bfloat16", **{**sizes, **options})


def _lent(
    config: ModelConfig, layout: KVLayout, *widths: int, shares: bool = False
) -> LentPages:
    sizes = {"extend": (16, 64, 128)}
    return LentPages(
        config, layout, num_rows=ROWS, widths=widths, sizes=sizes, shares=shares
    )


def test_a_step_takes_the_tokens_of_the_plan():
    settings = _settings()
    layout = settings.widest_layout
    assert layout.lent
    lent = _lent(settings.config, layout, 512)
    for tokens in (1024, 8192):
        activations = tokens * 45_056
        pages = lent.pages("extend", tokens)
        # Gate and up of 2,048 rows at most, and what pieces of attention leave.
        beside = min(tokens, 2048) * 28_672 * 2 + 100 * 2**20
        assert activations < pages * layout.page_bytes < activations + beside
    assert lent.pages("decode", 256) * layout.page_bytes < 32 * 2**20


def test_more_tokens_borrow_no_less():
    settings = _settings()
    lent, alone = (
        LentPages(
            settings.config,
            settings.widest_layout,
            num_rows=ROWS,
            widths=(512,),
            sizes={"extend": sizes},
        )
        for sizes in ((704, 1024), ())
    )
    assert alone.pages("extend", 1024) < alone.pages("extend", 704), "keys in pieces"
    assert lent.pages("extend", 1024) == alone.pages("extend", 704)


@pytest.mark.parametrize("name", ["llama3-8b", "glm-4-9b-0414"])
def test_the_longest_sequence_that_is_planned_for_has_room_alone(name: str):
    """The plan leaves it what the smallest call with a prompt borrows, and no more."""
    settings = _settings(name, max_num_seqs=1)
    plan = settings.memory_plan(40 * GIB)
    sizes = {"decode": (1, 2), "extend": (SMALLEST_PREFILL,)}
    widths = (8, plan.layout.pages_for(LENGTH))
    lent = LentPages(
        settings.config,
        plan.layout,
        num_rows=1,
        widths=widths,
        sizes=sizes,
        shares=True,
    )
    assert lent.pages("decode", 1) <= plan.least_step_pages < lent.pages("decode", 2)


@pytest.mark.parametrize(
    "kind", ["extend", "decode", "score", "pool", "beams", "shared"]
)
def test_no_program_overwrites_more(
    kind: BorrowingCall | Literal["shared"], monkeypatch: pytest.MonkeyPatch
):
    settings = _settings()
    config, layout = settings.config, settings.widest_layout.with_pages(1000)
    seen = _seen_places(monkeypatch)
    lent = _lent(config, layout, 32, 512, shares=kind == "shared")
    calls = StepCalls(config, layout, ROWS)
    borrowed = lent.pages("decode" if kind == "shared" else kind, 64)
    for width in (32, 512):
        jax.eval_shape(cuda.run, calls.of(kind, 64, width))
        begin = seen[-1][0]
        assert layout.nbytes - begin <= borrowed * layout.page_bytes
    tight = borrowed - 1
    assert any(layout.nbytes - one[0] > tight * layout.page_bytes for one in seen)


@pytest.mark.parametrize("num_pages", [20_000, 20_001])
def test_no_program_overwrites_more_where_blocks_end_before_the_array(
    num_pages: int, monkeypatch: pytest.MonkeyPatch
):
    """Pages of 9 half alignments: what lies at the end begins half of one earlier."""
    one_head = {"num_hidden_layers": 1, "num_key_value_heads": 1, "head_dim": 96}
    small = {"num_attention_heads": 6, "hidden_size": 288, "intermediate_size": 768}
    settings = _settings(page_size=3, hf_overrides=one_head | small)
    config, layout = settings.config, settings.widest_layout.with_pages(num_pages)
    assert layout.lent and layout.page_bytes == 9 * ALIGNMENT // 2
    seen = _seen_places(monkeypatch)
    lent, calls = _lent(config, layout, 128), StepCalls(config, layout, ROWS)
    for tokens in range(16, 256, 16):
        jax.eval_shape(cuda.run, calls.of("extend", tokens, 128))
        kept = lent.pages("extend", tokens) * layout.page_bytes
        assert layout.nbytes - seen[-1][0] <= kept, tokens


def _seen_places(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Where each call that is traced from now on puts its blocks."""
    seen: list[tuple[int, ...]] = []

    def seen_places(*arguments: Any) -> tuple[int, ...]:
        seen.append(places_in(*arguments))
        return seen[-1]

    monkeypatch.setattr(layer_program, "places_in", seen_places)
    return seen


@pytest.mark.parametrize("rows", [1, 3, 16, 64])
def test_no_beams_that_read_their_prompts_overwrite_more(rows: int):
    """Of prompts and outputs that are short each and long together.

    A model with windows has no others; with few bytes a page nothing hides in rounding.
    """
    path, widths = CONFIGS / "mistral-7b-v0.1.json", (64, 256, 750)
    sizes: dict[str, Any] = {"max_model_len": 6000, "page_size": 8}
    settings = Settings.of(path, dtype="bfloat16", max_num_seqs=ROWS, **sizes)
    config, layout = settings.config, settings.widest_layout.with_pages(1000)
    lent, calls = _lent(config, layout, *widths), StepCalls(config, layout, ROWS)
    borrowed = lent.pages("beams", rows) * layout.page_bytes
    for prompt, own in itertools.product(widths, repeat=2):
        call = calls.of("separate", rows, prompt + own)
        assert cuda.activation_bytes(call) <= borrowed, (prompt, own)


def test_a_search_of_groups_borrows_no_more_than_one_of_single_beams():
    """Whatever the groups, and their padding."""
    prompts = BeamPrompts(_settings().config)
    most = prompts.shapes(64, 1)
    for groups, width in ((1, 64), (8, 8), (32, 2), (1, 33)):
        planned = prompts.shapes(groups, width)
        assert planned.num_records <= most.num_records


@pytest.mark.parametrize("kind", ["extend", "decode", "score", "pool", "beams"])
def test_where_a_step_computes_is_a_constant_of_its_program(kind: BorrowingCall):
    """A graph that was captured once holds for ever: offsets are attributes.

    No operand tells them, and no row's length or page: a step whose array is not lent
    has the same operands.
    """
    settings = _settings()
    layout = settings.widest_layout.with_pages(1000)
    lent = _lent(settings.config, layout, 32)
    attribute, operands = _lowered(settings.config, layout, kind)
    begins, sizes = attribute[::2], attribute[1::2]
    first = layout.nbytes - lent.pages(kind, 64) * layout.page_bytes
    assert first <= min(begins) and sum(sizes) > 0
    ends = [begin + size for begin, size in zip(begins, sizes, strict=True)]
    assert max(ends) <= layout.nbytes
    apart = dataclasses.replace(layout, lent=False)
    assert _lowered(settings.config, apart, kind) == ([], operands)


def _lowered(
    config: ModelConfig, layout: KVLayout, kind: BorrowingCall
) -> tuple[list[int], list[str]]:
    """Of the call in a program for CUDA: the places it is told, and its operands."""
    call = StepCalls(config, layout, ROWS).of(kind, 64, 32)
    traced = jax.jit(cuda.run).trace(call)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    lines = [one for one in text.splitlines() if "custom_call @" in one]
    (line,) = (one for one in lines if layer_program.NAME in one)
    places = re.search(r"\bplaces = dense<(?:\[([\d, ]*)\])?> : tensor<", line)
    types = re.search(r" : \((tensor<.*)\) -> ", line)
    assert places is not None and types is not None
    numbers = [int(one) for one in (places[1] or "").split(",") if one]
    return numbers, types[1].split(", ")


def test_blocks_lie_apart_at_the_end():
    layout = _settings().widest_layout.with_pages(3)
    kv = jax.eval_shape(layout.allocate)
    blocks = Blocks(1000, 1, 0, 300_000, 257, 4, 9, 0)
    places = places_in(kv, blocks)
    begins, sizes = places[::2], places[1::2]
    assert sizes == tuple(blocks)
    assert all(begin % ALIGNMENT == 0 for begin in begins)
    ends = [begin + size for begin, size in zip(begins, sizes, strict=True)]
    assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False))
    assert layout.nbytes - ALIGNMENT < ends[-1] <= layout.nbytes


def test_an_array_that_is_too_small_is_named():
    layout = _settings().widest_layout.with_pages(1)
    kv = jax.eval_shape(layout.allocate)
    blocks = Blocks(2**21, 1, 0, 0, 0, 0, 0, 0)
    with pytest.raises(ValueError, match=r"needs 2097408 bytes .* which has 2097152"):
        places_in(kv, blocks)


def test_what_one_call_does_not_serve_is_lent_nothing():
    config = dataclasses.replace(_settings().config, hidden_size=4097)
    layout = config.kv_layout(num_pages=1, page_size=16, dtype=jnp.bfloat16)
    assert not lends(config, layout, num_rows=ROWS, max_model_len=LENGTH)


def test_the_plan_counts_a_step_as_pages():
    settings = _settings()
    plan = settings.memory_plan(100 * GIB)
    large = dataclasses.replace(settings, max_batched_tokens=32_768)
    larger = large.memory_plan(100 * GIB)
    assert larger.step_pages > 3 * plan.step_pages
    # Hidden states of prompts that are pooled are less than sampling's logits.
    assert larger.layout.num_pages == plan.layout.num_pages
    assert 0 < plan.least_step_pages < plan.step_pages


def test_a_step_of_the_plan_is_no_larger_than_the_array():
    settings = _settings(max_model_len=256)
    plan = settings.memory_plan(int(15.74 * GIB))
    assert plan.least_step_pages < plan.step_pages == plan.layout.num_pages < 100


def test_a_sequence_fits_beside_a_small_step():
    settings = _settings(max_num_seqs=1, max_num_batched_tokens=512)
    plan = settings.memory_plan(100 * GIB)
    assert plan.layout.num_pages == LENGTH // 16 + plan.step_pages
