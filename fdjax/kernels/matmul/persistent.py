"""GEMMs on Hopper's tensor cores for prompts: any M, and the gate inside."""

import itertools
import math

from fdjax.kernels import ffi
from fdjax.kernels.hopper import CLUSTERS
from fdjax.kernels.matmul import handler
from fdjax.kernels.matmul.arguments import Matmul
from fdjax.kernels.matmul.library import MAX_M
from fdjax.kernels.matmul.params import PERSISTENT_ROWS, PersistentConfig
from fdjax.kernels.op import Impl
from fdjax.notation import Array, Float

_TILE_TOKENS = 128
_PAIR = 2  # blocks of a cluster, which have tiles side by side
# Tiles of tokens between which those that run at once lie: x of more is not in L2 long
# enough, and for fewer weights are read more often.
_FEW, _MANY, _FEW_TOKENS = 8, 16, 2048
# A narrower tile reads more from shared memory for each product, which takes power.
_NARROW = 0.97


def configs(m: int) -> tuple[PersistentConfig, ...]:
    """The launch configs for M rows."""
    band = _FEW if m <= _FEW_TOKENS else _MANY
    return tuple(
        PersistentConfig(rows, band, shares)
        for rows, shares in itertools.product(PERSISTENT_ROWS, (True, False))
    )


def efficiency(config: PersistentConfig, m: int, n: int, *, gated: bool) -> float:
    """How much of what SMs could multiply until all have ended is wanted.

    Tiles at the edges multiply more than there is, and in the last wave of clusters
    some have no tile.
    """
    columns, width = (n // 2, config.rows // 2) if gated else (n, config.rows)
    tall, wide = (_PAIR, 1) if config.shares_weights else (1, _PAIR)
    clusters = math.ceil(m / (tall * _TILE_TOKENS)) * math.ceil(
        columns / (wide * width)
    )
    waves = math.ceil(clusters / CLUSTERS[_PAIR])
    room = waves * CLUSTERS[_PAIR] * _PAIR * _TILE_TOKENS * width
    power = 1.0 if config.rows == max(PERSISTENT_ROWS) else _NARROW
    return m * columns / room * power


def choose(m: int, n: int, *, gated: bool) -> PersistentConfig:
    """The launch config of the best efficiency."""
    return max(configs(m), key=lambda config: efficiency(config, m, n, gated=gated))


def run(call: Matmul) -> Float[Array, "M columns"]:
    """See `fdjax.kernels.matmul.matmul`, and `gated_matmul`."""
    m, n = call.x.shape[0], call.weight.shape[0]
    return handler.run(call, choose(m, n, gated=call.gated))


def refuse(call: Matmul) -> str | None:
    """Why `persistent` cannot serve this call, or `None`."""
    return (
        handler.refuse(call, max_m=MAX_M)
        or ffi.refuse_below_sm90()
        or handler.refuse_wide_results(call)
    )


IMPL = Impl(run, refuse)
