"""All layers as one operation: the model tells it everything that layers know."""

import functools
import re
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax import UnifiedMax
from fdjax.config import Alibi, Attention, LayerNorm, LayerSpec, Mlp, RmsNorm
from fdjax.generate.steps import decode_counted
from fdjax.kernels.paged import KVCache
from fdjax.models import Decoder, ModelConfig, load, stack
from fdjax.models.checkpoint import read_config
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
    config = replace(config, unified=UnifiedMax(0.0, -60.0, 1.0))
    model = load(FIXTURES / name, dtype=jnp.float32, config=config)
    expected = decoded(model)
    called: list[stack.StackSpec] = []
    real = stack.decoder_stack

    def recorded(*operands: Any, spec: stack.StackSpec) -> Any:
        called.append(spec)
        return real(*operands, spec=spec)

    monkeypatch.setattr(stack, "decoder_stack", recorded)
    monkeypatch.setattr(stack.OP, "fast", lambda _: True)
    logits, kv, counts = decoded(model)
    assert [spec.unified for spec in called] == [config.unified]
    assert_close(logits, expected[0], reduction=config.hidden_size)
    assert_close(kv.array, expected[1].array, reduction=config.hidden_size)
    np.testing.assert_array_equal(counts, expected[2])
    assert 0 < int(counts.sum()) < counts.size * config.num_heads


def layer(**attention: Any) -> LayerSpec:
    (spec,) = ModelConfig.from_hf(read_config(FIXTURES / "llama")).kinds
    return replace(spec, attention=replace(spec.attention, **attention))


@dataclass(frozen=True)
class Sinking(Attention):
    """Attention with a field that the operation has never heard of."""

    sinks: int | None = None


def test_a_field_that_nobody_consumes_is_refused_by_name():
    known = vars(layer().attention)
    sinking = replace(layer(), attention=Sinking(**known, sinks=4))
    reason = stack.unlike_the_stack([layer(), sinking])
    assert reason == "it does not take layers with attention.sinks = 4"
    absent = replace(layer(), attention=Sinking(**known))
    assert stack.unlike_the_stack([absent, absent]) is None


NORM = RmsNorm(1e-5)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        (layer(qk_norm=NORM), "attention.qk_norm = RmsNorm"),
        (layer(out_bias=True), "attention.out_bias = True"),
        (layer(positions=None), "attention.positions = None"),
        (layer(positions=Alibi()), r"attention.positions = Alibi\(\)"),
        (replace(layer(), mlp=Mlp(8, "relu")), r"mlp = Mlp\("),
        (replace(layer(), mlp=replace(layer().mlp, bias=True)), "mlp.bias = True"),
        (replace(layer(), attention_norm=LayerNorm(1e-5)), "attention_norm = LayerN"),
        (replace(layer(), mlp_norm=None), "mlp_norm = None"),
        (replace(layer(), attention_post_norm=NORM), "attention_post_norm = RmsNorm"),
        (replace(layer(), mlp_post_norm=NORM), "mlp_post_norm = RmsNorm"),
        (replace(layer(), mlp_norm=RmsNorm(0.5)), "norms of a layer differ"),
    ],
)
def test_layers_of_another_kind_are_refused(changed: LayerSpec, field: str):
    for layers in ([changed, changed], [layer(), changed]):
        reason = stack.unlike_the_stack(layers)
        assert reason is not None
        assert re.search(field, reason)


def test_layers_may_differ_in_their_windows_alone():
    assert stack.unlike_the_stack([layer(), layer(window=3)]) is None
    reason = stack.unlike_the_stack([layer(), layer(window=3), layer(soft_cap=9.0)])
    assert reason == "layer 2 differs from the first in more than its window"
