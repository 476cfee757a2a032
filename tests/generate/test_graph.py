"""A decode step on a GPU is one CUDA graph, with every call of ours inside."""

import contextlib
import json
import pathlib

import jax
import jax.numpy as jnp
import pytest

from fdjax.generate import steps
from fdjax.kernels.decoder_stack import OP
from fdjax.models.config import ModelConfig
from fdjax.models.decoder import Decoder

MODEL = pathlib.Path(__file__).parents[2] / "configs" / "models" / "llama3-8b.json"
# The embedding and the chain, or for each layer: two norms, RoPE and KV write,
# attention, and GEMMs of ours.
CALLS = {"one_chain": 2, "operation_by_operation": 1 + 3 * 4}


def _thunks(dump: pathlib.Path) -> list[str]:
    """What XLA runs for a decode step of three layers and 8 rows, a line each."""
    fields = json.loads(MODEL.read_text()) | {"num_hidden_layers": 3}
    config = ModelConfig.from_hf(fields)
    layout = config.kv_layout(num_pages=64, page_size=16, dtype=jnp.bfloat16)
    kv = jax.eval_shape(layout.allocate)
    rows, table = (jax.ShapeDtypeStruct(s, jnp.int32) for s in [(8,), (8, 8)])
    step = jax.jit(steps.decode, donate_argnums=1)
    lowered = step.lower(Decoder(config, jnp.bfloat16), kv, rows, rows, table)
    options = {"xla_dump_to": str(dump), "xla_dump_hlo_as_text": True}
    lowered.compile(compiler_options=options)
    (text,) = dump.glob("*jit_decode.thunk_sequence_after_thunk_passes.txt")
    return text.read_text().splitlines()


@pytest.mark.gpu
@pytest.mark.parametrize("way", CALLS)
def test_a_step_is_one_command_buffer(way: str, tmp_path: pathlib.Path):
    chained = way == "one_chain"
    with contextlib.nullcontext() if chained else OP.using("reference"):
        buffer, *inside = filter(None, _thunks(tmp_path))
    assert "kCommandBuffer [source | sink]" in buffer
    assert all(line.startswith("    ") for line in inside)
    assert sum("kCustomCall" in line for line in inside) >= CALLS[way]
