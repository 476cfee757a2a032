"""How the kernels of the chain cut their work."""

import dataclasses

from fdjax.kernels.decode_attention import config as attention_config
from fdjax.kernels.decoder_stack.weights import LayerWeights
from fdjax.kernels.matmul import config as matmul_config
from fdjax.kernels.matmul import gemm
from fdjax.kernels.weight import Weight

GEMV = (0, 0, 0, 0, 0)  # instead of a `FlatConfig`, as in ffi/matmul/params.h
LIBRARY = -1  # tiles of a product by cuBLASLt, called by the handler
PRODUCTS = 4

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


@dataclasses.dataclass(frozen=True)
class Cuts:
    """Launch parameters of the chain.

    Attributes:
        attention: of `decode_attention`.
        products: of each of a layer's four products in order, the fields of its
            `FlatConfig`, or `GEMV`, or what `_gemm` or `_library` returns.
    """

    attention: attention_config.Config
    products: tuple[int, ...]

    @property
    def uses_library(self) -> bool:
        """Whether cuBLASLt multiplies."""
        return LIBRARY in self.products[:: len(GEMV)]


def choose(rows: int, attention: attention_config.Call, layer: LayerWeights) -> Cuts:
    """The cuts for a call.

    Args:
        rows: `B`.
        attention: what its cut depends on.
        layer: whose weights tell the sizes.
    """
    return Cuts(attention_config.heuristic(attention), _products(rows, layer))


def source(rows: int, layer: LayerWeights) -> str:
    """What chose how the products are cut, in words."""
    if rows == 1:
        return "products by gemv, for one row"
    if rows > gemm.MAX_GEMM_M:
        return f"products by cuBLASLt, for more than {gemm.MAX_GEMM_M} rows"
    if rows > matmul_config.MAX_FLAT_M:
        return f"products by gemm, for more than {matmul_config.MAX_FLAT_M} rows"
    shapes = (weight.shape for weight in _weights(layer))
    names = dict.fromkeys(matmul_config.source_of(*shape) for shape in shapes)
    return f"products by {', '.join(names)}"


def _products(rows: int, layer: LayerWeights) -> tuple[int, ...]:
    if rows == 1:
        # A's many small blocks and B's few large ones leave each other little room: of
        # Llama-3-8B, all by A takes 3,720 us, all by B 4,016, and each product by what
        # is fastest for it alone 4,262.
        return GEMV * PRODUCTS
    if rows > gemm.MAX_GEMM_M:
        return sum((_library(rows, weight.shape) for weight in _weights(layer)), ())
    if rows > matmul_config.MAX_FLAT_M:
        return sum((_gemm(weight.shape) for weight in _weights(layer)), ())
    return (
        *_beside_attention(rows, _flat(rows, layer.qkv.shape)),
        *_flat(rows, layer.out.shape),
        *_flat(rows, layer.up.shape, gated=True),
        *_flat(rows, layer.down.shape),
    )


def _weights(layer: LayerWeights) -> tuple[Weight, ...]:
    """Of the products, in their order."""
    return layer.qkv, layer.out, layer.up, layer.down


def _library(rows: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    n, k = shape
    return (LIBRARY, CANDIDATES.get((rows, n, k), 0), 0, 0, 0)


def _gemm(shape: tuple[int, ...]) -> tuple[int, ...]:
    n, k = shape
    return dataclasses.astuple(gemm.choose(n, k).numbers())


def _beside_attention(rows: int, cut: tuple[int, ...]) -> tuple[int, ...]:
    """The QKV product's cut, its ring no larger than leaves attention's blocks room."""
    flat = matmul_config.FlatConfig(*cut)
    while (
        rows <= FEW_ROWS
        and flat.stages > 1
        and flat.shared_bytes(rows) > BESIDE_ATTENTION_BYTES
    ):
        flat = dataclasses.replace(flat, stages=flat.stages - 1)
    return dataclasses.astuple(flat)


def _flat(rows: int, shape: tuple[int, ...], *, gated: bool = False) -> tuple[int, ...]:
    n, k = shape
    return dataclasses.astuple(matmul_config.flat_config(rows, n, k, gated=gated))
