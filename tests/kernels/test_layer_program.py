"""A step of every family as one call: the launches, and what they do on a GPU."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.kernels.decode_attention import UnifiedMax
from fdjax.kernels.layer_program import call as layer_program
from fdjax.models.families import FAMILIES
from fdjax.models.program import OP, LayerProgram, cuda, lower
from fdjax.models.program.run import run_layers
from tests.support.handlers import skip_without
from tests.support.launches import Simulation
from tests.support.numerics import assert_close
from tests.support.programs import INTERMEDIATE, call_of, config_of

KINDS = {"decode": 5, "prefill": 0, "mixed": 6, "chunks": 2}
each_family = pytest.mark.parametrize("name", FAMILIES)


def assert_agree(actual: Any, expected: Any) -> None:
    """Hidden states that are wanted, and all keys and values."""
    assert_close(actual[0], expected[0], reduction=INTERMEDIATE)
    assert_close(actual[1].array, expected[1].array, reduction=INTERMEDIATE)
    assert actual[2].shape == expected[2].shape


@each_family
@pytest.mark.parametrize("kind", KINDS)
def test_launches_do_what_the_instructions_say(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
):
    """Regions hold NaN at first, and the library's gate and up columns are none."""

    def simulated(*operands: Any, **options: Any) -> Any:
        return Simulation(*operands, **options).run()

    monkeypatch.setattr(layer_program, "run", simulated)
    monkeypatch.setattr(lower, "SLICE_ROWS", 64)
    call = call_of(config_of(name), kind, KINDS[kind])
    hidden, kv, recomputed = cuda.run(call)
    expected = run_layers(call)
    assert_agree((hidden, kv, recomputed), expected)


CASES = [
    *((name, *each, "bfloat16") for name in FAMILIES for each in KINDS.items()),
    *(("llama", "decode", rows, "bfloat16") for rows in (1, 65, 130)),
    *(("llama", "mixed", rows, "bfloat16") for rows in (1, 65, 130)),
    *(("llama", *each, "float16") for each in KINDS.items()),
    *(("opt", "decode", 1, "float16"), ("gptj", "decode", 65, "float16")),
    *(("qwen3", "decode", 130, "float16"), ("bloom", "mixed", 9, "float16")),
    *(("mistral_window", "mixed", 9, "bfloat16"),),
    *(("qwen2_window", "decode", 9, "bfloat16"),),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "kind", "rows", "dtype"), CASES)
def test_the_chain_agrees_with_the_definition(
    name: str, kind: str, rows: int, dtype: str
):
    skip_without("layer_program", "gpu")
    call = call_of(config_of(name), kind, rows, dtype=dtype)

    @jax.jit
    def chain(call: LayerProgram) -> Any:
        with OP.using("cuda"):
            return OP(call)

    wide = jax.tree.map(_widened, call)
    actual = chain(call)
    with jax.default_device(jax.devices("cpu")[0]):
        expected = run_layers(jax.device_put(wide, jax.devices("cpu")[0]))
    assert_agree(actual, jax.tree.map(np.asarray, expected))
    again = chain(call)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.gpu
def test_heads_outside_the_bounds_are_counted():
    skip_without("layer_program", "gpu")
    for kind in ("decode", "mixed"):
        bounds = UnifiedMax(0.0, -60.0, 0.01)
        call = call_of(config_of("llama", unified=bounds), kind, 6, dtype="bfloat16")
        with OP.using("cuda"):
            _, _, recomputed = jax.jit(OP)(call)
        assert 0 < int(recomputed.sum()) < recomputed.size * 8


def _widened(leaf: Any) -> Any:
    floats = jnp.issubdtype(leaf.dtype, jnp.floating)
    return leaf.astype(jnp.float32) if floats else leaf


def test_what_it_cannot_serve_is_named():
    call = call_of(config_of("llama"), "decode", 2)
    assert cuda.refuse_arguments(call) == (
        "q is float32; it takes bfloat16 and float16"
    )
    odd = replace(call, x=call.x[:, :-3])
    assert "multiples of 16 up to" in str(cuda.refuse_arguments(odd))
