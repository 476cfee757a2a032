"""What is done for groups of rows: made on the host, whenever the groups change."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fdjax.kernels.chip import chip
from fdjax.kernels.paged import SharedPrefixes
from fdjax.kernels.prefill_plan.tiles import (
    KEY_TILE,
    TILE_ROWS,
    WORK,
    Room,
    pieces_of,
)
from fdjax.kernels.shared_prefix.groups import MAX_LEVELS, Group

PART = 4  # integers of a Part in ffi/prefill_attention/params.h
NONE = -1  # the record of a row that belongs to no group


def room_for(rows: int, num_kv_heads: int, group: int) -> int:
    """Pieces that a batch has room for: its tiles, half of them of groups' ends."""
    return MAX_LEVELS * -(-rows // (TILE_ROWS // group)) + _spare(num_kv_heads)


def room_for_prompts(groups: int, *, width: int, num_kv_heads: int, group: int) -> int:
    """Pieces that `plan_prompts` has room for."""
    return groups * -(-width // (TILE_ROWS // group)) + _spare(num_kv_heads)


def prefix_shapes(rows: int, room: int) -> SharedPrefixes:
    """Stand-ins for what rows share, with room for so many pieces."""
    shapes = ((rows,), (rows,), (room, WORK), (MAX_LEVELS, rows, PART))
    structs = (jax.ShapeDtypeStruct(shape, np.int32) for shape in shapes)
    return jax.tree.unflatten(_structure(), structs)


@functools.cache
def _structure() -> Any:
    none = (jax.ShapeDtypeStruct((0,) * rank, np.int32) for rank in (1, 1, 2, 3))
    return jax.tree.structure(jax.eval_shape(SharedPrefixes, *none))


def _spare(num_kv_heads: int) -> int:
    """Pieces more than tiles, so that every SM has some."""
    return int(3 * chip().num_sms / num_kv_heads)


def plan_prompts(
    prompt_lengths: Sequence[int], *, width: int, num_kv_heads: int, group: int
) -> SharedPrefixes:
    """The work of the prompts of groups of beams, on the device; none is left out.

    Args:
        prompt_lengths: tokens of each group's prompt; 0: it has none to read.
        width: beams of a group; rows are those of group 0, of group 1, and so on.
        num_kv_heads: `Hkv`.
        group: query heads of each key/value head.
    """
    groups = [
        Group(tuple(range(i * width, (i + 1) * width)), 0, length, 0)
        for i, length in enumerate(prompt_lengths)
        if length
    ]
    num_groups = len(prompt_lengths)
    room = room_for_prompts(
        num_groups, width=width, num_kv_heads=num_kv_heads, group=group
    )
    return plan_prefixes(
        groups,
        rows=num_groups * width,
        num_kv_heads=num_kv_heads,
        group=group,
        room=room,
    )


def plan_prefixes(
    groups: Sequence[Group],
    *,
    rows: int,
    num_kv_heads: int,
    group: int,
    room: int | None = None,
) -> SharedPrefixes:
    """The work of groups, on the device.

    Groups for which there is no room are left out, those that save the least first.

    Args:
        groups: as `find_groups` has them.
        rows: `B`.
        num_kv_heads: `Hkv`.
        group: query heads of each key/value head.
        room: for so many pieces; `None`: as many as `room_for` says.
    """
    tile_tokens = TILE_ROWS // group
    room = room_for(rows, num_kv_heads, group) if room is None else room
    kept = _that_fit(groups, tile_tokens, room)
    order = _order(kept, rows)
    place = np.empty(rows, np.int32)
    place[order] = np.arange(rows, dtype=np.int32)
    tiles = [tile for one in kept for tile in _tiles(one, place, tile_tokens)]
    sizes = np.array([-(-t[4] // KEY_TILE) - t[3] // KEY_TILE for t in tiles], np.int32)
    blocks = chip().num_sms / num_kv_heads
    spare = max(room - len(tiles), 0)
    pieces = pieces_of(sizes, Room(blocks, spare)) if tiles else sizes
    work: list[tuple[int, ...]] = []
    parts = np.full((MAX_LEVELS, rows, PART), NONE, np.int32)
    for (level, first, tokens, begin, end), count in zip(
        tiles, pieces.tolist(), strict=True
    ):
        record, row = len(work), int(order[first])
        parts[level, first : first + tokens, 0] = record
        parts[level, first : first + tokens, 1] = count
        parts[level, first : first + tokens, 2] = np.arange(tokens)
        cuts = _cuts(begin, end, count)
        for i in range(count):
            span = (cuts[i], cuts[i + 1], record + i, count if i == 0 else 0)
            work.append((row, first, end, tokens, *span))
    work.sort(key=lambda piece: piece[4] - piece[5])  # the longest first
    table = np.zeros((room, WORK), np.int32)
    table[: len(work)] = np.array(work, np.int32).reshape(len(work), WORK)
    tokens_of = np.zeros(rows, np.int32)
    for one in kept:
        tokens_of[list(one.rows)] = np.maximum(tokens_of[list(one.rows)], one.end)
    return SharedPrefixes(*jax.device_put((tokens_of, order, table, parts)))


def _that_fit(groups: Sequence[Group], tile_tokens: int, room: int) -> list[Group]:
    """Outer groups before inner ones; an inner one needs its outer one."""
    kept: list[Group] = []
    tiles = 0
    dropped: set[int] = set()
    for group in sorted(groups, key=lambda g: (g.level, -g.saved)):
        tiles_of_group = -(-len(group.rows) // tile_tokens)
        if tiles + tiles_of_group > room or dropped.intersection(group.rows):
            dropped.update(group.rows)
            continue
        kept.append(group)
        tiles += tiles_of_group
    return kept


def _order(groups: Sequence[Group], rows: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Outer groups' rows as they stand there, and then all others."""
    first: list[int] = []
    for group in groups:
        if group.level == 0 or not set(group.rows) <= set(first):
            first += group.rows
    rest = sorted(set(range(rows)).difference(first))
    return np.array([*first, *rest], np.int32)


type _Tile = tuple[int, int, int, int, int]  # level, first place, rows, begin, end


def _tiles(
    group: Group, place: np.ndarray[Any, np.dtype[np.int32]], tile_tokens: int
) -> list[_Tile]:
    first = int(place[group.rows[0]])
    count = len(group.rows)
    return [
        (
            group.level,
            first + at,
            min(tile_tokens, count - at),
            group.begin,
            group.end,
        )
        for at in range(0, count, tile_tokens)
    ]


def _cuts(begin: int, end: int, count: int) -> list[int]:
    """Where pieces begin and end: at multiples of `KEY_TILE`, but for the ends."""
    start = begin // KEY_TILE
    tiles = -(-end // KEY_TILE) - start
    inner = [(start + tiles * i // count) * KEY_TILE for i in range(count + 1)]
    return [begin, *inner[1:-1], end]
