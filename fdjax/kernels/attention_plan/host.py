"""The definition of a plan, on the host: what the kernel must make of the same lengths.

Lengths become items, each some key/value heads of a whole row or one head of a piece of
a row. How long a piece may be is the best of 32 candidates, each judged by what its
busiest cluster would have to do (FlashInfer's Algorithm 1 cuts by one bound and assigns
by a heap; here the bound is searched for, and the assignment is a rule, so that a GPU
makes the plan in a few microseconds).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from fdjax.kernels.attention_plan.shape import (
    MAX_ROW_PIECES,
    TILE_TOKENS,
    PlanShape,
)

LEAST_TOKENS = 256
"""Of an item, where its row has more."""
BUCKETS = 128
# What an item may have of an equal share, in 1024ths; 0 cuts nothing. Those from
# TOGETHER on part all heads: more items, of more different costs.
SHARES = (
    0, 1331, 1096, 1024, 922, 819, 768, 740, 717, 692, 680,
    652, 625, 527, 512, 480, 392, 361, 341, 300, 1096, 860,
    780, 717, 684, 658, 632, 610, 525, 500, 488, 460,
)  # fmt: skip
TOGETHER = 20
LANES = 32
MOST_COST = 2**30
"""Of a cluster: more counts as so much."""
NO_ROOM = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Item:
    """What a cluster does at a time.

    Attributes:
        row: of the batch.
        kv_head: the first key/value head.
        heads: how many.
        piece: which piece of the row.
        pieces: how many the row has; 1: it is whole.
        first: the first tile of 16 tokens.
        last: the tile behind its last one.
        begin: the first token that the row's query sees.
        end: the token behind the last.
        record: the row's first among all partial results.
        cost: in tokens of a head, its beginning and end included.
    """

    row: int
    kv_head: int
    heads: int
    piece: int
    pieces: int
    first: int
    last: int
    begin: int
    end: int
    record: int
    cost: int

    def integers(self) -> tuple[int, ...]:
        """As the kernels read it."""
        heads = self.kv_head | self.heads << 16
        pieces = self.piece | self.pieces << 16
        span = (self.first, self.last, self.begin, self.end)
        return (self.row, heads, pieces, *span, self.record)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Who does what.

    Attributes:
        shape: what it was made for.
        items: in order of their cost by the bucket, the largest first.
        piece_tokens: the most of a head that an item has; 0: nothing was cut.
        candidate: which of `SHARES` was the best.
        num_pieces: items of cut rows.
    """

    shape: PlanShape
    items: tuple[Item, ...]
    piece_tokens: int
    candidate: int
    num_pieces: int

    def loads(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The cost of all that each slot does, `[slots]`."""
        slots = self.shape.slots
        loads = np.zeros(slots, np.int64)
        for place, item in enumerate(self.items):
            turn, slot = divmod(place, slots)
            loads[slot if turn % 2 == 0 else slots - 1 - slot] += item.cost
        return loads

    @property
    def busiest(self) -> float:
        """What the busiest slot does, in parts of the mean over all."""
        loads = self.loads()
        return float(loads.max() / max(loads.mean(), 1))

    def integers(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """As the kernel writes it; what it leaves unwritten is zero here."""
        out = np.zeros(self.shape.size, np.int32)
        header = (len(self.items), self.num_pieces, self.piece_tokens, self.candidate)
        out[: len(header)] = header
        items = np.array([item.integers() for item in self.items], np.int32)
        out[self.shape.items_at :][: items.size] = items.ravel()
        return out


@dataclasses.dataclass(frozen=True)
class _Cut:
    heads: int
    pieces: int
    count: int
    cost: int


@dataclasses.dataclass(frozen=True)
class _Limit:
    """What an item may have: tiles of all its heads, `None` if nothing is cut."""

    tiles: int | None
    heads: int


def _cut(shape: PlanShape, tiles: int, limit: _Limit) -> _Cut:
    if shape.piece_tokens and limit.tiles is not None:
        least = -(-tiles // MAX_ROW_PIECES)
        limit = _Limit(max(limit.tiles, least), limit.heads)
    if limit.tiles is not None and tiles > limit.tiles:
        pieces = -(-tiles // limit.tiles)
        cost = -(-tiles // pieces) * TILE_TOKENS + shape.item_tokens
        return _Cut(1, pieces, pieces * shape.num_kv_heads, cost)
    heads = limit.heads
    while limit.tiles is not None and heads > 1 and tiles > limit.tiles // heads:
        heads //= 2
    cost = heads * tiles * TILE_TOKENS + shape.item_tokens
    return _Cut(heads, 1, shape.num_kv_heads // heads, cost)


def _limit(shape: PlanShape, tiles: int, candidate: int) -> _Limit:
    if shape.piece_tokens:  # the candidates are one
        return _Limit(shape.piece_tokens // TILE_TOKENS, shape.heads)
    if candidate == 0:
        return _Limit(None, shape.heads)
    whole = tiles * shape.num_kv_heads * SHARES[candidate]
    share = max(-(-whole // (shape.slots * 1024)), LEAST_TOKENS // TILE_TOKENS)
    return _Limit(share, shape.heads if candidate < TOGETHER else 1)


def _most(cuts: Sequence[_Cut]) -> int:
    return max(BUCKETS, *(cut.cost for cut in cuts))


def _bucket(cost: int, most: int) -> int:
    """Of costs up to `most`, which is the last one's."""
    factor = -(-((BUCKETS - 1) << 32) // most)
    return cost * factor >> 32


def _busiest(shape: PlanShape, cuts: Sequence[_Cut]) -> int:
    """What the busiest of some clusters has to do; `NO_ROOM` for so many items."""
    count = sum(cut.count for cut in cuts)
    pieces = sum(cut.count for cut in cuts if cut.pieces > 1)
    if count > shape.max_items or pieces > shape.max_pieces:
        return NO_ROOM
    most = _most(cuts)
    of_bucket = np.zeros(BUCKETS, np.int64)
    for cut in cuts:
        of_bucket[_bucket(cut.cost, most)] += cut.count
    ends = np.cumsum(of_bucket[::-1])[::-1]
    busiest = 0
    for lane in range(LANES):
        slot = lane * (shape.slots - 1) // (LANES - 1)
        cost = 0
        for turn in range(-(-count // shape.slots)):
            at = slot if turn % 2 == 0 else shape.slots - 1 - slot
            place = turn * shape.slots + at
            if place < count:
                bucket = int(np.sum(ends[1:] > place))
                cost += min((bucket + 1) * most // (BUCKETS - 1), most)
        busiest = max(busiest, min(cost, MOST_COST))
    return busiest


def make_plan(
    lengths: Sequence[int], shape: PlanShape, *, room: int, window: int | None = None
) -> Plan:
    """The plan for rows of these lengths.

    Args:
        lengths: tokens of each row, this step's included.
        shape: what the plan is for; `len(lengths)` is its rows.
        room: tokens of a row in its pages; what is beyond is not read.
        window: tokens that a query sees, or `None` for all.
    """
    spans = [_span(length, room, window) for length in lengths]
    tiles = [_tiles(begin, end) for begin, end in spans]
    total = sum(tiles)
    limits = [_limit(shape, total, candidate) for candidate in range(len(SHARES))]
    busiest = [_busiest(shape, [_cut(shape, t, one) for t in tiles]) for one in limits]
    # The first within a 64th of the best: longer items begin and end less often.
    least = min(busiest)
    best = next(i for i, most in enumerate(busiest) if most <= least + least // 64)
    limit = limits[best]
    cuts = [_cut(shape, t, limit) for t in tiles]
    return Plan(
        shape,
        tuple(_items(shape, spans, cuts)),
        (limit.tiles or 0) * TILE_TOKENS,
        best,
        sum(cut.count for cut in cuts if cut.pieces > 1),
    )


def _span(length: int, room: int, window: int | None) -> tuple[int, int]:
    end = max(min(length, room), 0)
    return (0 if window is None else max(end - window, 0)), end


def _tiles(begin: int, end: int) -> int:
    return -(-end // TILE_TOKENS) - begin // TILE_TOKENS


def _items(
    shape: PlanShape, spans: Sequence[tuple[int, int]], cuts: Sequence[_Cut]
) -> list[Item]:
    most = _most(cuts)
    counts = [cut.count if cut.pieces > 1 else 0 for cut in cuts]
    records = np.cumsum([0, *counts]).tolist()
    order = sorted(range(len(cuts)), key=lambda r: (-_bucket(cuts[r].cost, most), r))
    items: list[Item] = []
    for row in order:
        cut, (begin, end) = cuts[row], spans[row]
        start, tiles = begin // TILE_TOKENS, _tiles(begin, end)
        per_piece = shape.num_kv_heads // cut.heads
        for i in range(cut.count):
            piece, place = divmod(i, per_piece)
            first = start + tiles * piece // cut.pieces
            last = start + tiles * (piece + 1) // cut.pieces
            whose = (row, place * cut.heads, cut.heads, piece, cut.pieces)
            cost = (last - first) * TILE_TOKENS * cut.heads + shape.item_tokens
            items.append(Item(*whose, first, last, begin, end, records[row], cost))
    return items
