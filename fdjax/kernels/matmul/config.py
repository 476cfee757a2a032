"""Which implementation of `matmul` serves a GEMM, and its launch config.

The heuristic dataflow of FlashDecoding++ (section 5): for the `[N, K]` of a weight,
`gemv` serves M up to an inflection point M1, `flat` up to M2, and XLA's dot (the
reference) above. The table of the device says where those lie, and has the launch
config of `flat`; for a shape that no table has, the heuristic below does. M is static,
so the choice costs nothing at run time. (`gemm` serves in the chain of `layer_program`
alone: called by itself, XLA's dot is as fast.)
"""

import dataclasses
import itertools
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from fdjax.kernels.chip import SHARED_BYTES, chip
from fdjax.kernels.matmul import table
from fdjax.kernels.matmul.params import (
    MAX_FLAT_M,
    MAX_GEMV_M,
    MAX_STAGES,
    MAX_TILE_ROWS,
    TILE_ROW_MULTIPLE,
    FlatConfig,
    padded_m,
)

__all__ = [
    "MAX_FLAT_M",
    "MAX_GEMV_M",
    "MAX_STAGES",
    "FlatConfig",
    "candidates",
    "choose",
    "flat_config",
    "heuristic",
    "padded_m",
    "source_of",
]


def choose(
    m: int, n: int, k: int, *, dtype: jax.typing.DTypeLike = jnp.bfloat16
) -> tuple[str, ...]:
    """The implementations to try for a GEMM, best first.

    The reference is XLA's dot; what is not named is not tried.

    Args:
        m: rows of x.
        n: rows of the weight.
        k: columns of both.
        dtype: of the weight's elements.
    """
    choice, _ = table.find(n, k, dtype)
    gemv_up_to = _gemv_up_to(n, k) if choice is None else choice.gemv_up_to
    flat_up_to = MAX_FLAT_M if choice is None else choice.flat_up_to
    if m <= gemv_up_to:
        return ("gemv", "flat")
    if m <= flat_up_to:
        return ("flat", "gemv")
    return ("reference",)


def source_of(n: int, k: int, *, dtype: jax.typing.DTypeLike = jnp.bfloat16) -> str:
    """Where the choice for an `[N, K]` of a format comes from, in words."""
    return table.find(n, k, dtype)[1]


def flat_config(
    m: int,
    n: int,
    k: int,
    *,
    gated: bool,
    dtype: jax.typing.DTypeLike = jnp.bfloat16,
) -> FlatConfig:
    """The launch config of `flat`: the table's, else the heuristic's.

    Args:
        m: rows of x.
        n: rows of the weight.
        k: columns of both.
        gated: whether the weight's rows are a gate's and as many `up` rows.
        dtype: of the weight's elements.
    """
    choice, _ = table.find(n, k, dtype)
    if choice is not None and padded_m(m) in choice.flat:
        config = choice.flat[padded_m(m)]
    else:
        config = heuristic(m, n, k)
    if gated and config.tiles == 1:  # one tile of gate rows, one of up rows
        return _with_stages(m, 2, config.boxes, config.tile_rows, config.splits, 2)
    return config


def heuristic(m: int, n: int, k: int) -> FlatConfig:
    """The launch config of `flat` where nothing was measured.

    The thresholds are those that fit Llama-3-8B's five GEMMs on an H200 best; see
    docs/kernels/matmul.md.
    """
    del k
    num_sms = chip().num_sms
    boxes = 2 if m <= 16 else 1  # more tokens leave less room for the ring
    if n >= 4 * 128 * num_sms:
        # Many waves of blocks: three small ones an SM, so that the start and
        # the end of one hide behind the others. With M = 64, x takes much of a stage
        # unless more rows share it.
        if m <= 32:
            return _with_stages(m, 1, boxes, 64, 1, 3)
        return _with_stages(m, 2, 1, 64, 1, 2)
    if n > 64 * num_sms:
        # One wave of two blocks on every SM: 112 rows instead of 128 fill
        # it better where N = 28672.
        return _with_stages(m, 2, boxes, 56, 1, 2)
    if n > 32 * num_sms:
        return _with_stages(m, 1, boxes, 48 if m <= 16 else 56, 1, 1)
    # Fewer tiles than SMs: two blocks share the K of each.
    return _with_stages(m, 1, boxes, 64, 2, 1)


def candidates(m: int, n: int) -> tuple[FlatConfig, ...]:
    """What a search for the launch config of `flat` tries.

    Args:
        m: rows of x.
        n: rows of the weight.
    """
    shapes = (
        # tiles, tile_rows, splits, blocks on an SM
        (1, 48, 1, 1),
        (1, 48, 1, 2),
        (1, 56, 1, 1),
        (1, 56, 1, 2),
        (1, 64, 1, 1),
        (1, 64, 1, 2),
        (1, 64, 1, 3),
        (1, 64, 2, 1),
        (1, 64, 2, 2),
        (2, 56, 1, 2),
        (2, 64, 1, 2),
    )
    every = dict.fromkeys([*((*shape, 0) for shape in shapes), *_one_wave(n)])
    tried = (
        dataclasses.replace(
            _with_stages(m, tiles, boxes, tile_rows, splits, per_sm), narrow=narrow
        )
        for boxes in (1, 2)
        for tiles, tile_rows, splits, per_sm, narrow in every
    )
    return tuple(one for one in tried if one.stages > 1)  # else nothing loads ahead


def _one_wave(n: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Tiles, rows of them, splits, blocks on an SM, and narrow ones: none waits.

    Tiles have as few rows as that allows, so that most SMs have a block: 12,288 rows of
    a weight are 256 blocks of 48 where two share an SM, and 192 of 64. Tiles of fewer
    than 24 rows waste most of what `wgmma` multiplies. Where 8 rows less are enough for
    some blocks, every SM has one: 27,392 rows are 245 blocks of two tiles of 56, or 128
    of these and 136 of 48.
    """
    for tiles, splits, per_sm in itertools.product((1, 2), (1, 2), (1, 2, 3)):
        blocks = max(chip().num_sms * per_sm // splits, 1)
        eights = -(-n // (tiles * TILE_ROW_MULTIPLE))  # of rows, for all blocks
        of_block = -(-eights // blocks)
        rows = TILE_ROW_MULTIPLE * of_block
        if 24 <= rows <= MAX_TILE_ROWS:
            yield tiles, rows, splits, per_sm, 0
            if narrow := blocks * of_block - eights:
                yield tiles, rows, splits, per_sm, narrow


def _with_stages(
    m: int, tiles: int, boxes: int, tile_rows: int, splits: int, per_sm: int
) -> FlatConfig:
    """As many stages as fit when so many blocks share an SM."""
    room = SHARED_BYTES // per_sm - 1024
    config = FlatConfig(tiles, boxes, tile_rows, splits, stages=1)
    while config.stages < MAX_STAGES:
        more = dataclasses.replace(config, stages=config.stages + 1)
        if more.shared_bytes(m) > room:
            break
        config = more
    return config


def _gemv_up_to(n: int, k: int) -> int:
    """M1 where nothing was measured.

    `gemv` reads a small weight faster than `flat`, whose blocks take longer to start
    and to end (1 us of 10); from M = 3 on, and at M = 2 of a large weight, its
    arithmetic shows.
    """
    return 2 if n * k < 100_000_000 else 1
