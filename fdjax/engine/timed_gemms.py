"""GEMMs that XLA times while it compiles for a GPU, and the memory that this takes.

It times candidates on operands of its own, and compares results. Where every call of a
model is one chain of kernels and the head is not XLA's, there is nothing to time: all
programs that run a model are compiled without then (see `Programs`).
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from fdjax import device
from fdjax.engine.buckets import CHEAP_TOKENS, SCORED_TOKENS, SMALLEST_PREFILL
from fdjax.engine.shared_reads import SharedReads
from fdjax.engine.step_calls import StepCall, StepCalls
from fdjax.kernels.matmul import OP as MATMUL
from fdjax.kernels.matmul import Matmul
from fdjax.kernels.weight import Dense
from fdjax.memory.kv import KVLayout
from fdjax.models.config import ModelConfig
from fdjax.models.program import OP as LAYER_PROGRAM

FLOAT32_BYTES = 4


def tunes_gemms(
    config: ModelConfig,
    layout: KVLayout,
    *,
    num_tokens: int,
    num_rows: int,
    width: int,
) -> bool:
    """Whether XLA times GEMMs while it compiles, with room for one program's.

    Args:
        config: the model.
        layout: of the KV array; its number of pages does not matter.
        num_tokens: of the largest call with prompts.
        num_rows: rows of the largest batch.
        width: pages of the longest sequence.
    """
    return device.platform() == "gpu" and (
        _by_layer(config, layout, num_tokens, num_rows, width)
        or _has_head(config, layout, num_rows)
    )


def tuning_bytes(
    config: ModelConfig,
    layout: KVLayout,
    *,
    num_tokens: int,
    num_rows: int,
    width: int,
) -> int:
    """What XLA needs to time the largest GEMM of its own; 0 where it has none.

    Args:
        config: the model.
        layout: see `tunes_gemms`, as for the others.
        num_tokens: see there.
        num_rows: see there.
        width: see there.
    """
    if device.platform() != "gpu":
        return 0
    size, itemsize = config.hidden_size, jnp.dtype(layout.dtype).itemsize
    gemms: list[tuple[int, int, int, int]] = []
    if _by_layer(config, layout, num_tokens, num_rows, width):
        up = max(kind.mlp.up_size for kind in config.kinds)
        down = max(kind.mlp.size for kind in config.kinds)
        gemms += [(num_tokens, size, up, itemsize), (num_tokens, down, size, itemsize)]
    if _has_head(config, layout, num_rows):
        rows = max(num_rows, SCORED_TOKENS)
        gemms.append((rows, size, config.embedding.vocab_size, FLOAT32_BYTES))
    return max(
        (
            (m * k + n * k) * itemsize + 2 * m * n * out_itemsize
            for m, k, n, out_itemsize in gemms
        ),
        default=0,
    )


def _by_layer(
    config: ModelConfig, layout: KVLayout, num_tokens: int, num_rows: int, width: int
) -> bool:
    """Whether some call runs layer by layer, whose GEMMs may be XLA's."""
    of = StepCalls(config, layout, num_rows).of
    sizes = _sizes(config, num_tokens, num_rows)
    # A beam that reads its prompt has a table of the prompt's pages and its own.
    calls = (of(kind, n, width * (1 + (kind == "separate"))) for kind, n in sizes)
    return not all(map(LAYER_PROGRAM.fast, calls))


def _sizes(
    config: ModelConfig, num_tokens: int, num_rows: int
) -> Iterator[tuple[StepCall, int]]:
    """Every kind of call, with the fewest tokens and the most that it may have.

    What the chain refuses by its size is too large, or has fewer tokens than are
    wanted of it.
    """
    of_rows: tuple[StepCall, ...] = ("decode", "separate")
    if SharedReads.suit(config):  # else nothing is read once for several
        of_rows = (*of_rows, "shared", "beams")
    for kind in of_rows:
        yield kind, 1
        yield kind, num_rows
    of_prompts: tuple[tuple[StepCall, int], ...] = (
        ("extend", SMALLEST_PREFILL),
        ("pool", CHEAP_TOKENS),
    )
    for kind, least in of_prompts:
        yield kind, min(least, num_tokens)
        yield kind, num_tokens
    yield "score", SCORED_TOKENS


def _has_head(config: ModelConfig, layout: KVLayout, num_rows: int) -> bool:
    """Whether some GEMM that makes logits is XLA's.

    Rows that decode are of a few numbers, beams of any.
    """
    rows = {*range(1, num_rows + 1), SCORED_TOKENS}
    return not all(MATMUL.fast(_head(config, layout.dtype, each)) for each in rows)


def _head(config: ModelConfig, dtype: jax.typing.DTypeLike, rows: int) -> Matmul:
    """The GEMM that makes logits."""
    size, vocabulary = config.hidden_size, config.embedding.vocab_size
    return Matmul(
        _struct((rows, size), dtype),
        Dense(_struct((vocabulary, size), dtype)),
        _struct((vocabulary,), dtype) if config.embedding.head_bias else None,
        None,
        activation=None,
        out_dtype=jnp.float32,
    )


def _struct(shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> Any:
    """Shapes and types are all that the choice of an implementation reads."""
    return jax.ShapeDtypeStruct(shape, dtype)
