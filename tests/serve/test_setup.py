"""Settings: what is decided before anything is allocated."""

import pathlib
import shutil

import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from fdjax import LLM, ConfigError, MemoryBudgetError, device
from fdjax.engine.limits import QueueLimits
from fdjax.engine.policy import StepPolicy
from fdjax.models import SHIPPED, resolve
from fdjax.serve.setup import Settings

LLAMA = pathlib.Path(__file__).parents[2] / "configs" / "models" / "llama3-8b.json"
H200 = AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")


def test_a_cpu_computes_in_float32():
    settings = Settings.of(SHIPPED)
    assert settings.dtype == jnp.float32
    assert settings.max_model_len == 1024
    assert settings.weight_bytes == 4 * 5_475_584


def test_types_have_vllm_s_other_names():
    assert Settings.of(SHIPPED, dtype="half").dtype == jnp.float16
    assert Settings.of(SHIPPED, dtype="float").dtype == jnp.float32


@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", 4), ("bfloat16", 2), ("float16", 2)]
)
def test_a_type_asked_for_is_that_of_weights_and_pages(dtype: str, size: int):
    settings = Settings.of(SHIPPED, dtype=dtype)
    assert settings.dtype == jnp.dtype(dtype)
    assert settings.weight_bytes == size * 5_475_584
    assert settings.memory_plan().layout.dtype == settings.dtype


@pytest.mark.parametrize("fraction", [0.25, 0.5])
def test_the_budget_is_the_fraction_asked_for(fraction: float):
    settings = Settings.of(SHIPPED, memory_fraction=fraction)
    assert settings.memory_plan().budget_bytes == device.memory_budget(fraction)


def test_a_gpu_keeps_the_checkpoint_s_type():
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=H200)):
        settings = Settings.of(LLAMA)
        assert settings.dtype == jnp.bfloat16
        assert settings.max_num_seqs == 256
        plan = settings.memory_plan(141 * 10**9)
    assert plan.weight_bytes == 2 * 8_030_261_248
    assert plan.layout.page_bytes == 2 * 2**20
    assert plan.free_bytes >= 0
    assert plan.layout.num_tokens > 800_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "dtype is 'int8'; use one of auto"),
        ({"max_model_len": 1025}, "1025, but the model was made for 1024"),
        ({"max_model_len": 0}, "max_model_len is 0"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens is 0"),
        ({"max_num_seqs": 2.5}, "max_num_seqs is 2.5; use a whole number"),
        ({"max_beam_width": 0}, "max_beam_width is 0; use a whole number from 1"),
        ({"max_beam_width": 513}, "max_beam_width is 513; use 512 at most"),
        ({"max_num_beams": 0}, "max_num_beams is 0; use a whole number from 1"),
        (
            {"max_num_beams": 9, "max_num_seqs": 8},
            "max_num_beams is 9, but max_num_seqs is 8",
        ),
        ({"page_size": -1}, "page_size is -1"),
        ({"page_size": 10**12}, "page_size is 1000000000000; use 65536 at most"),
        ({"max_num_seqs": 10**12}, "max_num_seqs is 10+; use 1048576 at most"),
        ({"max_num_batched_tokens": 10**9}, "max_num_batched_tokens is 10+; use 16777"),
        ({"memory_fraction": 1.5}, "memory_fraction is 1.5"),
    ],
)
def test_settings_out_of_range(options: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        Settings.of(SHIPPED, **options)  # pyright: ignore[reportArgumentType]  (wrong on purpose)


def test_pages_are_not_read_once_where_others_must_not_matter():
    said = "batch_invariant and shared_prefix_reads are both on.* leave one of them out"
    with pytest.raises(ConfigError, match=said):
        Settings.of(SHIPPED, batch_invariant=True, policy=StepPolicy(shared_reads=True))
    for asked in (None, False):  # the default finds out by itself
        policy = StepPolicy(shared_reads=asked)
        settings = Settings.of(SHIPPED, batch_invariant=True, policy=policy)
        assert settings.policy == policy


@pytest.mark.parametrize(
    ("rows", "beams"), [(256, 224), (16, 14), (4, 3), (2, 1), (1, 1)]
)
def test_beams_of_a_server_leave_an_eighth_of_the_rows(rows: int, beams: int):
    settings = Settings.of(SHIPPED, max_num_seqs=rows, max_num_beams="auto")
    assert settings.max_num_beams == beams
    assert Settings.of(SHIPPED, max_num_seqs=rows).max_num_beams is None


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1, "a": 2}', "\xff"])
def test_a_lone_configuration_must_be_sound(tmp_path: pathlib.Path, text: str):
    path = tmp_path / "model.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"model\.json cannot be read"):
        Settings.of(path)


def test_a_budget_too_small_is_refused():
    settings = Settings.of(SHIPPED, max_model_len=64, max_num_seqs=1)
    for source in ({}, {"budget_from": "memory_fraction"}):
        told = f"does not fit.* raise {source.get('budget_from', 'budget_bytes')}"
        with pytest.raises(MemoryBudgetError, match=told):
            settings.memory_plan(settings.weight_bytes, **source)


def test_a_share_too_small_is_refused_as_such(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fdjax.device.memory_budget", lambda _: 10**6)
    with pytest.raises(MemoryBudgetError, match="raise memory_fraction"):
        Settings.of(SHIPPED).memory_plan()


def test_both_files_name_what_ends_a_text(tmp_path: pathlib.Path):
    shutil.copy(resolve(SHIPPED) / "config.json", tmp_path)
    assert Settings.of(tmp_path).config.eos_token_ids == (1,)
    fields = '{"eos_token_id": [7, 1, 4095, 4096]}'
    (tmp_path / "generation_config.json").write_text(fields)
    expected = (1, 7, 4095)  # the vocabulary has 4096 tokens: the last never comes
    assert Settings.of(tmp_path).config.eos_token_ids == expected
    lone = Settings.of(tmp_path / "config.json", hf_overrides={"eos_token_id": 5})
    assert lone.config.eos_token_ids == (5, 7, 1, 4095)


def test_an_override_reaches_the_model():
    settings = Settings.of(SHIPPED, hf_overrides={"num_hidden_layers": 2})
    assert settings.config.num_layers == 2
    for model in (SHIPPED, resolve(SHIPPED) / "config.json"):
        with pytest.raises(ConfigError, match=r"hf_overrides is <.*; give a mapping"):
            Settings.of(model, hf_overrides=lambda config: config)  # pyright: ignore[reportArgumentType]  (as vLLM takes it)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_queued_requests": 0}, "max_queued_requests is 0"),
        ({"max_queued_samples": 0}, "max_queued_samples is 0"),
        ({"max_queued_tokens": 63}, "max_queued_tokens is 63, .* which is 64; use at"),
    ],
)
def test_a_queue_that_would_refuse_for_ever(limits: dict[str, int], message: str):
    with pytest.raises(ConfigError, match=message):
        LLM(SHIPPED, max_model_len=64, **limits)  # pyright: ignore[reportArgumentType]  (by name)


def test_limits_of_the_queue_reach_the_engine():
    llm = LLM(
        SHIPPED,
        max_model_len=64,
        max_num_seqs=1,
        max_queued_requests=7,
        max_queued_tokens="auto",
    )
    assert llm.engine.limits == QueueLimits(7, None, 4096 * 64)
