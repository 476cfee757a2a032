"""How the kernels of the chain cut their work."""

import dataclasses

from fdjax.kernels.decode_attention import config as attention_config
from fdjax.kernels.decoder_stack.weights import LayerWeights
from fdjax.kernels.layer_program import config as layer_program
from fdjax.kernels.matmul import handler, library
from fdjax.kernels.weight import Weight

GEMV = dataclasses.astuple(handler.GEMV)
PRODUCTS = 4


@dataclasses.dataclass(frozen=True)
class Cuts:
    """Launch parameters of the chain.

    Attributes:
        attention: of `decode_attention`.
        products: of each of a layer's four products in order, the fields of what
            `layer_program.config.choose` returns.
    """

    attention: attention_config.Config
    products: tuple[int, ...]

    @property
    def uses_library(self) -> bool:
        """Whether cuBLASLt multiplies."""
        return library.TILES in self.products[:: len(GEMV)]


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
    return layer_program.source(rows, tuple(weight.shape for weight in _weights(layer)))


def _products(rows: int, layer: LayerWeights) -> tuple[int, ...]:
    chosen = (
        layer_program.choose(
            rows,
            *weight.shape,
            gated=weight is layer.up,
            beside_attention=weight is layer.qkv,
        )
        for weight in _weights(layer)
    )
    return sum(map(dataclasses.astuple, chosen), ())


def _weights(layer: LayerWeights) -> tuple[Weight, ...]:
    """Of the products, in their order."""
    return layer.qkv, layer.out, layer.up, layer.down
