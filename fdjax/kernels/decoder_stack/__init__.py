"""All layers of a decode step as one operation, so that their kernels can overlap."""

from fdjax.kernels.decoder_stack import config, cuda, reference
from fdjax.kernels.decoder_stack.arguments import DecoderStack, Stacked
from fdjax.kernels.decoder_stack.weights import LayerWeights, StackSpec
from fdjax.kernels.op import Op
from fdjax.kernels.paged import KVCache, PageView
from fdjax.notation import Array, Float

__all__ = ["OP", "DecoderStack", "LayerWeights", "StackSpec", "decoder_stack"]


def _source(call: DecoderStack) -> str:
    """What chose how the products are cut."""
    return config.source(call.x.shape[0], call.layers[0])


OP = Op(
    "decoder_stack",
    reference.decoder_stack,
    {"cuda": cuda.IMPL},
    source=_source,
    batch_invariant=True,
)


def decoder_stack(
    x: Float[Array, "B E"],
    kv: KVCache,
    pages: PageView,
    frequencies: Float[Array, " R2"],
    layers: tuple[LayerWeights, ...],
    *,
    spec: StackSpec,
) -> Stacked:
    """Runs one token a row through layers of the Llama kind.

    A kernel boundary costs 1 to 2 microseconds, and a layer of a decode step takes
    about 110 (Llama-3-8B, batch 1). Within one call the kernels are chained with
    programmatic dependent launch: each loads its first weights while its predecessor
    drains. XLA captures every FFI call as a graph of its own, with full dependencies
    between them, so the chain must not be cut into calls.

    The arguments are the fields of `DecoderStack`.

    Returns:
        The residual stream after the last layer, the updated cache, and how many
        query heads of each row every layer computed again because they left the bounds
        of `spec.unified`; zeros without one.

    Raises:
        ValueError: the number of layers does not match the cache or the windows, or
            the products' sizes do not match each other.
    """
    if not len(layers) == len(spec.windows) == kv.num_layers:
        raise ValueError(
            f"decoder_stack: {len(layers)} layers, {len(spec.windows)} windows, and a "
            f"cache of {kv.num_layers} layers"
        )
    for weights in layers:
        _check_products(weights, kv)
    return OP(
        DecoderStack(
            x,
            kv,
            pages,
            frequencies,
            layers,
            spec=spec,
        )
    )


def _check_products(weights: LayerWeights, kv: KVCache) -> None:
    num_kv_heads, head_dim = kv.num_kv_heads, kv.head_dim
    columns = weights.qkv.shape[0]
    expected = weights.out.shape[1] + 2 * num_kv_heads * head_dim
    if columns != expected:
        raise ValueError(
            f"decoder_stack: qkv has {columns} rows; out takes {weights.out.shape[1]} "
            f"columns, and {num_kv_heads} heads of {head_dim} in kv make it {expected}"
        )
    if weights.up.shape[0] != 2 * weights.down.shape[1]:
        raise ValueError(
            f"decoder_stack: up has {weights.up.shape[0]} rows, gate and up; down "
            f"takes {weights.down.shape[1]} columns"
        )
