"""How ragged batches are cut into tiles, on the device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdjax.kernels.prefill_attention.tiles import tiles_of

ROOM = 64  # tokens that a row's pages hold


def cut(
    starts: list[int], counts: list[int], *, tile_tokens: int, num_queries: int
) -> list[tuple[int, int, int, int]]:
    """The tiles of rows whose queries follow one another."""
    firsts = np.cumsum([0, *counts])[:-1]
    rows = [jnp.asarray(x, jnp.int32) for x in (np.add(starts, counts), starts, firsts)]
    tiles = tiles_of(
        *rows, num_queries=num_queries, max_tokens=ROOM, tile_tokens=tile_tokens
    )
    return [tuple(tile) for tile in np.asarray(tiles).tolist()]


def test_the_longest_come_first_and_those_of_a_row_together():
    tiles = cut([0, 16, 0], [10, 3, 1], tile_tokens=4, num_queries=16)
    assert [tile for tile in tiles if tile[3]] == [
        (1, 10, 16, 3),
        (0, 8, 8, 2),
        (0, 4, 4, 4),
        (0, 0, 0, 4),
        (2, 13, 0, 1),
    ]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 40)), min_size=4, max_size=4
    ),
    tile_tokens=st.sampled_from([1, 5, 32]),
)
def test_every_query_is_in_one_tile(rows: list[tuple[int, int]], tile_tokens: int):
    starts, counts = map(list, zip(*rows, strict=True))
    tiles = cut(starts, counts, tile_tokens=tile_tokens, num_queries=160)
    firsts = np.cumsum([0, *counts])
    seen: list[tuple[int, int, int]] = []
    ended = False
    for row, first, position, tokens in tiles:
        ended |= tokens == 0
        assert (tokens == 0) == ended, "empty tiles come last"
        assert tokens <= tile_tokens
        seen += [(row, first + i, position + i) for i in range(tokens)]
    assert sorted(seen) == [
        (row, int(firsts[row]) + i, starts[row] + i)
        for row, count in enumerate(counts)
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("count", "num_queries", "taken"), [(70, 80, ROOM), (-3, 80, 0), (40, 30, 30)]
)
def test_there_are_no_more_queries_than_pages_and_q_hold(
    count: int, num_queries: int, taken: int
):
    tiles = cut([0], [count], tile_tokens=32, num_queries=num_queries)
    assert len(tiles) == num_queries // 32 + 1
    assert sum(tile[3] for tile in tiles) == taken


def test_a_row_that_begins_before_the_queries_has_none():
    tiles = tiles_of(
        *(jnp.array(each, jnp.int32) for each in ([40, 8], [0, 0], [-20, 20])),
        num_queries=32,
        max_tokens=ROOM,
        tile_tokens=32,
    )
    assert [tile for tile in tiles.tolist() if tile[3]] == [[1, 20, 0, 8]]


def test_all_layers_share_one_trace():
    rows = jnp.ones(2, jnp.int32)

    def layers(rows: jax.Array) -> list[jax.Array]:
        sizes = {"num_queries": 9, "max_tokens": ROOM, "tile_tokens": 4}
        return [tiles_of(rows, rows, rows, **sizes) for _ in range(3)]

    compiled = jax.jit(layers).lower(rows).compile()
    assert (compiled.as_text() or "").count(" sort(") <= 1
