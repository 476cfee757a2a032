"""The calls of `layer_program` that an engine makes, by their shapes alone."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.engine.borrowing import BorrowingCall
from fdjax.engine.buckets import PREFILL_ROWS, prompts_of
from fdjax.kernels.beam_attention import BeamView
from fdjax.kernels.paged import KVCache, PageView, SharedPrefixes
from fdjax.kernels.reporting import recording
from fdjax.kernels.shared_prefix import prefix_shapes, room_for, room_for_prompts
from fdjax.layers import Batch, beam_batch, decode_batch, mixed_batch, packed_batch
from fdjax.memory.kv import KVLayout
from fdjax.models.config import ModelConfig
from fdjax.models.program import LayerProgram, Program, program_of
from fdjax.models.weights import held_shapes
from fdjax.notation import Array
from fdjax.pytree import of_shapes

type StepCall = BorrowingCall | Literal["shared", "separate"]
"""The calls by their kind.

"shared": rows that decode, and share prefixes; "separate": beams that each read their
prompt.
"""


@dataclass(frozen=True)
class StepCalls:
    """What an engine's programs call, with the shapes of arrays in their place.

    Attributes:
        config: the model.
        layout: of the KV array.
        num_rows: of the largest batch.
    """

    config: ModelConfig
    layout: KVLayout
    num_rows: int

    def of(self, kind: StepCall, num_tokens: int, width: int) -> LayerProgram:
        """The call of so many tokens, padding included.

        Args:
            kind: which program's; the tokens of rows that decode are the rows.
            num_tokens: `T`.
            width: pages that its page table has room for: of a beam its own; of one
                that reads its prompt, those of the prompt too.
        """
        # As `last_hidden` has it: where no fewer are wanted, all are.
        program = self._programs[kind == "extend" and num_tokens > self.num_rows]
        paths = program.body_parameters
        parameters = tuple(self._parameters[path] for path in paths)

        # Shapes alone: what serves is told, and warned of, where a program is traced.
        with recording():
            batch = jax.eval_shape(lambda: self._batch(kind, num_tokens, width))
        return of_shapes(
            LayerProgram,
            kv=self._kv,
            batch=batch,
            parameters=parameters,
            program=program,
        )

    @cached_property
    def _kv(self) -> KVCache:
        return jax.eval_shape(self.layout.allocate)

    @cached_property
    def _parameters(self) -> Mapping[str, Any]:
        return held_shapes(self.config, np.dtype(self.layout.dtype))

    @cached_property
    def _programs(self) -> tuple[Program, Program]:
        """Of all tokens' hidden states, and of those wanted."""
        return (
            program_of(self.config, selects=False),
            program_of(self.config, selects=True),
        )

    def _batch(self, kind: StepCall, num_tokens: int, width: int) -> Batch:
        def table(num_rows: int) -> Array:
            return jnp.zeros((num_rows, width), jnp.int32)

        page_size = self.layout.page_size
        ids = jnp.zeros(num_tokens, jnp.int32)
        if kind in ("decode", "shared"):
            shared = self._prefixes(num_tokens) if kind == "shared" else None
            rows = table(num_tokens)
            return decode_batch(ids, ids, rows, shared, page_size=page_size)
        if kind in ("beams", "separate"):
            beams = self._beams(num_tokens)
            if kind == "separate":  # the prompt's table has one page
                beams, width = replace(beams, prefixes=None), width - 1
            return beam_batch(ids, ids, table(num_tokens), beams, page_size=page_size)
        if kind != "extend":
            pooled = min(PREFILL_ROWS, self.num_rows)
            rows = jnp.zeros(1 if kind == "score" else pooled, jnp.int32)
            return packed_batch(ids, rows, table(len(rows)), rows, page_size=page_size)
        rows = jnp.zeros(self.num_rows, jnp.int32)
        view = PageView(table(self.num_rows), rows, starts=rows, firsts=rows)
        prompts = jnp.zeros(prompts_of(num_tokens, num_rows=self.num_rows), jnp.int32)
        batch = mixed_batch(ids, view, prompts, rows > 0, page_size=page_size)
        return replace(batch, wanted=rows) if num_tokens > self.num_rows else batch

    def _prefixes(self, num_rows: int) -> SharedPrefixes:
        heads = self.config.layers[0].attention
        group = heads.num_heads // heads.num_kv_heads
        return _zeros(
            prefix_shapes(num_rows, room_for(num_rows, heads.num_kv_heads, group))
        )

    def _beams(self, num_rows: int) -> BeamView:
        """Of groups of one beam each: no others have as many pieces."""
        heads = self.config.layers[0].attention
        group = heads.num_heads // heads.num_kv_heads
        room = room_for_prompts(
            num_rows, width=1, num_kv_heads=heads.num_kv_heads, group=group
        )
        ids, ones = jnp.zeros(num_rows, jnp.int32), jnp.zeros((num_rows, 1), jnp.int32)
        return BeamView(ones, ids, ones, _zeros(prefix_shapes(num_rows, room)))


def _zeros[T](shapes: T) -> T:
    return jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), shapes)
