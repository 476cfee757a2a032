"""A step on a GPU is one CUDA graph, with every call of ours inside."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fdjax.generate import steps
from fdjax.models.config import ModelConfig
from fdjax.models.decoder import Decoder
from fdjax.models.program import OP

MODEL = pathlib.Path(__file__).parents[2] / "configs" / "models" / "llama3-8b.json"
TOKENS, ROWS, TABLE = (
    jax.ShapeDtypeStruct(s, jnp.int32) for s in [(64,), (8,), (8, 8)]
)
STEPS = {
    "decode": (steps.decode, (ROWS, ROWS, TABLE)),
    "extend": (steps.extend, (TOKENS, ROWS, TABLE, ROWS)),
}
# The embedding and the chain, or for each layer: two norms, RoPE and KV write,
# attention, and GEMMs of ours.
WAYS = {
    "one_chain": ("decode", "cuda", 2),
    "one_chain_of_prompts": ("extend", "cuda", 2),
    "operation_by_operation": ("decode", "reference", 1 + 3 * 4),
}


def _thunks(
    step: Callable[..., Any],
    operands: tuple[jax.ShapeDtypeStruct, ...],
    dump: pathlib.Path,
) -> list[str]:
    """What XLA runs for a step of three layers, a line each."""
    fields = json.loads(MODEL.read_text()) | {"num_hidden_layers": 3}
    config = ModelConfig.from_hf(fields)
    layout = config.kv_layout(num_pages=64, page_size=16, dtype=jnp.bfloat16)
    kv = jax.eval_shape(layout.allocate)
    jitted = jax.jit(step, donate_argnums=1)
    lowered = jitted.lower(Decoder(config, jnp.bfloat16), kv, *operands)
    options = {"xla_dump_to": str(dump), "xla_dump_hlo_as_text": True}
    lowered.compile(compiler_options=options)
    (text,) = dump.glob(f"*jit_{step.__name__}.thunk_sequence_after_thunk_passes.txt")
    return text.read_text().splitlines()


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
def test_a_step_is_one_command_buffer(way: str, tmp_path: pathlib.Path):
    name, implementation, calls = WAYS[way]
    with OP.using(implementation):
        buffer, *inside = filter(None, _thunks(*STEPS[name], tmp_path))
    assert "kCommandBuffer [source | sink]" in buffer
    assert all(line.startswith("    ") for line in inside)
    assert sum("kCustomCall" in line for line in inside) >= calls
