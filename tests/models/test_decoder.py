"""A decoder is its layers, each as it declares itself."""

from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.config import Alibi, LayerNorm, LayerSpec, Mlp, RmsNorm
from fdjax.generate.steps import decode, prefill, score
from fdjax.kernels.decode_attention import UnifiedMax
from fdjax.models import ModelConfig, decoder, random_weights
from fdjax.models.checkpoint import read_config
from fdjax.models.decoder_layer import DecoderLayer
from fdjax.models.program import LayerProgram, Ran
from fdjax.notation import Array
from tests.support.engines import FIXTURES, layout_of
from tests.support.numerics import assert_close

CONFIG = ModelConfig.from_hf(read_config(FIXTURES / "llama"))
(LLAMA,) = CONFIG.kinds
TOKENS = jnp.array([[5, 9, 33, 77, 12, 8, 90, 41, 3]], jnp.int32)
TABLE = jnp.array([[1, 0]], jnp.int32)

# No two are alike: positions, windows, caps, norms, feed-forward parts, residuals.
MIXED = (
    LLAMA,
    replace(LLAMA, attention=replace(LLAMA.attention, positions=None, window=3)),
    replace(LLAMA, mlp=Mlp(40, "relu", bias=True), attention_norm=LayerNorm(1e-5)),
    replace(
        LLAMA,
        # Made-up weights have scores near zero: scaled, for the cap to matter.
        attention=replace(LLAMA.attention, positions=Alibi(), scale=99.0, soft_cap=0.5),
        mlp_norm=None,
        attention_post_norm=RmsNorm(1e-5),
        mlp_post_norm=LayerNorm(1e-5),
    ),
)


def scored(*layers: LayerSpec) -> Array:
    """Logits of every token by layers with weights that their paths make up."""
    config = replace(CONFIG, layers=layers)
    model = random_weights(config, dtype=jnp.float32, seed=0)
    kv = layout_of(model, num_pages=2, page_size=8).allocate()
    return score(model, kv, TOKENS, jnp.array([9], jnp.int32), TABLE)[0]


def test_layers_of_all_kinds_stand_in_one_model():
    model = random_weights(replace(CONFIG, layers=MIXED), dtype=jnp.float32, seed=0)
    kv = layout_of(model, num_pages=2, page_size=8).allocate()
    _, kv = prefill(model, kv, TOKENS[:, :8], jnp.array([8], jnp.int32), TABLE)
    last, _ = decode(model, kv, TOKENS[:, 8], jnp.array([8], jnp.int32), TABLE)
    assert_close(last, scored(*MIXED)[:, -1], reduction=CONFIG.hidden_size)


LAST = MIXED[-1]
UNLIKE_LAST = {
    "no norm of what attention adds": replace(LAST, attention_post_norm=None),
    "no norm of what the MLP adds": replace(LAST, mlp_post_norm=None),
    "sequential": replace(LAST, mlp_norm=LAST.attention_norm),
    "no cap": replace(LAST, attention=replace(LAST.attention, soft_cap=None)),
    "no positions": replace(LAST, attention=replace(LAST.attention, positions=None)),
    "a window": replace(LAST, attention=replace(LAST.attention, window=2)),
}


@pytest.mark.parametrize("layer", UNLIKE_LAST.values(), ids=UNLIKE_LAST)
def test_what_a_layer_declares_is_computed(layer: LayerSpec):
    assert np.abs(scored(LAST) - scored(layer)).max() > 1e-3


def test_a_step_is_one_call_where_that_is_faster(monkeypatch: pytest.MonkeyPatch):
    """All that layers know reaches the call, and what it counts comes back."""
    # So that some heads leave the bounds, and some do not.
    config = replace(CONFIG, unified=UnifiedMax(0.0, -60.0, 0.003))
    model = random_weights(config, dtype=jnp.float32, seed=0)

    def stepped() -> tuple[Array, Array, Array]:
        kv = layout_of(model, num_pages=2, page_size=8).allocate()
        _, kv = prefill(model, kv, TOKENS[:, :8], jnp.array([8], jnp.int32), TABLE)
        length = jnp.array([8], jnp.int32)
        logits, kv, counts = model.decode(kv, TOKENS[:, 8], length, TABLE)
        return logits, kv.array, counts

    expected = stepped()
    assert 0 < int(expected[2].sum()) < expected[2].size * LLAMA.attention.num_heads
    asked: list[str] = []

    def if_fast(call: LayerProgram) -> Callable[[LayerProgram], Ran]:
        asked.append(call.batch.phase)
        return decoder.LAYER_PROGRAM

    monkeypatch.setattr(decoder.LAYER_PROGRAM, "if_fast", if_fast)
    monkeypatch.delattr(DecoderLayer, "__call__")
    logits, keys, counts = stepped()
    assert asked == ["prefill", "decode"]
    assert_close(logits, expected[0], reduction=config.hidden_size)
    assert_close(keys, expected[1], reduction=config.hidden_size)
    np.testing.assert_array_equal(counts, expected[2])
