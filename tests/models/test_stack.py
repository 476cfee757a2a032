"""All layers as one operation: the model tells it everything that layers know."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax import UnifiedMax
from fdjax.generate.steps import decode_counted
from fdjax.kernels.paged import KVCache
from fdjax.models import Decoder, load, stack
from fdjax.notation import Array
from tests.support.engines import FIXTURES, layout_of
from tests.support.numerics import assert_close


def decoded(model: Decoder) -> tuple[Array, KVCache, Array]:
    """One step of two rows over pages that hold noise."""
    layout = layout_of(model, num_pages=4, page_size=8)
    kv = KVCache.page_major(jax.random.normal(jax.random.key(0), layout.shape))
    tokens, lengths = jnp.array([5, 9], jnp.int32), jnp.array([7, 12], jnp.int32)
    table = jnp.array([[2, 0], [1, 3]], jnp.int32)
    step = functools.partial(decode_counted)  # a new function, to be traced anew
    return jax.jit(step)(model, kv, tokens, lengths, table)


@pytest.mark.parametrize("name", ["llama", "qwen2", "mistral_window"])
def test_one_call_is_layer_by_layer(name: str, monkeypatch: pytest.MonkeyPatch):
    config = load(FIXTURES / name, dtype=jnp.float32).config
    # So that some heads leave the bounds, and some do not.
    config = dataclasses.replace(config, unified=UnifiedMax(0.0, -60.0, 1.0))
    model = load(FIXTURES / name, dtype=jnp.float32, config=config)
    expected = decoded(model)
    called: list[stack.StackSpec] = []
    real = stack.decoder_stack

    def recorded(*operands: Any, spec: stack.StackSpec) -> Any:
        called.append(spec)
        return real(*operands, spec=spec)

    monkeypatch.setattr(stack, "decoder_stack", recorded)
    monkeypatch.setattr(stack, "REFERENCE", "no implementation's name")
    logits, kv, counts = decoded(model)
    assert [spec.unified for spec in called] == [config.unified]
    assert_close(logits, expected[0], reduction=config.hidden_size)
    assert_close(kv.array, expected[1].array, reduction=config.hidden_size)
    np.testing.assert_array_equal(counts, expected[2])
    assert 0 < int(counts.sum()) < counts.size * config.attention.num_heads
