import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.config import Attention, Embedding, GatedMlp, LayerSpec, RmsNorm, Rope
from fdjax.models import ModelConfig, parameter_shapes, random_weights
from tests.support.parameters import arrays_of

NORM = RmsNorm(1e-5)
LAYER = LayerSpec(
    attention=Attention(8, 4, 8, scale=1.0, positions=Rope(1e4, 8)),
    mlp=GatedMlp(48, "silu"),
    attention_norm=NORM,
    mlp_norm=NORM,
)
CONFIG = ModelConfig(
    family="llama",
    hidden_size=8,
    layers=(LAYER, LAYER),
    max_position=32,
    embedding=Embedding(vocab_size=200, tied=False),
    final_norm=NORM,
)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_random_weights(dtype: Any) -> None:
    config = dataclasses.replace(CONFIG, hidden_size=512)
    arrays = arrays_of(random_weights(config, dtype=dtype, seed=3))
    shapes = parameter_shapes(config, dtype=dtype)
    assert {p: (a.shape, a.dtype) for p, a in arrays.items()} == {
        p: (s.shape, s.dtype) for p, s in shapes.items()
    }
    assert bool((arrays["final_norm.scale"] == 1).all())
    for path in ("embed.weight", "layers.1.attention.qkv.weight"):
        values = np.asarray(arrays[path], np.float32)
        assert abs(values.mean()) < 1e-3
        assert abs(values.std() - 0.02) < 1e-3
    first, second = (arrays[f"layers.{i}.mlp.down.weight"] for i in (0, 1))
    assert not np.array_equal(first, second)


def test_random_weights_depend_on_the_seed_and_the_path_only() -> None:
    fewer = dataclasses.replace(CONFIG, layers=(LAYER,))
    first, again, other, short = (
        arrays_of(random_weights(c, dtype=jnp.float32, seed=seed))
        for c, seed in ((CONFIG, 0), (CONFIG, 0), (CONFIG, 1), (fewer, 0))
    )
    for path, array in short.items():
        np.testing.assert_array_equal(first[path], array)
        np.testing.assert_array_equal(first[path], again[path])
    assert not np.array_equal(first["embed.weight"], other["embed.weight"])


def test_random_norms_scale_by_one_with_an_offset() -> None:
    # Gemma stores `scale - 1`.
    layer = dataclasses.replace(LAYER, mlp_norm=RmsNorm(1e-5, scale_offset=1.0))
    config = dataclasses.replace(CONFIG, layers=(LAYER, layer))
    arrays = arrays_of(random_weights(config, dtype=jnp.float32, seed=0))
    assert bool((arrays["layers.0.mlp_norm.scale"] == 1).all())
    assert bool((arrays["layers.1.mlp_norm.scale"] == 0).all())


def test_programs_are_shared_by_parameters_of_one_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traced: list[tuple[int, ...]] = []
    normal = jax.random.normal

    def counting(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        traced.append(shape)
        return normal(key, shape, dtype)

    monkeypatch.setattr(jax.random, "normal", counting)
    config = dataclasses.replace(CONFIG, hidden_size=24)  # shapes of this test alone
    random_weights(config, dtype=jnp.float32, seed=0)
    shapes = parameter_shapes(config, dtype=jnp.float32).items()
    assert sorted(traced) == sorted({s.shape for p, s in shapes if "norm" not in p})
    with jax.no_tracing(True):
        random_weights(config, dtype=jnp.float32, seed=1)
