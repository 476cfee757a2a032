"""The shapes programs are compiled for."""

import dataclasses
import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fdjax.engine.buckets import (
    CHEAP_TOKENS,
    MAX_PADDING,
    Buckets,
    fine_ladder,
    ladder,
)


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


def test_no_two_fine_sizes_are_more_than_a_quarter_apart():
    """A call that is a token too large for one is padded by a fifth at most."""
    steps = fine_ladder(16, 8192)
    above = [step for step in steps if step >= CHEAP_TOKENS]
    assert (above[0], above[-1]) == (CHEAP_TOKENS, 8192) == (256, 8192)
    apart = [larger / smaller for smaller, larger in itertools.pairwise(above)]
    assert max(apart) <= 1.25


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
    assert buckets.step_tokens == max_batched_tokens
    assert buckets.prefill_rows <= max_num_seqs
    for steps in (buckets.rows, buckets.prefills, buckets.widths, buckets.mask_rows):
        assert list(steps) == sorted(set(steps))


@given(count=st.integers(1, 20_000), max_batched_tokens=st.integers(100, 9000))
def test_a_prefill_call_is_full_or_its_padding_is_cheap(
    count: int, max_batched_tokens: int
):
    buckets = Buckets.of(
        max_num_seqs=1,
        max_model_len=200,
        page_size=16,
        max_batched_tokens=max_batched_tokens,
    )
    tokens = buckets.call_tokens(count)
    assert tokens in buckets.prefills
    padding = tokens - count
    assert padding <= max(0, MAX_PADDING * tokens) or tokens <= CHEAP_TOKENS
    # All that wait are done in a few calls.
    calls = 0
    while count > 0:
        count -= buckets.call_tokens(count)
        calls += 1
    assert calls <= 20_000 // max_batched_tokens + 10


def test_a_crowd_does_not_wait_for_padding():
    buckets = Buckets.of(
        max_num_seqs=256,
        max_model_len=8192,
        page_size=16,
        max_batched_tokens=8192,
        fine=True,
    )
    below, above = (buckets.prefills[i] for i in (-6, -5))
    almost = above - 1
    assert buckets.call_tokens(almost, num_decoding=250) == above
    assert buckets.call_tokens(almost, num_decoding=250, crowded=True) == below
    assert buckets.call_tokens(above, num_decoding=250, crowded=True) == above
    # Not where most would be left for the next call, nor where padding costs nothing.
    assert buckets.call_tokens(almost, num_decoding=below - 9, crowded=True) == above
    coarse = dataclasses.replace(buckets, prefills=(256, 4096, 8192))
    assert coarse.call_tokens(7937, crowded=True) == 8192, "not half of it"
    assert buckets.call_tokens(130, crowded=True) == 256


def test_a_table_is_not_narrower_than_asked():
    buckets = Buckets.of(
        max_num_seqs=1,
        max_model_len=4096,
        page_size=16,
        max_batched_tokens=16,
        smallest_width=64,
    )
    assert buckets.widths == (64, 256)


@pytest.mark.parametrize(
    ("max_model_len", "widths"),
    [(4096, (64, 256)), (8191, (64, 256, 512)), (10**5, (64, 256, 6250))],
)
def test_tables_that_are_served_alike_are_one_program(
    max_model_len: int, widths: tuple[int, ...]
):
    buckets = Buckets.of(
        max_num_seqs=1,
        max_model_len=max_model_len,
        page_size=16,
        max_batched_tokens=16,
        smallest_width=64,
        alike_from=512,
    )
    assert buckets.widths == widths


@given(
    max_num_seqs=st.integers(1, 600),
    num_groups=st.integers(1, 600),
    width=st.integers(1, 600),
)
def test_no_search_is_padded_beyond_all_rows(
    max_num_seqs: int, num_groups: int, width: int
):
    assume(num_groups * width <= max_num_seqs)  # else it is refused
    buckets = Buckets.of(
        max_num_seqs=max_num_seqs,
        max_model_len=64,
        page_size=16,
        max_batched_tokens=64,
    )
    rows = buckets.beam_rows(num_groups, width)
    assert num_groups * width <= rows <= max_num_seqs
    assert rows == num_groups * buckets.group_rows(num_groups, width)
