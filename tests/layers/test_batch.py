"""Where the tokens of a pass stand, and where their keys and values go."""

import jax.numpy as jnp
import numpy as np

from fdjax.kernels.paged import PageView
from fdjax.layers import (
    Batch,
    decode_batch,
    mixed_batch,
    packed_batch,
    prefill_batch,
    select,
)

PAGE_SIZE, WIDTH = 4, 3
TABLE = np.array([[7, 2, 5], [0, 9, 1], [3, 6, 4]], np.int32)


def ints(values: object) -> jnp.ndarray:
    return jnp.asarray(np.asarray(values, np.int32))


def slot(row: int, position: int) -> int:
    page = TABLE[row, position // PAGE_SIZE]
    return int(page) * PAGE_SIZE + position % PAGE_SIZE


def places(batch: Batch) -> list[tuple[int, int]]:
    return list(zip(batch.positions.tolist(), batch.slots.tolist(), strict=True))


def test_padding_of_a_prefill_is_never_stored():
    tokens, lengths = ints(np.arange(18).reshape(3, 6)), ints([6, 1, 0])
    batch = prefill_batch(tokens, lengths, ints(TABLE), page_size=PAGE_SIZE)
    assert (batch.phase, batch.pages.num_rows) == ("prefill", 3)
    assert batch.tokens.tolist() == list(range(18))
    assert places(batch) == [
        (at, slot(row, at) if at < length else -1)
        for row, length in enumerate((6, 1, 0))
        for at in range(6)
    ]


def test_a_part_of_a_prompt_goes_on_where_the_last_one_ended():
    tokens = ints(np.zeros((3, 4)))
    starts, lengths = ints([5, 0, 8]), ints([9, 2, 8])
    batch = prefill_batch(tokens, lengths, ints(TABLE), starts, page_size=PAGE_SIZE)
    assert places(batch) == [
        (at, slot(row, at) if at < length else -1)
        for row, (start, length) in enumerate([(5, 9), (0, 2), (8, 8)])
        for at in range(start, start + 4)
    ]


def test_packed_prompts_stand_one_after_the_other():
    """A row without a token among them, and padding at the end."""
    starts, lengths = ints([5, 3, 0]), ints([9, 3, 2])
    batch = packed_batch(
        ints(np.zeros(8)), lengths, ints(TABLE), starts, page_size=PAGE_SIZE
    )
    assert batch.pages.firsts is not None
    assert batch.pages.firsts.tolist() == [0, 4, 4]
    assert places(batch)[:6] == [
        (at, slot(row, at))
        for row, start, length in [(0, 5, 9), (2, 0, 2)]
        for at in range(start, length)
    ]
    assert batch.slots.tolist()[6:] == [-1, -1]


def test_a_decoded_token_follows_those_that_are_there():
    lengths = ints([4, 0, 11])
    batch = decode_batch(ints([1, 2, 3]), lengths, ints(TABLE), page_size=PAGE_SIZE)
    assert batch.phase == "decode"
    assert places(batch) == [(4, slot(0, 4)), (0, slot(1, 0)), (11, slot(2, 11))]
    assert batch.pages.lengths.tolist() == [5, 1, 12]


def test_rows_of_both_kinds_stand_one_after_the_other():
    """Row 0 decodes after 5 tokens, row 1 is not there, and row 2 has two of a prompt.

    For a row that does not decode one token is pretended.
    """
    table, starts, lengths = ints(TABLE), ints([5, 0, 3]), ints([6, 0, 5])
    pages = PageView.packed(table, lengths, starts)
    decodes = jnp.array([True, False, False])
    batch = mixed_batch(
        ints(np.zeros(4)), pages, ints([2, 3]), decodes, page_size=PAGE_SIZE
    )
    assert batch.phase == "mixed"
    assert places(batch)[:3] == [(5, slot(0, 5)), (3, slot(2, 3)), (4, slot(2, 4))]
    assert batch.slots.tolist()[3] == -1
    mixed = batch.mixed
    assert mixed is not None and mixed.decoding is not None
    assert mixed.places.tolist() == [0, 4, 4]
    assert mixed.decoding.lengths.tolist() == [6, 1, 1]
    prompts = mixed.prompts
    assert prompts.page_table.tolist()[0] == TABLE[2].tolist()
    assert prompts.first_tokens(4).tolist() == [1, 4], "padding comes after all"
    assert (prompts.lengths - prompts.first_positions).tolist() == [2, 0]


def test_where_no_row_decodes_there_are_prompts_alone():
    pages = PageView.packed(ints(TABLE), ints([6, 0, 5]), ints([5, 0, 3]))
    batch = mixed_batch(
        ints(np.zeros(4)), pages, ints([0, 2]), None, page_size=PAGE_SIZE
    )
    assert batch.mixed is not None and batch.mixed.decoding is None
    assert batch.mixed.prompts.first_tokens(4).tolist() == [0, 1]
    assert places(batch)[:3] == [(5, slot(0, 5)), (3, slot(2, 3)), (4, slot(2, 4))]


def test_a_full_row_writes_nothing():
    lengths = ints([WIDTH * PAGE_SIZE, WIDTH * PAGE_SIZE + 1, WIDTH * PAGE_SIZE - 1])
    batch = decode_batch(ints([1, 2, 3]), lengths, ints(TABLE), page_size=PAGE_SIZE)
    assert batch.slots.tolist() == [-1, -1, slot(2, WIDTH * PAGE_SIZE - 1)]


def test_wanted_tokens_are_selected():
    x = jnp.arange(12.0).reshape(4, 3)
    assert select(x, None) is x
    np.testing.assert_array_equal(select(x, ints([3, 1])), np.asarray(x)[[3, 1]])
