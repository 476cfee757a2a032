"""What computes the linear maps of a program, in a call of given rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from fdjax.cli.kernels import NUM_ROWS, NUM_TOKENS
from fdjax.engine.step_calls import StepCalls
from fdjax.kernels.cases import struct
from fdjax.kernels.gated_matmul import OP as GATED_MATMUL
from fdjax.kernels.matmul import OP as MATMUL
from fdjax.kernels.matmul import Matmul
from fdjax.kernels.matmul.params import kernel_name
from fdjax.models.program import OP as LAYER_PROGRAM
from fdjax.models.program import LayerProgram, cuda
from fdjax.models.program import instructions as do
from fdjax.models.weights import held_shapes
from fdjax.serve.setup import Settings


@dataclass(frozen=True)
class LinearKernels:
    """Of one call, which is described and not run.

    Attributes:
        program: what serves the operation `layer_program`, and why not another.
        names: for the weight of each linear map, the implementation of `matmul` or
            `gated_matmul` that computes it, in one call of `layer_program` or by
            itself.
    """

    program: str
    names: dict[str, str]


def linear_kernels(settings: Settings, *, prompts: bool) -> LinearKernels:
    """What computes the linear maps of a model.

    Args:
        settings: the model and its type.
        prompts: of a call with `NUM_TOKENS` tokens of `NUM_ROWS` rows; else as many
            rows decode.
    """
    call = _call(settings, prompts=prompts)
    weights = held_shapes(settings.config, settings.dtype)
    *body, head = call.program.instructions
    assert isinstance(head, do.Head)
    linear = [one for one in body if isinstance(one, do.Linear)]
    if LAYER_PROGRAM.fast(call):
        configs = zip(linear, cuda.gemm_configs(call), strict=True)
        names = {one.weight: kernel_name(config) for one, config in configs}
    else:
        names = {one.weight: _by_itself(one, call, weights) for one in linear}
    names[head.weight] = _by_itself(head, call, weights)
    _, _, program = LAYER_PROGRAM.explain(call).partition(": ")
    return LinearKernels(program, names)


def _call(settings: Settings, *, prompts: bool) -> LayerProgram:
    width = -(-settings.max_model_len // settings.page_size)
    layout = settings.config.kv_layout(
        num_pages=NUM_ROWS * width, page_size=settings.page_size, dtype=settings.dtype
    )
    calls = StepCalls(settings.config, layout, NUM_ROWS)
    if prompts:
        return calls.of("extend", NUM_TOKENS, width)
    return calls.of("decode", NUM_ROWS, width)


def _by_itself(
    one: do.Linear | do.Head, call: LayerProgram, weights: Mapping[str, Any]
) -> str:
    """The implementation of a linear map that is a call of its own."""
    is_head = isinstance(one, do.Head)
    gate = None if is_head else one.gate
    adds = not is_head and isinstance(one.epilogue, do.Add)
    num_rows = NUM_ROWS if one.reads[0].rows == "wanted" else call.num_tokens
    weight = weights[one.weight]
    n, k = weight.shape
    matmul = Matmul(
        struct(num_rows, k, dtype=call.dtype),
        weight,
        None if one.bias is None else struct(n, dtype=call.dtype),
        struct(num_rows, n, dtype=call.dtype) if adds else None,
        activation=gate,
        out_dtype=jnp.float32 if is_head else call.dtype,
    )
    return (MATMUL if gate is None else GATED_MATMUL).choice(matmul)
