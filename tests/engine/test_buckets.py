"""The shapes programs are compiled for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdjax.engine.buckets import CHEAP_TOKENS, Buckets, ladder, smallest_fitting


@pytest.mark.parametrize(
    ("smallest", "largest", "ratio", "steps"),
    [
        (1, 8, 2, (1, 2, 4, 8)),
        (1, 6, 2, (1, 2, 4, 6)),
        (1, 1, 2, (1,)),
        (4, 100, 4, (4, 16, 64, 100)),
    ],
)
def test_a_ladder_ends_at_its_largest(
    smallest: int, largest: int, ratio: int, steps: tuple[int, ...]
):
    assert ladder(smallest, largest, ratio) == steps


@given(
    max_num_seqs=st.integers(1, 300),
    max_model_len=st.integers(1, 5000),
    page_size=st.integers(1, 64),
    max_batched_tokens=st.integers(1, 9000),
)
def test_every_size_has_a_bucket(
    max_num_seqs: int, max_model_len: int, page_size: int, max_batched_tokens: int
):
    buckets = Buckets.of(
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        page_size=page_size,
        max_batched_tokens=max_batched_tokens,
    )
    assert buckets.rows[-1] == max_num_seqs
    assert buckets.widths[-1] * page_size >= max_model_len
    for steps in (buckets.rows, buckets.prompts, buckets.widths):
        assert list(steps) == sorted(set(steps))
    for prompt in buckets.prompts:
        steps = buckets.prefill_steps(prompt)
        assert steps[0] == 1 and steps[-1] <= max_num_seqs
        assert steps[-1] == 1 or steps[-1] * prompt <= max_batched_tokens
    assert smallest_fitting(buckets.prompts, max_model_len) >= max_model_len


@given(
    max_num_seqs=st.integers(1, 300),
    prompt=st.integers(1, 200),
    counts=st.lists(st.integers(1, 400), min_size=2, max_size=2, unique=True),
    rooms=st.lists(st.integers(1, 9000), min_size=2, max_size=2, unique=True),
)
def test_a_prefill_call_is_full_or_cheap(
    max_num_seqs: int, prompt: int, counts: list[int], rooms: list[int]
):
    buckets = Buckets.of(
        max_num_seqs=max_num_seqs,
        max_model_len=200,
        page_size=16,
        max_batched_tokens=9000,
    )
    prompt = smallest_fitting(buckets.prompts, prompt)
    few, many = sorted(counts)
    tight, wide = (max(room, prompt) for room in sorted(rooms))
    rows = buckets.prefill_rows(prompt, few, wide)
    assert rows in buckets.prefill_steps(prompt)
    assert rows <= few or rows * prompt <= CHEAP_TOKENS
    assert rows <= buckets.prefill_rows(prompt, many, wide)
    rows = buckets.prefill_rows(prompt, few, tight)
    assert rows * prompt <= tight
    # The executor pads what was chosen without knowing the room.
    assert buckets.prefill_rows(prompt, min(rows, few)) == rows
