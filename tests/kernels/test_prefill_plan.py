"""How ragged batches are cut into tiles: the definition, and the kernel against it."""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdjax.kernels.prefill_plan import cuda
from fdjax.kernels.prefill_plan.tiles import (
    KEY_TILE,
    TILE_ROWS,
    Room,
    most_tiles,
    room_of,
    work_of,
)
from tests.support.handlers import skip_without

ROOM = 64  # tokens that a row's pages hold
WHOLE = Room(blocks=1, records=0)
EVERYTHING = jnp.int32(2**31 - 1)


def cut(
    starts: list[int], counts: list[int], *, tile_tokens: int, num_queries: int
) -> list[tuple[int, int, int, int]]:
    """The tiles of rows whose queries follow one another."""
    firsts = np.cumsum([0, *counts])[:-1]
    rows = [jnp.asarray(x, jnp.int32) for x in (np.add(starts, counts), starts, firsts)]
    tiles = work_of(
        *rows,
        EVERYTHING,
        num_queries=num_queries,
        max_tokens=ROOM,
        tile_tokens=tile_tokens,
        room=WHOLE,
    )
    return [tuple(tile[:4]) for tile in np.asarray(tiles).tolist()]


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
    tiles = work_of(
        *(jnp.array(each, jnp.int32) for each in ([40, 8], [0, 0], [-20, 20])),
        EVERYTHING,
        num_queries=32,
        max_tokens=ROOM,
        tile_tokens=32,
        room=WHOLE,
    )
    assert [tile[:4] for tile in tiles.tolist() if tile[3]] == [[1, 20, 0, 8]]


@settings(max_examples=60, deadline=None)
@given(start=st.integers(-400, 40), room=st.sampled_from([WHOLE, Room(4.125, 8)]))
def test_a_row_that_stands_before_its_sequence_takes_no_others_place(
    start: int, room: Room
):
    def others(start: int) -> list[list[int]]:
        rows = [[8, 3, 40], [4, start, 5], [0, 4, 420]]
        work = work_of(
            *(jnp.array(each, jnp.int32) for each in rows),
            EVERYTHING,
            num_queries=460,
            max_tokens=ROOM,
            tile_tokens=32,
            room=room,
        )
        return sorted(item[:6] for item in work.tolist() if item[3] and item[0] != 1)

    assert others(start) == others(3)
    assert sum(item[3] for item in others(3)) == 4 + 35


@settings(max_examples=60, deadline=None)
@given(start=st.integers(-100, -1), window=st.sampled_from([3, 2**31 - 1]))
def test_queries_of_a_row_that_begins_before_its_sequence_have_their_keys(
    start: int, window: int
):
    work = work_of(
        *(jnp.array([each], jnp.int32) for each in (40, start, 5)),
        jnp.int32(window),
        num_queries=160,
        max_tokens=ROOM,
        tile_tokens=32,
        room=WHOLE,
    )
    seen = {
        position + i: (max(position - window + 1, 0), position + tokens) == (begin, end)
        for _, _, position, tokens, begin, end, *_ in work.tolist()
        for i in range(tokens)
    }
    assert {position for position, right in seen.items() if right} >= set(range(40))


LEAST, MOST = -(2**31), 2**31 - 1


@pytest.mark.parametrize(
    ("length", "start"),
    [(LEAST, 1), (-1000, MOST - 899), (LEAST, 1000), (MOST, MOST), (3, LEAST)],
)
def test_rows_of_any_numbers_see_nothing_past_their_pages(length: int, start: int):
    rows = [[length, 64], [start, 60], [0, 0]]
    work = work_of(
        *(jnp.array(each, jnp.int32) for each in rows),
        EVERYTHING,
        num_queries=8,
        max_tokens=ROOM,
        tile_tokens=32,
        room=WHOLE,
    )
    some = [item for item in work.tolist() if item[3]]
    assert [item[:6] for item in some if item[0] == 1] == [[1, 0, 60, 4, 0, 64]]
    assert not [item for item in some if item[0] == 0]


def test_all_layers_share_one_trace():
    rows = jnp.ones(2, jnp.int32)

    def layers(rows: jax.Array) -> list[jax.Array]:
        sizes = {"num_queries": 9, "max_tokens": ROOM, "tile_tokens": 4, "room": WHOLE}
        return [work_of(rows, rows, rows, EVERYTHING, **sizes) for _ in range(3)]

    compiled = jax.jit(layers).lower(rows).compile()
    assert (compiled.as_text() or "").count(" sort(") <= 1


@dataclasses.dataclass(frozen=True)
class Piece:
    """A row of `work_of`."""

    row: int
    first: int
    position: int
    tokens: int
    key_begin: int
    key_end: int
    record: int
    pieces: int


def pieces(
    starts: list[int], counts: list[int], *, window: int, room: Room
) -> list[Piece]:
    """The pieces of rows whose queries follow one another, 32 to a tile."""
    firsts = np.cumsum([0, *counts])[:-1]
    rows = [jnp.asarray(x, jnp.int32) for x in (np.add(starts, counts), starts, firsts)]
    work = work_of(
        *rows,
        jnp.int32(window),
        num_queries=max(sum(counts), 300) + 7,  # few programs
        max_tokens=1 << 20,
        tile_tokens=32,
        room=room,
    )
    return [Piece(*each) for each in work.tolist() if each[3]]


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 40_000), st.integers(0, 100)), min_size=3, max_size=3
    ),
    window=st.sampled_from([1, 700, 2**31 - 1]),
    blocks=st.sampled_from([4.125, 16.5, 132.0]),
)
def test_every_key_of_every_tile_is_in_one_piece(
    rows: list[tuple[int, int]], window: int, blocks: float
):
    starts, counts = map(list, zip(*rows, strict=True))
    room = Room(blocks, int(2 * blocks))
    work = pieces(starts, counts, window=window, room=room)
    tiles: dict[tuple[int, int], list[Piece]] = {}
    for piece in work:
        tiles.setdefault((piece.row, piece.first), []).append(piece)
    records: list[int] = []
    for own in tiles.values():
        own.sort(key=lambda piece: piece.key_begin)
        last = own[0].position + own[0].tokens
        assert own[0].key_begin == max(0, own[0].position - window + 1)
        assert own[-1].key_end == last
        assert all(a.key_end == b.key_begin for a, b in itertools.pairwise(own))
        assert all(piece.key_begin % KEY_TILE == 0 for piece in own[1:])
        assert all(piece.key_begin < piece.key_end for piece in own)
        assert [piece.pieces for piece in own] == [len(own)] + [0] * (len(own) - 1)
        if len(own) == 1:
            assert own[0].record == -1
        else:
            records += [piece.record for piece in own]
            assert np.all(np.diff([piece.record for piece in own]) == 1)
    assert sorted(records) == list(range(len(records)))
    assert len(records) <= room.records
    assert sum(len(own) for own in tiles.values()) == len(work)


def test_few_queries_after_many_keys_occupy_every_block():
    room = room_of(3, num_kv_heads=8, processors=132)
    work = pieces([32_704], [64], window=2**31 - 1, room=room)
    assert len(work) * 8 in range(120, 133)
    sizes = [piece.key_end - piece.key_begin for piece in work]
    assert max(sizes) <= 1.05 * np.mean(sizes)


def test_where_tiles_are_enough_no_keys_are_cut():
    assert room_of(257, num_kv_heads=8, processors=132).records == 0
    work = pieces([0], [2048], window=2**31 - 1, room=room_of(257, 8, 132))
    assert {piece.record for piece in work} == {-1}


def test_so_many_keys_are_a_class_of_the_order():
    # 1,448 is 1,024 times the root of two, rounded down.
    starts = [1023, 1447, 1448, 2046, 2047]
    work = pieces(starts, [1] * 5, window=2**31 - 1, room=WHOLE)
    assert [piece.row for piece in work] == [4, 2, 3, 0, 1]


@pytest.mark.parametrize(
    ("rows", "tiles", "records", "served"),
    [
        (1, 1, 0, True),
        (4096, 1 << 20, 0, True),
        (4097, 5000, 0, False),
        (8, (1 << 20) + 1, 0, False),
        (8, 760, 264, True),
        (8, 761, 264, False),
        (0, 0, 0, False),
    ],
)
def test_what_the_block_has_room_for(rows: int, tiles: int, records: int, served: bool):
    skip_without("rope_kv_write", "cpu")  # limits are the extension's
    assert cuda.serves(rows, tiles, Room(1.0, records)) == served


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A batch, and how attention cuts it.

    Attributes:
        counts: new tokens of each row.
        starts: tokens before them.
        padding: tokens behind those of the last row.
        group: query heads of a key/value head.
        kv_heads: key/value heads.
        window: tokens that a query sees.
        max_tokens: that a row's pages have room for.
    """

    counts: list[int]
    starts: list[int]
    padding: int
    group: int
    kv_heads: int
    window: int
    max_tokens: int

    @staticmethod
    def of(seed: int) -> "Drawn":
        """Some of few tiles, whose keys are cut, and some of thousands."""
        random = np.random.default_rng(seed)
        rows = int(random.choice([1, 2, 5, 64, 300, 1100, 4096]))
        most = int(random.choice([1, 3, 70, 2000, 30_000])) if rows < 70 else 3
        return Drawn(
            random.integers(0, most + 1, rows).tolist(),
            (random.integers(0, 40_000, rows) * random.integers(0, 2, rows)).tolist(),
            int(random.integers(0, 300)),
            group=int(random.choice([1, 3, 4, 8, 16])),
            kv_heads=int(random.choice([1, 2, 8, 32])),
            window=int(random.choice([1, 100, 4096, 2**31 - 1])),
            max_tokens=int(random.choice([20_000, 1 << 20])),
        )

    @property
    def sizes(self) -> dict[str, Any]:
        """All but the rows."""
        queries, tokens = sum(self.counts) + self.padding, TILE_ROWS // self.group
        tiles = most_tiles(queries, len(self.counts), tokens)
        return {
            "num_queries": queries,
            "max_tokens": self.max_tokens,
            "tile_tokens": tokens,
            "room": room_of(tiles, self.kv_heads, 132),
        }

    @property
    def rows(self) -> dict[str, jax.Array]:
        """Lengths, starts and firsts."""
        counts, starts = np.array(self.counts), np.array(self.starts)
        firsts = np.cumsum(counts) - counts
        return {
            "lengths": jnp.asarray(starts + counts, jnp.int32),
            "starts": jnp.asarray(starts, jnp.int32),
            "firsts": jnp.asarray(firsts, jnp.int32),
        }


def _same_items(found: jax.Array, wanted: jax.Array) -> None:
    """What has no tokens may hold anything else."""
    ours, theirs = np.asarray(found), np.asarray(wanted)
    count = int((theirs[:, 3] > 0).sum())
    assert (ours[count:, 3] == 0).all()
    np.testing.assert_array_equal(ours[:count], theirs[:count])


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(60))
def test_the_kernel_lists_what_the_definition_does(seed: int):
    skip_without("prefill_plan", "gpu")
    drawn = Drawn.of(seed)
    options: dict[str, Any] = {"window": drawn.window, **drawn.sizes}
    found = jax.jit(lambda rows: cuda.work_of(**rows, **options))
    _same_items(found(drawn.rows), work_of(**drawn.rows, **options))


@pytest.mark.gpu
def test_the_kernel_lists_no_more_than_there_is_room_for():
    skip_without("prefill_plan", "gpu")
    # Rows that overlap, begin before the queries, fall, or stand before their sequence.
    lengths = jnp.array([900, 900, 900, 50, 8, 2**31 - 1], jnp.int32)
    starts = jnp.array([0, 0, -300, 60, 0, 2**31 - 5], jnp.int32)
    firsts = jnp.array([0, 0, 0, -20, 2000, 5], jnp.int32)
    for kv_heads in (1, 8):
        tiles = most_tiles(900, 6, 32)
        room = room_of(tiles, kv_heads, 132)
        work = np.asarray(
            cuda.work_of(
                lengths,
                starts,
                firsts,
                2**31 - 1,
                num_queries=900,
                max_tokens=1 << 20,
                tile_tokens=32,
                room=room,
            )
        )
        some = work[work[:, 3] > 0]
        assert ((some[:, 1] >= 0) & (some[:, 1] + some[:, 3] <= 900)).all()
        assert ((some[:, 0] >= 0) & (some[:, 0] < 6)).all()
        assert (some[:, 6] < room.records).all()
        # The first row has its place before the others have any.
        own = some[some[:, 0] == 0]
        assert own[:, 1].min() == 0
        assert (own[:, 1] + own[:, 3]).max() == 900


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("length", "start"),
    [(3, -300), (3, -129), (3, -1), (3, 3), (LEAST, 1), (LEAST, 1000), (MOST, MOST)],
)
def test_the_kernel_lists_what_the_definition_does_beside_a_bad_row(
    length: int, start: int
):
    skip_without("prefill_plan", "gpu")
    rows = [[8, length, 900], [4, start, 5], [0, 4, 420]]
    lengths, starts, firsts = (jnp.array(each, jnp.int32) for each in rows)
    tiles = most_tiles(1400, 3, 32)
    for room in (room_of(tiles, 1, 132), room_of(tiles, 8, 132), Room(132.0, 0)):
        sizes: dict[str, Any] = {
            "num_queries": 1400,
            "max_tokens": 1024,
            "tile_tokens": 32,
            "room": room,
        }
        found = np.asarray(cuda.work_of(lengths, starts, firsts, 2**31 - 1, **sizes))
        wanted = np.asarray(work_of(lengths, starts, firsts, EVERYTHING, **sizes))
        assert (found[found[:, 3] > 0][:, 5] > 0).all()  # each has keys
        for row in (0, 2):
            ours, theirs = (
                each[(each[:, 0] == row) & (each[:, 3] > 0)][:, :6]
                for each in (found, wanted)
            )
            np.testing.assert_array_equal(ours, theirs)
