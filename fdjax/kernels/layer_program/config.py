"""Which kernel serves each GEMM of a chain of kernels, and its launch config."""

import dataclasses

from fdjax.kernels.matmul import config as matmul_config
from fdjax.kernels.matmul import gemm, handler, library
from fdjax.kernels.matmul.params import FlatConfig

# What a block of the QKV GEMM may take of an SM's shared memory up to FEW_ROWS rows, so
# that a block of attention starts beside it and fetches pages while it ends. On an H200
# layers of Llama-3-8B take 4.05 ms at 8 x 1,024 with a ring of 9 stages, 4.11 with 15;
# at 16 x 1,024 4.35 with 8, 4.39 with 13; at 64 all are level.
BESIDE_ATTENTION_BYTES = 132 * 1024
FEW_ROWS = 16

# Which of cuBLASLt's candidates serves, where the step is faster by another than
# its first: (M, N, K), on an H200 with cuBLASLt 13.1. Measured in the step, where power
# and clocks are what they are: alone the first takes 92 us, in the step 99 to 104, and
# the second 91 to 94.
CANDIDATES = {(256, 28672, 4096): 1}


def choose(
    m: int, n: int, k: int, *, gated: bool = False, beside_attention: bool = False
) -> FlatConfig:
    """The kernel and its launch config for one GEMM.

    Args:
        m: rows of x.
        n: rows of the weight.
        k: columns of both.
        gated: whether the weight's rows are a gate's and as many `up` rows.
        beside_attention: attention of rows that decode is what follows.
    """
    if m == 1:
        # gemv's many small blocks and flat's few large ones leave each other little
        # room: of Llama-3-8B, all by gemv takes 3,720 us, all by flat 4,016, and each
        # GEMM by what is fastest for it alone 4,262.
        return handler.GEMV
    if m > gemm.MAX_GEMM_M:
        return library.config(CANDIDATES.get((m, n, k), 0))
    if m > matmul_config.MAX_FLAT_M:
        return gemm.choose(n, k).numbers()
    config = matmul_config.flat_config(m, n, k, gated=gated)
    return _beside_attention(m, config) if beside_attention else config


def source(m: int, shapes: tuple[tuple[int, int], ...]) -> str:
    """What chose the kernels of the GEMMs and their launch configs, in words.

    Args:
        m: rows of x.
        shapes: of the weights.
    """
    if m == 1:
        return "GEMMs by gemv, for one row"
    if m > gemm.MAX_GEMM_M:
        return f"GEMMs by cuBLASLt, for more than {gemm.MAX_GEMM_M} rows"
    if m > matmul_config.MAX_FLAT_M:
        return f"GEMMs by gemm, for more than {matmul_config.MAX_FLAT_M} rows"
    names = dict.fromkeys(matmul_config.source_of(*shape) for shape in shapes)
    return f"GEMMs by {', '.join(names)}"


def _beside_attention(m: int, config: FlatConfig) -> FlatConfig:
    """With a ring no larger than leaves attention's blocks room."""
    while (
        m <= FEW_ROWS
        and config.stages > 1
        and config.shared_bytes(m) > BESIDE_ATTENTION_BYTES
    ):
        config = dataclasses.replace(config, stages=config.stages - 1)
    return config
