"""GEMMs on Hopper's tensor cores for M up to 128, and their launch configs."""

import itertools
import math

from fdjax.kernels import ffi
from fdjax.kernels.chip import chip
from fdjax.kernels.matmul import handler
from fdjax.kernels.matmul.arguments import Matmul
from fdjax.kernels.matmul.params import MAX_GEMM_M, NAME, GemmConfig
from fdjax.kernels.op import Impl
from fdjax.notation import Array, Float

# Bytes a clock of an SM: its shared memory, and others' for it. Measured.
_SHARED_RATE, _CLUSTER_RATE = 128, 11
_START_AND_END = 8000  # clocks


def clocks(config: GemmConfig, n: int, k: int) -> float:
    """What a GEMM takes by this model, in clocks of an SM.

    For 16 columns of K, 32 bytes of a row, a block's tensor cores need a clock for
    each weight row, and its shared memory delivers both operands of two wgmmas of
    64 tokens while it takes in the next ones.
    """
    delivered = 2 * (64 + config.rows) + MAX_GEMM_M + config.rows
    step = max(config.rows, delivered * 32 / _SHARED_RATE)
    at_once = chip().at_once(config.split)
    waves = math.ceil(math.ceil(n / config.rows) / at_once)
    sums = MAX_GEMM_M * config.rows * 4
    from_others = sums * (config.split - 1) / config.split / _CLUSTER_RATE
    steps = k / 16 / config.split
    return waves * (steps * step + from_others + _START_AND_END)


CONFIGS = tuple(
    GemmConfig(*numbers) for numbers in itertools.batched(ffi.limits(NAME, "gemms"), 2)
)
"""Those that are compiled."""


def choose(n: int, k: int) -> GemmConfig:
    """What takes the fewest clocks by the model."""
    return min(CONFIGS, key=lambda config: clocks(config, n, k))


def run(call: Matmul) -> Float[Array, "M columns"]:
    """See `fdjax.kernels.matmul.matmul`, and `gated_matmul`."""
    return handler.run(call, choose(*call.weight.shape))


def refuse(call: Matmul) -> str | None:
    """Why `gemm` cannot serve this call, or `None`."""
    return (
        handler.refuse(call, max_m=MAX_GEMM_M)
        or ffi.refuse_below_sm90()
        or handler.refuse_wide_results(call)
    )


IMPL = Impl(run, refuse)
