"""Which kernel multiplies in a chain of kernels, and how it cuts its work."""

import dataclasses

from fdjax.kernels.matmul import config as matmul_config
from fdjax.kernels.matmul import gemm, handler, library
from fdjax.kernels.matmul.params import FlatConfig

# What a block of the QKV product may take of a multiprocessor's shared memory up to
# FEW_ROWS rows, so that a block of attention starts beside it and fetches pages while
# it ends. On an H200 layers of Llama-3-8B take 4.05 ms at 8 x 1,024 with a ring of 9
# stages, 4.11 with 15; at 16 x 1,024 4.35 with 8, 4.39 with 13; at 64 all are level.
BESIDE_ATTENTION_BYTES = 132 * 1024
FEW_ROWS = 16

# Which of cuBLASLt's candidates multiplies, where the step is faster by another than
# its first: (M, N, K), on an H200 with cuBLASLt 13.1. Measured in the step, where power
# and clocks are what they are: alone the first takes 92 us, in the step 99 to 104, and
# the second 91 to 94.
CANDIDATES = {(256, 28672, 4096): 1}


def choose(
    m: int, n: int, k: int, *, gated: bool = False, beside_attention: bool = False
) -> FlatConfig:
    """What multiplies.

    Args:
        m: rows of x.
        n: rows of the weight.
        k: columns of both.
        gated: whether the two halves of the product become one.
        beside_attention: attention of rows that decode is what follows.
    """
    if m == 1:
        # A's many small blocks and B's few large ones leave each other little room: of
        # Llama-3-8B, all by A takes 3,720 us, all by B 4,016, and each product by what
        # is fastest for it alone 4,262.
        return handler.GEMV
    if m > gemm.MAX_GEMM_M:
        return library.config(CANDIDATES.get((m, n, k), 0))
    if m > matmul_config.MAX_FLAT_M:
        return gemm.choose(n, k).numbers()
    config = matmul_config.flat_config(m, n, k, gated=gated)
    return _beside_attention(m, config) if beside_attention else config


def source(m: int, shapes: tuple[tuple[int, int], ...]) -> str:
    """What chose how the products are cut, in words.

    Args:
        m: rows of x.
        shapes: of the weights.
    """
    if m == 1:
        return "products by gemv, for one row"
    if m > gemm.MAX_GEMM_M:
        return f"products by cuBLASLt, for more than {gemm.MAX_GEMM_M} rows"
    if m > matmul_config.MAX_FLAT_M:
        return f"products by gemm, for more than {matmul_config.MAX_FLAT_M} rows"
    names = dict.fromkeys(matmul_config.source_of(*shape) for shape in shapes)
    return f"products by {', '.join(names)}"


def _beside_attention(m: int, config: FlatConfig) -> FlatConfig:
    """With a ring no larger than leaves attention's blocks room."""
    while (
        m <= FEW_ROWS
        and config.stages > 1
        and config.shared_bytes(m) > BESIDE_ATTENTION_BYTES
    ):
        config = dataclasses.replace(config, stages=config.stages - 1)
    return config
