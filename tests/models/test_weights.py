import json
import pathlib
import tracemalloc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.errors import CheckpointError, ConfigError
from fdjax.kernels.weight import Dense
from fdjax.models import (
    SHIPPED,
    ModelConfig,
    load,
    parameter_bytes,
    parameter_shapes,
    random_weights,
    resolve,
    weights,
)
from fdjax.models.checkpoint import open_checkpoint, read_config
from tests.support.parameters import arrays_of
from tests.support.safetensors_writer import write_file, write_shards

HF_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 8,
    "intermediate_size": 12,
    "max_position_embeddings": 32,
    "model_type": "llama",
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "vocab_size": 20,
}


def _llama(config: dict[str, Any], dtype: Any = np.float32) -> dict[str, np.ndarray]:
    """The tensors of a Llama, under their published names."""
    size, ffn = config["hidden_size"], config["intermediate_size"]
    kv = size // config["num_attention_heads"] * config["num_key_value_heads"]
    rng = np.random.default_rng(0)
    shapes = {"embed_tokens": (config["vocab_size"], size), "norm": (size,)}
    for i in range(config["num_hidden_layers"]):
        layer = {
            "input_layernorm": (size,),
            "post_attention_layernorm": (size,),
            "self_attn.q_proj": (size, size),
            "self_attn.k_proj": (kv, size),
            "self_attn.v_proj": (kv, size),
            "self_attn.o_proj": (size, size),
            "mlp.gate_proj": (ffn, size),
            "mlp.up_proj": (ffn, size),
            "mlp.down_proj": (size, ffn),
        }
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    shapes = {f"model.{name}.weight": shape for name, shape in shapes.items()}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = shapes["model.embed_tokens.weight"]
    return {
        n: rng.normal(size=s).astype(np.float32).astype(dtype)
        for n, s in shapes.items()
    }


def _write(
    folder: pathlib.Path, tensors: dict[str, np.ndarray], **changes: Any
) -> dict[str, np.ndarray]:
    (folder / "config.json").write_text(json.dumps({**HF_CONFIG, **changes}))
    write_file(folder / "model.safetensors", tensors)
    return tensors


def _layer(tensors: dict[str, np.ndarray], i: int, *names: str) -> np.ndarray:
    return np.concatenate([tensors[f"model.layers.{i}.{n}.weight"] for n in names])


def test_every_parameter_gets_its_tensors(tmp_path: pathlib.Path) -> None:
    tensors = _write(tmp_path, _llama(HF_CONFIG))
    arrays = arrays_of(load(tmp_path, dtype=jnp.float32))
    expected = {
        "embed.weight": tensors["model.embed_tokens.weight"],
        "final_norm.scale": tensors["model.norm.weight"],
        "head.weight": tensors["lm_head.weight"],
    }
    for i in range(2):
        expected |= {
            f"layers.{i}.{path}": _layer(tensors, i, *names)
            for path, names in {
                "attention_norm.scale": ("input_layernorm",),
                "attention.qkv.weight": tuple(f"self_attn.{x}_proj" for x in "qkv"),
                "attention.out.weight": ("self_attn.o_proj",),
                "mlp_norm.scale": ("post_attention_layernorm",),
                "mlp.up.weight": ("mlp.gate_proj", "mlp.up_proj"),
                "mlp.down.weight": ("mlp.down_proj",),
            }.items()
        }
    assert arrays.keys() == expected.keys()
    for path, array in arrays.items():
        assert isinstance(array, jax.Array)
        np.testing.assert_array_equal(array, expected[path], err_msg=path)


def test_linear_maps_and_tables_hold_weights(tmp_path: pathlib.Path) -> None:
    _write(tmp_path, _llama(HF_CONFIG))
    for made in (
        load(tmp_path, dtype=jnp.bfloat16),
        random_weights(ModelConfig.from_hf(HF_CONFIG), dtype=jnp.bfloat16, seed=0),
    ):
        qkv = made.layers[0].attention.qkv.weight
        for held in (made.embed.weight, made.head.weight, qkv):
            assert held is not None
            weight = held.get_value()
            assert isinstance(weight, Dense)
            assert weight.shape == weight.values.shape
            assert weight.dtype == jnp.bfloat16


_DTYPES = (jnp.float16, jnp.bfloat16, jnp.float32)


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("stored", _DTYPES)
def test_weights_are_cast(tmp_path: pathlib.Path, stored: Any, dtype: Any) -> None:
    tensors = _write(tmp_path, _llama(HF_CONFIG, stored))
    embed = load(tmp_path, dtype=dtype).embed.weight.get_value().values
    assert embed.dtype == dtype
    expected = tensors["model.embed_tokens.weight"].astype(dtype)
    np.testing.assert_array_equal(np.asarray(embed), expected, strict=True)


def test_shards_of_mixed_dtypes(tmp_path: pathlib.Path) -> None:
    tensors = _llama(HF_CONFIG)
    names = list(tensors)
    for i, name in enumerate(names):
        tensors[name] = tensors[name].astype(_DTYPES[i % 3])
    _write(tmp_path, {})
    (tmp_path / "model.safetensors").unlink()
    shards = {
        f"model-0000{i + 1}-of-00002.safetensors": {n: tensors[n] for n in names[i::2]}
        for i in range(2)
    }
    write_shards(tmp_path, shards)
    model = load(tmp_path, dtype=jnp.float32)
    single = tmp_path / "single"
    single.mkdir()
    _write(single, {name: array.astype(np.float32) for name, array in tensors.items()})
    expected = arrays_of(load(single, dtype=jnp.float32))
    for path, array in arrays_of(model).items():
        np.testing.assert_array_equal(array, expected[path], err_msg=path)


def test_a_tied_head_is_no_parameter(tmp_path: pathlib.Path) -> None:
    tied = {**HF_CONFIG, "tie_word_embeddings": True}
    tensors = _write(tmp_path, _llama(tied), tie_word_embeddings=True)
    model = load(tmp_path, dtype=jnp.float32)
    assert "head.weight" not in arrays_of(model)
    # Some checkpoints store the copy, which is fine as long as it is one.
    copy = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}
    _write(tmp_path, copy, tie_word_embeddings=True)
    assert "head.weight" not in arrays_of(load(tmp_path, dtype=jnp.float32))
    copy["lm_head.weight"] = copy["lm_head.weight"] + 1
    _write(tmp_path, copy, tie_word_embeddings=True)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight' differs"):
        load(tmp_path, dtype=jnp.float32)


def test_a_loaded_model_passes_through_jit(tmp_path: pathlib.Path) -> None:
    tensors = _write(tmp_path, _llama(HF_CONFIG))
    model = load(tmp_path, dtype=jnp.float32)
    total = jax.jit(lambda m: m.embed.weight.get_value().values.sum())(model)
    np.testing.assert_allclose(total, tensors["model.embed_tokens.weight"].sum(), 1e-4)


def test_nothing_is_put_on_the_device_before_all_is_checked(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = _llama(HF_CONFIG)
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1]
    tensors["model.norm.weight"] = np.zeros(8, np.int32)
    del tensors["model.layers.1.mlp.down_proj.weight"]
    _write(tmp_path, {**tensors, "extra": np.zeros(3, np.float32)})
    monkeypatch.setattr(jax, "device_put", lambda *_: pytest.fail("on the device"))
    with pytest.raises(CheckpointError) as error:
        load(tmp_path, dtype=jnp.float32)
    assert sorted(problem[:40] for problem in error.value.problems) == [
        "tensor 'extra' (F32 [3] in model.safeten",
        "tensor 'lm_head.weight' has the shape [1",
        "tensor 'model.layers.1.mlp.down_proj.wei",
        "tensor 'model.norm.weight' is stored as ",
    ]


def test_progress_counts_the_bytes_on_the_device(tmp_path: pathlib.Path) -> None:
    _write(tmp_path, _llama(HF_CONFIG))
    calls: list[tuple[int, int, str]] = []
    model = load(
        tmp_path, dtype=jnp.bfloat16, on_progress=lambda *call: calls.append(call)
    )
    arrays = arrays_of(model)
    total = sum(array.nbytes for array in arrays.values())
    assert {name for _, _, name in calls} == arrays.keys()
    assert len(calls) == len(arrays)
    assert {all_bytes for _, all_bytes, _ in calls} == {total}
    assert calls[-1][0] == total
    sizes = np.diff([0, *(done for done, _, _ in calls)])
    assert sizes.tolist() == [arrays[name].nbytes for _, _, name in calls]


BIG = HF_CONFIG | {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "vocab_size": 4096,
    "num_hidden_layers": 3,
}


@pytest.mark.parametrize("stored", [jnp.bfloat16, np.float32])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_host_memory_stays_under_twice_the_largest_parameter(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, stored: Any, dtype: Any
) -> None:
    _write(tmp_path, _llama(BIG, stored), **BIG)
    config = ModelConfig.from_hf(read_config(tmp_path))
    shapes = parameter_shapes(config, dtype=dtype)
    largest = max(parameter_bytes({p: s}) for p, s in shapes.items())
    assert parameter_bytes(shapes) > 7 * largest  # else the bound means nothing
    # On an accelerator the arrays lie elsewhere; what is left is what the host holds.
    nothing = jnp.zeros(())
    shapes_read: list[tuple[int, ...]] = []

    def to_device(buffer: np.ndarray) -> jax.Array:
        shapes_read.append(buffer.shape)
        return nothing

    monkeypatch.setattr(weights, "to_device", to_device)
    assemblies = weights._match(tmp_path, config, shapes)
    tracemalloc.start()
    try:
        weights.load_parameters(assemblies)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert largest <= peak < 2 * largest
    assert shapes_read == [shape.shape for shape in shapes.values()]


def test_arrays_do_not_share_memory(tmp_path: pathlib.Path) -> None:
    # A reused buffer would give parameters of one shape the values of the last one.
    _write(tmp_path, _llama(BIG), **BIG)
    arrays = arrays_of(load(tmp_path, dtype=jnp.float32))
    addresses = {array.unsafe_buffer_pointer() for array in arrays.values()}
    assert len(addresses) == len(arrays)


def test_config_or_overrides(tmp_path: pathlib.Path) -> None:
    _write(tmp_path, _llama(HF_CONFIG))
    overridden = load(
        tmp_path, dtype=jnp.float32, hf_overrides={"max_position_embeddings": 7}
    )
    assert overridden.config.max_position == 7
    config = overridden.config
    (tmp_path / "config.json").unlink()
    assert load(tmp_path, dtype=jnp.float32, config=config).config == config
    with pytest.raises(ConfigError, match="not both"):
        load(tmp_path, dtype=jnp.float32, config=config, hf_overrides={"a": 1})
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load(tmp_path, dtype=jnp.float32)


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.float64, jnp.float8_e4m3fn])
def test_dtypes_that_weights_cannot_have(dtype: Any) -> None:
    config = ModelConfig.from_hf(HF_CONFIG)
    for use in (
        lambda: parameter_shapes(config, dtype=dtype),
        lambda: random_weights(config, dtype=dtype, seed=0),
        lambda: load(pathlib.Path(), dtype=dtype, config=config),
    ):
        with pytest.raises(ConfigError, match="bfloat16, float16 or float32"):
            use()


def test_shapes_and_bytes() -> None:
    shapes = parameter_shapes(ModelConfig.from_hf(HF_CONFIG), dtype=jnp.bfloat16)
    tensors = _llama(HF_CONFIG, jnp.bfloat16)
    assert parameter_bytes(shapes) == sum(tensor.nbytes for tensor in tensors.values())
    assert shapes["layers.1.mlp.up.weight"] == jax.ShapeDtypeStruct(
        (24, 8), jnp.bfloat16
    )


def test_the_shipped_model_loads() -> None:
    folder = resolve(SHIPPED)
    arrays = arrays_of(load(folder, dtype=jnp.bfloat16))
    stored = sum(t.num_bytes for t in open_checkpoint(folder).tensors.values())
    assert sum(array.nbytes for array in arrays.values()) == stored == 10_951_168
    assert all(bool(jnp.isfinite(array).all()) for array in arrays.values())
