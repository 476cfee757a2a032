"""The memory plan: where the bytes of a budget go."""

import dataclasses

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdjax.errors import MemoryBudgetError
from fdjax.memory.kv import KVLayout
from fdjax.memory.plan import MemoryPlan, gib, plan_memory

LAYOUT = KVLayout(
    num_pages=1,
    num_layers=2,
    page_size=16,
    num_kv_heads=2,
    head_dim=64,
    dtype=jnp.bfloat16,
)
PAGE = 2 * 2 * 16 * 2 * 64 * 2
WEIGHTS, WORKSPACE, PAGE_WORKSPACE = 5_000_000, 1_000_000, 1_000
MAX_LEN, MAX_PAGES = 100, 7


def planned(
    budget_bytes: int,
    *,
    wanted_tokens: int = 1600,
    layout: KVLayout = LAYOUT,
    budget_from: str = "memory_fraction",
) -> MemoryPlan:
    return plan_memory(
        budget_bytes=budget_bytes,
        weight_bytes=WEIGHTS,
        workspace_bytes=WORKSPACE,
        layout=layout,
        page_workspace_bytes=PAGE_WORKSPACE,
        max_model_len=MAX_LEN,
        wanted_tokens=wanted_tokens,
        budget_from=budget_from,
    )


SMALLEST = WEIGHTS + WORKSPACE + MAX_PAGES * (PAGE + PAGE_WORKSPACE)


def test_a_page_holds_keys_and_values_of_all_layers():
    assert LAYOUT.page_bytes == PAGE
    assert LAYOUT.with_pages(5).nbytes == 5 * PAGE
    assert LAYOUT.with_pages(5).num_tokens == 80
    assert [LAYOUT.pages_for(n) for n in (1, 16, 17)] == [1, 1, 2]


def test_the_array_is_what_the_layout_says():
    layout = LAYOUT.with_pages(3)
    kv = layout.allocate()
    assert kv.array.shape == layout.shape == (3, 2, 2, 16, 2, 64)
    assert kv.array.nbytes == layout.nbytes
    assert not kv.array.any()


def test_the_smallest_budget_holds_one_sequence():
    plan = planned(SMALLEST)
    assert plan.layout.num_pages == MAX_PAGES
    assert plan.free_bytes == 0


def test_one_byte_less_is_refused_with_every_number():
    with pytest.raises(MemoryBudgetError) as caught:
        planned(SMALLEST - 1)
    message = str(caught.value)
    sequence = MAX_PAGES * (PAGE + PAGE_WORKSPACE)
    for number in (WEIGHTS, WORKSPACE, sequence, 1, SMALLEST - 1):
        assert gib(number) in message
    assert f"{MAX_LEN} tokens" in message
    assert "lower max_model_len" in message


@given(st.integers(SMALLEST, 20 * SMALLEST), st.integers(0, SMALLEST))
def test_more_budget_never_gives_fewer_pages(budget: int, more: int):
    small, large = planned(budget), planned(budget + more)
    assert small.layout.num_pages <= large.layout.num_pages
    for plan in (small, large):
        assert plan.free_bytes >= 0
        full = plan.layout.num_tokens >= 1600
        assert full or plan.free_bytes < PAGE + PAGE_WORKSPACE


def test_no_more_pages_than_wanted():
    assert planned(100 * SMALLEST, wanted_tokens=160).layout.num_pages == 10
    few = planned(100 * SMALLEST, wanted_tokens=16)
    assert few.layout.num_pages == MAX_PAGES, "one sequence of max_model_len must fit"


def test_a_budget_below_the_weights_is_refused():
    """Shorter or fewer sequences would not help."""
    for budget in (WEIGHTS // 2, WEIGHTS):
        with pytest.raises(MemoryBudgetError, match="; take a smaller model") as caught:
            planned(budget)
        assert "lower max_model_len" not in str(caught.value)
    with pytest.raises(MemoryBudgetError, match="; lower max_model_len"):
        planned(WEIGHTS + 1)


def test_a_narrower_type_is_advised_only_where_there_is_one():
    wide = dataclasses.replace(LAYOUT, dtype=jnp.float32)
    with pytest.raises(
        MemoryBudgetError, match=r"or raise memory_fraction, or take bfloat16$"
    ):
        planned(WEIGHTS // 2, layout=wide)
    for dtype in (jnp.bfloat16, jnp.float16):
        narrow = dataclasses.replace(LAYOUT, dtype=dtype)
        with pytest.raises(MemoryBudgetError, match=r"or raise memory_fraction$"):
            planned(WEIGHTS // 2, layout=narrow)


def test_the_setting_to_raise_is_the_one_the_budget_comes_from():
    with pytest.raises(MemoryBudgetError, match=r"or raise --budget$"):
        planned(WEIGHTS // 2, budget_from="--budget")


def test_the_parts_add_up():
    plan = planned(2 * SMALLEST)
    workspace = WORKSPACE + PAGE_WORKSPACE * plan.layout.num_pages
    parts = plan.weight_bytes + workspace + plan.kv_bytes + plan.free_bytes
    assert parts == plan.budget_bytes
    assert dataclasses.replace(plan, budget_bytes=0).free_bytes < 0


def test_sizes_for_people():
    assert gib(3 * 2**30 // 2) == "1.50 GiB"
    assert gib(3 * 2**20 // 2) == "1.5 MiB"
