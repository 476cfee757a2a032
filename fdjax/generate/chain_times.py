"""Times of decode steps, where kernels are chosen in one way or another."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from fdjax.errors import Unsupported
from fdjax.kernels.layer_program import table
from fdjax.kernels.layer_program.table import ChainRows
from fdjax.kernels.paged import KVCache
from fdjax.kernels.reporting import recording
from fdjax.kernels.tuning.stopwatch import median_seconds
from fdjax.layers import decode_batch
from fdjax.memory.kv import KVLayout
from fdjax.models.config import ModelConfig
from fdjax.models.decoder import Decoder
from fdjax.models.random_init import random_weights
from fdjax.notation import Array, Float, Int32

NUM_LAYERS = 4
"""More than an L2 holds of a model's weights, and few enough to make up at once."""
CONTEXT = 1024
"""Tokens that each row has, or as many as fit."""
PAGE_SIZE = 16
PAGES = CONTEXT // PAGE_SIZE
_CALL = "layer_program: "


class ChainTimes:
    """Steps of the first layers of a model, with made-up weights; the head is left out.

    Args:
        config: the model.
        dtype: of weights, keys and values.
        most_rows: of a step in which each has `CONTEXT` tokens; those of more rows
            have fewer.
    """

    def __init__(
        self, config: ModelConfig, dtype: jax.typing.DTypeLike, *, most_rows: int
    ) -> None:
        cut = _cut(config)
        self._model = random_weights(cut, dtype=dtype, seed=0)
        self._kv = _layout(cut, dtype, most_rows).allocate()

    @staticmethod
    def check(config: ModelConfig, dtype: jax.typing.DTypeLike) -> None:
        """Traces a step, and allocates nothing.

        Raises:
            Unsupported: layers run one by one here, and choose no kernels by rows.
        """
        cut = _cut(config)
        shape: Any = jax.ShapeDtypeStruct(_layout(cut, dtype, 1).shape, dtype)
        lowered(Decoder(cut, dtype), KVCache.page_major(shape), ChainRows(), 1)

    def microseconds(self, rows: ChainRows, m: int) -> float:
        """The median of a layer in a step of M rows, where `rows` chooses kernels.

        Raises:
            Unsupported: see `check`.
        """
        # A model of modules takes the host longer than small layers take the device.
        leaves = jax.tree.leaves(self._model)
        operands = _operands(self._kv, m)
        run = lowered(self._model, self._kv, rows, m).compile()

        def launch() -> Array:
            hidden, self._kv = run(leaves, self._kv, *operands)
            return hidden

        return median_seconds(launch) / self._kv.num_layers * 1e6


def lowered(model: Decoder, kv: KVCache, rows: ChainRows, m: int) -> jax.stages.Lowered:
    """The program of one more token for each row, of a model's leaves.

    Args:
        model: shapes of its weights are enough.
        kv: likewise.
        rows: by which it chooses kernels.
        m: rows.

    Raises:
        Unsupported: see `ChainTimes.check`.
    """
    leaves, structure = jax.tree.flatten(model)

    # Of its own: what jit has traced of another function it would find again.
    def step(
        leaves: Sequence[Array],
        kv: KVCache,
        tokens: Int32[Array, " B"],
        lengths: Int32[Array, " B"],
        page_table: Int32[Array, "B W"],
    ) -> tuple[Float[Array, "B E"], KVCache]:
        batch = decode_batch(tokens, lengths, page_table, page_size=kv.page_size)
        hidden, kv, _ = jax.tree.unflatten(structure, leaves)(kv, batch)
        return hidden, kv

    call = jax.jit(step, donate_argnums=1)
    with table.PART.using(rows), recording() as lines:
        found = call.lower(leaves, kv, *_operands(kv, m))
    (line,) = (line for line in lines if line.startswith(_CALL))
    if not line.startswith(f"{_CALL}cuda"):
        raise Unsupported(line)
    return found


def _cut(config: ModelConfig) -> ModelConfig:
    return replace(config, layers=config.layers[:NUM_LAYERS])


def _layout(
    config: ModelConfig, dtype: jax.typing.DTypeLike, num_rows: int
) -> KVLayout:
    return config.kv_layout(
        num_pages=num_rows * PAGES, page_size=PAGE_SIZE, dtype=dtype
    )


def _operands(kv: KVCache, m: int) -> tuple[Array, Array, Array]:
    """Tokens, lengths, and the page table."""
    each = min(kv.num_pages // m, PAGES)
    pages = jnp.arange(m * each, dtype=jnp.int32).reshape(m, each)
    return jnp.ones(m, jnp.int32), jnp.full(m, each * PAGE_SIZE - 1), pages
