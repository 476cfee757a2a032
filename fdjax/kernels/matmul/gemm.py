"""GEMMs on Hopper's tensor cores for M up to 128, and their launch configs."""

import itertools
import math
from dataclasses import dataclass

import jax.numpy as jnp

from fdjax.kernels import ffi
from fdjax.kernels.hopper import CLUSTERS, NUM_SMS, SHARED_BYTES
from fdjax.kernels.matmul import handler
from fdjax.kernels.matmul.arguments import Matmul
from fdjax.kernels.matmul.params import MAX_GEMM_M, MAX_STAGES, NAME, FlatConfig
from fdjax.kernels.op import Impl
from fdjax.notation import Array, Float

TILES = -2  # in a `FlatConfig`: asks for `gemm`, as in ffi/matmul/params.h
DEPTH = 64  # columns of a stage

# Bytes a clock of an SM: its shared memory, and others' for it. Measured.
_SHARED_RATE, _CLUSTER_RATE = 128, 11
_START_AND_END = 8000  # clocks


@dataclass(frozen=True)
class GemmConfig:
    """The launch config of `gemm` (`GemmConfig` in params.h).

    Attributes:
        rows: weight rows of a block; of a gated GEMM half of them are up rows.
        split: blocks of a cluster that share K (split-K).
    """

    rows: int
    split: int

    @property
    def stage_bytes(self) -> int:
        """Of the ring."""
        return (MAX_GEMM_M + self.rows) * DEPTH * 2

    @property
    def stages(self) -> int:
        """As many as fit."""
        return min(MAX_STAGES, (SHARED_BYTES - 1024) // self.stage_bytes)

    def numbers(self) -> FlatConfig:
        """What the handlers take."""
        return FlatConfig(TILES, 0, self.rows, self.split, self.stages)

    def clocks(self, n: int, k: int) -> float:
        """What a GEMM takes by this model, in clocks of an SM.

        For 16 columns of K, 32 bytes of a row, a block's tensor cores need a clock for
        each weight row, and its shared memory delivers both operands of two wgmmas of
        64 tokens while it takes in the next ones.
        """
        delivered = 2 * (64 + self.rows) + MAX_GEMM_M + self.rows
        step = max(self.rows, delivered * 32 / _SHARED_RATE)
        at_once = CLUSTERS.get(self.split, NUM_SMS)
        waves = math.ceil(math.ceil(n / self.rows) / at_once)
        sums = MAX_GEMM_M * self.rows * 4
        from_others = sums * (self.split - 1) / self.split / _CLUSTER_RATE
        steps = k / 16 / self.split
        return waves * (steps * step + from_others + _START_AND_END)


CONFIGS = tuple(
    GemmConfig(*numbers) for numbers in itertools.batched(ffi.limits(NAME, "gemms"), 2)
)
"""Those that are compiled."""


def choose(n: int, k: int) -> GemmConfig:
    """What takes the fewest clocks by the model."""
    return min(CONFIGS, key=lambda config: config.clocks(n, k))


def run(call: Matmul) -> Float[Array, "M columns"]:
    """See `fdjax.kernels.matmul.matmul`, and `gated_matmul`."""
    config = choose(*call.weight.shape)
    return handler.run(call, config.numbers())


def refuse(call: Matmul) -> str | None:
    """Why `gemm` cannot serve this call, or `None`."""
    return (
        handler.refuse(call, max_m=MAX_GEMM_M)
        or ffi.refuse_below_sm90()
        or _refuse_wide_results(call)
    )


def _refuse_wide_results(call: Matmul) -> str | None:
    out = jnp.dtype(call.out_dtype)
    return None if out == call.x.dtype else f"the result is {out}; it writes 16 bits"


IMPL = Impl(run, refuse)
