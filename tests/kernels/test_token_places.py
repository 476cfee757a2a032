"""Where tokens of ragged batches stand: the definition, and the kernel against it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.paged import PageView
from fdjax.kernels.token_places import OP, Places, TokenPlaces, token_places
from tests.support.handlers import skip_without

PAGE_SIZE = 16
ABSENT = 2**31 - 1


def drawn(seed: int, *, packed: bool = True) -> tuple[PageView, int]:
    """Rows with and without new tokens, absent pages, and how many tokens there are."""
    random = np.random.default_rng(seed)
    rows, width = int(random.choice([1, 3, 64, 257])), int(random.choice([1, 7, 200]))
    starts = random.integers(0, width * PAGE_SIZE, rows)
    counts = random.integers(0, 50, rows) * random.integers(0, 2, rows)
    table = random.permutation(rows * width).reshape(rows, width)
    absent = random.random(table.shape) < 0.1
    table[absent] = random.choice(IDS, int(absent.sum()))
    table, first, ends = (
        jnp.asarray(x, jnp.int32)
        for x in (table, starts, starts + counts if packed else starts + 1)
    )
    if not packed:
        return PageView.decoding(table, ends), rows
    view = PageView.packed(table, ends, first)
    before = random.integers(0, 9)  # tokens of no row
    view = dataclasses.replace(view, firsts=view.first_tokens(0) + before)
    return view, int(before + counts.sum() + random.integers(1, 99))


def test_tokens_stand_where_their_rows_do():
    table = jnp.array([[7, 3], [5, ABSENT]], jnp.int32)
    pages = PageView.packed(table, jnp.array([18, 17]), jnp.array([15, 15]))
    places = token_places(pages, 6, page_size=PAGE_SIZE)
    assert places.positions.tolist() == [15, 16, 17, 15, 16, 17]
    assert places.slots.tolist() == [127, 48, 49, 95, -1, -1]


IDS = (-(2**31), -(2**28), -1, 0, 2**27 - 1, 2**27, 2**28, 2**28 + 3, ABSENT)
"""Of pages: those beyond 2^27 of 16 tokens have no place in 32 bits."""


@pytest.mark.parametrize("page_size", [1, 16, 48])
def test_ids_that_no_cache_has_room_for_have_no_slot(page_size: int):
    table = jnp.asarray(IDS, jnp.int32)[:, None]
    pages = PageView.decoding(table, jnp.full(len(IDS), page_size, jnp.int32))
    last = [page * page_size + page_size - 1 for page in IDS]
    expected = [slot if 0 <= slot < 2**31 else -1 for slot in last]
    places = token_places(pages, len(IDS), page_size=page_size)
    assert places.slots.tolist() == expected


def test_tokens_before_the_first_row_are_padding():
    pages = PageView(
        jnp.array([[4]], jnp.int32),
        jnp.array([3], jnp.int32),
        jnp.array([1], jnp.int32),
        jnp.array([2], jnp.int32),
    )
    places = token_places(pages, 5, page_size=PAGE_SIZE)
    assert places.positions.tolist() == [-1, 0, 1, 2, 3]
    assert places.slots.tolist() == [-1, -1, 65, 66, -1]


@pytest.mark.gpu
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "decoding"])
@pytest.mark.parametrize("seed", range(12))
def test_the_kernel_equals_the_definition(seed: int, packed: bool):
    skip_without("token_places", "gpu")
    pages, count = drawn(seed, packed=packed)

    def places(pages: PageView) -> Places:
        return OP(TokenPlaces(pages, count, PAGE_SIZE))

    with OP.using("reference"):
        wanted = jax.jit(places)(pages)
    with OP.using("cuda"):
        found = jax.jit(places)(pages)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)
