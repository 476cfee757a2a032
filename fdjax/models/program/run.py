"""The definition of a program: its instructions one by one, by the operations."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from fdjax.kernels.activations import activation
from fdjax.kernels.add_norm import Normalised, add_norm
from fdjax.kernels.embedding import embedding
from fdjax.kernels.matmul import matmul
from fdjax.kernels.paged import KVCache, ScoreSpec
from fdjax.kernels.rope_kv_write import rope_kv_write
from fdjax.kernels.weight import Weight
from fdjax.layers import Batch, attend, gated, logits, normalise_heads, select
from fdjax.models.program import instructions as do
from fdjax.models.program.arguments import LayerProgram, Ran
from fdjax.models.program.instructions import Instruction, Program, Value
from fdjax.notation import Array, Float, Int32

type Parameters = Mapping[str, Array | Weight]
"""A decoder's parameters by path."""


def run_program(
    program: Program, parameters: Parameters, kv: KVCache, batch: Batch
) -> tuple[Float[Array, "U V"], KVCache, Int32[Array, "L B"]]:
    """Runs a step: decoding, chunks of prompts, or both in one batch.

    Args:
        program: what is done; one that selects needs `batch.wanted`.
        parameters: those that `program.parameters` names.
        kv: the KV array.
        batch: the tokens.

    Returns:
        Logits in float32 of every token, or of those that are wanted, the updated KV
        array, and how many query heads of each row every layer computed again.
    """
    step = _Step(parameters, kv, batch)
    for instruction in program.instructions:
        step.execute(instruction)
    assert step.logits is not None
    return step.logits, step.kv, jnp.stack(step.recomputed)


def run_body(call: LayerProgram) -> Ran:
    """What a program does before its head; see `LayerProgram`."""
    program = call.program
    parameters = dict(zip(program.body_parameters, call.parameters, strict=True))
    step = _Step(parameters, call.kv, call.batch)
    for instruction in program.instructions[:-1]:
        step.execute(instruction)
    return step.value(program.result), step.kv, jnp.stack(step.recomputed)


class _Step:
    """What a step has come to: values by their index, the KV array, counts, logits."""

    def __init__(self, parameters: Parameters, kv: KVCache, batch: Batch) -> None:
        self.kv = kv
        self.logits: Array | None = None
        self.recomputed: list[Array] = []
        self._parameters: Mapping[str, Any] = parameters
        self._batch = batch
        self._values: dict[int, Array] = {}

    def value(self, value: Value) -> Array:
        """What was written of it."""
        return self._values[value.index]

    def execute(self, instruction: Instruction) -> None:
        """Reads the values of an instruction, and keeps those it writes."""
        reads = tuple(self._values[value.index] for value in instruction.reads)
        match instruction:
            case do.Embed():
                written = (self._embed(instruction),)
            case do.Norm():
                written = self._norm(instruction, *reads)[: len(instruction.writes)]
            case do.HeadNorm():
                written = (self._head_norm(instruction, *reads),)
            case do.Linear():
                written = (self._linear(instruction, *reads),)
            case do.Attention():
                written = (self._attention(instruction, *reads),)
            case do.Sum():
                written = (reads[0] + reads[1],)
            case do.Select():
                assert self._batch.wanted is not None
                written = (select(reads[0], self._batch.wanted),)
            case do.Head():
                self.logits, written = self._head(instruction, *reads), ()
            case _:
                raise AssertionError(instruction)
        for value, array in zip(instruction.writes, written, strict=True):
            self._values[value.index] = array

    def _embed(self, one: do.Embed) -> Array:
        table = self._parameters[one.weight]
        if one.position_table is None:
            return embedding(table, self._batch.tokens, scale=one.factor)
        places = self._batch.positions + one.position_offset
        vectors = self._parameters[one.position_table]
        return embedding(table, self._batch.tokens, vectors, places, scale=one.factor)

    def _norm(self, one: do.Norm, x: Array, delta: Array | None = None) -> Normalised:
        return add_norm(
            x,
            delta,
            self._parameters[one.scale],
            self._optional(one.bias),
            epsilon=one.epsilon,
            scale_offset=one.scale_offset,
            delta_scale=self._optional(one.delta_scale),
        )

    def _head_norm(self, one: do.HeadNorm, qkv: Array) -> Array:
        def norm(heads: Array, scale: str, bias: str | None) -> Array:
            return add_norm(
                heads,
                None,
                self._parameters[scale],
                self._optional(bias),
                epsilon=one.epsilon,
                scale_offset=one.scale_offset,
            ).normal

        heads = qkv.reshape(qkv.shape[0], one.num_heads + 2 * one.num_kv_heads, -1)
        normal = normalise_heads(
            heads,
            lambda q: norm(q, one.scale, one.bias),
            lambda k: norm(k, one.key_scale, one.key_bias),
            one.num_heads,
            one.num_kv_heads,
        )
        return normal.reshape(qkv.shape)

    def _linear(self, one: do.Linear, x: Array, residual: Array | None = None) -> Array:
        weight, bias = self._parameters[one.weight], self._optional(one.bias)
        match one.epilogue:
            case None | do.Add():
                return matmul(x, weight, bias, residual)
            case do.Activate(name):
                return activation(name)(matmul(x, weight, bias))
            case do.Gate(name):
                return gated(x, weight, bias, name)

    def _attention(self, one: do.Attention, qkv: Array) -> Array:
        batch, tokens = self._batch, qkv.shape[0]
        q, self.kv = rope_kv_write(
            qkv.reshape(tokens, -1, one.head_dim),
            self.kv.layer(one.layer),
            batch.positions,
            batch.slots,
            jnp.asarray(one.frequencies, jnp.float32),
            interleaved=one.interleaved,
        )
        slopes = jnp.asarray(one.slopes, jnp.float32) if one.slopes else None
        scores = ScoreSpec(slopes, one.scale, one.soft_cap, one.window)
        layer = self.kv.layer(one.layer)
        mixed, recomputed = attend(q, layer, batch, scores, one.unified)
        self.recomputed.append(recomputed)
        return mixed.reshape(tokens, -1)

    def _head(self, one: do.Head, normal: Array) -> Array:
        return logits(
            normal,
            self._parameters[one.weight],
            self._optional(one.bias),
            soft_cap=one.soft_cap,
        )

    def _optional(self, path: str | None) -> Any:
        return None if path is None else self._parameters[path]
