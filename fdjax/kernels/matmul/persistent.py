"""GEMMs on Hopper's tensor cores for prompts: any M, and the gate inside."""

import itertools
import math

from fdjax.kernels import ffi
from fdjax.kernels.chip import chip
from fdjax.kernels.matmul import handler
from fdjax.kernels.matmul.arguments import Matmul
from fdjax.kernels.matmul.library import MAX_M
from fdjax.kernels.matmul.params import (
    MAX_OTHER_GATE_ROWS,
    PERSISTENT_PAIR,
    PERSISTENT_ROWS,
    PERSISTENT_TOKENS,
    PersistentConfig,
)
from fdjax.kernels.op import Impl
from fdjax.notation import Array, Float

# Gates that leave sums enough registers, without a bias, in tiles of every size.
_SMALL_GATES = ("silu", "gelu_tanh")
# Tiles of tokens between which those that run at once lie: x of more is not in L2 long
# enough, and for fewer weights are read more often.
_FEW, _MANY, _FEW_TOKENS = 8, 16, 2048
# A narrower tile reads more from shared memory for each product, which takes power.
_NARROW = 0.97


def configs(
    m: int, *, activation: str | None, bias: bool
) -> tuple[PersistentConfig, ...]:
    """The launch configs for M rows, of the tiles that such a GEMM has.

    Args:
        m: rows of x.
        activation: of the gate; `None`: there is none.
        bias: whether one is added.
    """
    small = activation is None or (activation in _SMALL_GATES and not bias)
    tiles = (rows for rows in PERSISTENT_ROWS if small or rows <= MAX_OTHER_GATE_ROWS)
    band = _FEW if m <= _FEW_TOKENS else _MANY
    return tuple(
        PersistentConfig(rows, band, shares)
        for rows, shares in itertools.product(tiles, (True, False))
    )


def efficiency(config: PersistentConfig, m: int, n: int, *, gated: bool) -> float:
    """How much of what SMs could multiply until all have ended is wanted.

    Tiles at the edges multiply more than there is, and in the last wave of clusters
    some have no tile.
    """
    columns, width = (n // 2, config.rows // 2) if gated else (n, config.rows)
    pair, at_once = PERSISTENT_PAIR, chip().at_once(PERSISTENT_PAIR)
    tall, wide = (pair, 1) if config.shares_weights else (1, pair)
    down = math.ceil(m / (tall * PERSISTENT_TOKENS))
    waves = math.ceil(down * math.ceil(columns / (wide * width)) / at_once)
    room = waves * at_once * pair * PERSISTENT_TOKENS * width
    power = 1.0 if config.rows == max(PERSISTENT_ROWS) else _NARROW
    return m * columns / room * power


def choose(m: int, n: int, *, activation: str | None, bias: bool) -> PersistentConfig:
    """The launch config of the best efficiency; see `configs`."""
    gated = activation is not None
    return max(
        configs(m, activation=activation, bias=bias),
        key=lambda config: efficiency(config, m, n, gated=gated),
    )


def run(call: Matmul) -> Float[Array, "M columns"]:
    """See `fdjax.kernels.matmul.matmul`, and `gated_matmul`."""
    m, n = call.x.shape[0], call.weight.shape[0]
    has_bias = call.bias is not None
    return handler.run(call, choose(m, n, activation=call.activation, bias=has_bias))


def refuse(call: Matmul) -> str | None:
    """Why `persistent` cannot serve this call, or `None`."""
    return (
        handler.refuse(call, max_m=MAX_M)
        or ffi.refuse_below_sm90()
        or handler.refuse_wide_results(call)
    )


IMPL = Impl(run, refuse)
