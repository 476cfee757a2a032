"""How the kernels of the chain cut their work: each as its own operation does."""

import dataclasses

from fdjax.kernels.decode_attention import config as attention_config
from fdjax.kernels.decoder_stack.weights import LayerWeights
from fdjax.kernels.matmul import config as matmul_config

GEMV = (0, 0, 0, 0, 0)  # a product of no tiles is A's


@dataclasses.dataclass(frozen=True)
class Cuts:
    """Launch parameters of the chain.

    Attributes:
        attention: of `decode_attention`.
        products: of each of a layer's four products in order, the fields of its
            `FlatConfig`, or `GEMV`.
    """

    attention: attention_config.Config
    products: tuple[int, ...]


def choose(rows: int, num_kv_heads: int, max_tokens: int, layer: LayerWeights) -> Cuts:
    """The cuts that the operations' own configurations give.

    Args:
        rows: `B`.
        num_kv_heads: `Hkv`.
        max_tokens: what the page table has room for.
        layer: whose weights tell the sizes.
    """
    return Cuts(
        attention_config.heuristic(
            attention_config.Call(rows, num_kv_heads, max_tokens)
        ),
        (
            *_product(rows, layer.qkv.shape),
            *_product(rows, layer.out.shape),
            *_product(rows, layer.up.shape, gated=True),
            *_product(rows, layer.down.shape),
        ),
    )


def _product(
    rows: int, shape: tuple[int, ...], *, gated: bool = False
) -> tuple[int, ...]:
    n, k = shape
    if matmul_config.choose(rows, n, k)[0] == "gemv":
        return GEMV
    return dataclasses.astuple(matmul_config.flat_config(rows, n, k, gated=gated))
