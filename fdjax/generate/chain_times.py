"""Times of decode steps, where kernels are chosen in one way or another."""

import statistics
import time
from dataclasses import replace

import jax
import jax.numpy as jnp

from fdjax.errors import Unsupported
from fdjax.kernels.layer_program import table
from fdjax.kernels.layer_program.table import ChainRows
from fdjax.kernels.op import recording
from fdjax.kernels.paged import KVCache
from fdjax.layers import decode_batch
from fdjax.models.config import ModelConfig
from fdjax.models.decoder import Decoder
from fdjax.models.random_init import random_weights
from fdjax.notation import Array, Float, Int32

NUM_LAYERS = 4
"""More than an L2 holds of a model's weights, and few enough to make up at once."""
CONTEXT = 1024
"""Tokens that each row has."""
PAGE_SIZE = 16
REPEATS, SAMPLE_S = 5, 0.03
_CALL = "layer_program: "


class ChainTimes:
    """Steps of the first layers of a model, with made-up weights and no head.

    Args:
        config: the model.
        dtype: of weights, keys and values.
        most_rows: of a step.
    """

    def __init__(
        self, config: ModelConfig, dtype: jax.typing.DTypeLike, *, most_rows: int
    ) -> None:
        cut = replace(config, layers=config.layers[:NUM_LAYERS])
        pages = CONTEXT // PAGE_SIZE
        layout = cut.kv_layout(
            num_pages=most_rows * pages, page_size=PAGE_SIZE, dtype=dtype
        )
        self._model = random_weights(cut, dtype=dtype, seed=0)
        self._table = jnp.arange(layout.num_pages, dtype=jnp.int32).reshape(-1, pages)
        self._kv = layout.allocate()

    def microseconds(self, rows: ChainRows, m: int) -> float:
        """The median of a layer in a step of M rows, where `rows` chooses kernels.

        Raises:
            Unsupported: layers run one by one here, and choose no kernels by it.
        """
        operands = self._operands(m)
        run = self.lowered(rows, m).compile()
        launches = 2  # loaded, then captured in a graph
        found: list[float] = []
        for _ in range(REPEATS + 2):
            start = time.perf_counter()
            for _ in range(launches):
                _, self._kv = run(self._model, self._kv, *operands)
            jax.block_until_ready(self._kv)
            found.append((time.perf_counter() - start) / launches)
            launches = int(SAMPLE_S / found[-1]) + 1
        return statistics.median(found[2:]) / self._kv.num_layers * 1e6

    def lowered(self, rows: ChainRows, m: int) -> jax.stages.Lowered:
        """The program of such a step.

        Raises:
            Unsupported: see `microseconds`.
        """

        # Of its own: what jit has traced of another function it would find again.
        def step(
            model: Decoder,
            kv: KVCache,
            tokens: Int32[Array, " B"],
            lengths: Int32[Array, " B"],
            page_table: Int32[Array, "B W"],
        ) -> tuple[Float[Array, "B E"], KVCache]:
            batch = decode_batch(tokens, lengths, page_table, page_size=kv.page_size)
            hidden, kv, _ = model(kv, batch)
            return hidden, kv

        call = jax.jit(step, donate_argnums=1)
        with table.PART.using(rows), recording() as lines:
            found = call.lower(self._model, self._kv, *self._operands(m))
        (line,) = (line for line in lines if line.startswith(_CALL))
        if not line.startswith(f"{_CALL}cuda"):
            raise Unsupported(line)
        return found

    def _operands(self, m: int) -> tuple[Array, Array, Array]:
        lengths = jnp.full(m, CONTEXT - 1, jnp.int32)
        return jnp.ones(m, jnp.int32), lengths, self._table[:m]
