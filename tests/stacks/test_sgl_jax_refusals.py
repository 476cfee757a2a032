"""What fdjax's attention in sgl-jax refuses. Where sgl-jax is not installed, its two
classes that the adapter knows are played.
"""

import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fdjax.errors import Unsupported

BACKENDS = "sgl_jax.srt.layers.attention"
ADAPTER = "fdjax.integrations.sgl_jax"


class FlashAttention:
    """Takes and keeps what sgl-jax's own does, of what the adapter gives it."""

    def __init__(
        self,
        num_attn_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int = 1,
        mesh: Any = None,
    ) -> None:
        self.sizes = num_attn_heads, num_kv_heads, head_dim
        self.page_size = page_size
        self.mesh = mesh
        self.forward_metadata: Any = None


class NativeAttention:
    """sgl-jax's other one."""


class Latent:
    """Attention of another kind."""


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, which is forgotten afterwards if it has seen no real sgl-jax."""
    if importlib.util.find_spec("sgl_jax") is not None:
        yield importlib.import_module(ADAPTER)
        return
    parts = BACKENDS.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for file, served in (
        ("flashattention_backend", FlashAttention),
        ("native_backend", NativeAttention),
    ):
        module: Any = types.ModuleType(f"{BACKENDS}.{file}")
        setattr(module, served.__name__, served)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    yield importlib.import_module(ADAPTER)
    del sys.modules[ADAPTER]
    package, _, name = ADAPTER.rpartition(".")
    delattr(sys.modules[package], name)


def engine_of(adapter: Any, **changes: Any) -> Any:
    """One whose runner has what `attach` reads."""
    runner = SimpleNamespace(
        attn_backend=object.__new__(adapter.NativeAttention),
        server_args=SimpleNamespace(speculative_algorithm=None),
        num_attn_heads=4,
        num_kv_heads=2,
        model_config=SimpleNamespace(head_dim=16, context_len=100),
        page_size=16,
        mesh=None,  # no step comes so far that it is asked
    )
    vars(runner).update(changes)
    scheduler = SimpleNamespace(tp_worker=SimpleNamespace(model_runner=runner))
    return SimpleNamespace(scheduler_info={"scheduler": scheduler})


def runner_of(engine: Any) -> Any:
    return engine.scheduler_info["scheduler"].tp_worker.model_runner


@pytest.mark.parametrize("algorithm", [None, "NONE"])
def test_plain_attention_is_replaced(adapter: Any, algorithm: str | None):
    """Also behind a worker that overlaps steps, which holds the one with the model."""
    arguments = SimpleNamespace(speculative_algorithm=algorithm)
    engine = engine_of(adapter, server_args=arguments)
    backend = adapter.attach(engine)
    assert runner_of(engine).attn_backend is backend
    assert backend.max_pages == 7  # of 16 tokens, for 100

    engine = engine_of(adapter, attn_backend=object.__new__(adapter.FlashAttention))
    scheduler, runner = engine.scheduler_info["scheduler"], runner_of(engine)
    scheduler.tp_worker = SimpleNamespace(worker=scheduler.tp_worker)
    assert adapter.attach(engine) is runner.attn_backend


def test_a_scheduler_elsewhere_is_refused_with_the_remedy(adapter: Any):
    engine = SimpleNamespace(scheduler_info={})
    with pytest.raises(Unsupported, match=r"another process.*enable_single_process"):
        adapter.attach(engine)


def test_other_attention_is_refused_by_name(adapter: Any):
    engine = engine_of(adapter, attn_backend=Latent())
    with pytest.raises(Unsupported, match=r"by Latent; .* FlashAttention and Native"):
        adapter.attach(engine)
    assert isinstance(runner_of(engine).attn_backend, Latent)


def test_attaching_twice_is_refused(adapter: Any):
    engine = engine_of(adapter)
    adapter.attach(engine)
    with pytest.raises(Unsupported, match="served by FdjaxAttentionBackend"):
        adapter.attach(engine)


def test_speculative_decoding_is_refused_by_name(adapter: Any):
    arguments = SimpleNamespace(speculative_algorithm="EAGLE3")
    engine = engine_of(adapter, server_args=arguments)
    with pytest.raises(Unsupported, match="speculative_algorithm is EAGLE3"):
        adapter.attach(engine)
    assert type(runner_of(engine).attn_backend) is adapter.NativeAttention


@pytest.mark.parametrize(
    ("layer", "step", "words"),
    [
        ({}, {"causal": 0}, "attention that is not causal"),
        ({"attn_type": SimpleNamespace(value="encoder_only")}, {}, "not causal"),
        ({}, {"custom_mask": np.ones(4)}, "a mask of its own"),
        ({"xai_temperature_len": 1024}, {}, "a temperature by position"),
        ({"v_head_dim": 8}, {}, "values of another size than keys"),
    ],
)
def test_what_a_layer_wants_is_refused_by_name(
    adapter: Any, layer: dict[str, Any], step: dict[str, Any], words: str
):
    backend = adapter.attach(engine_of(adapter))
    backend.forward_metadata = SimpleNamespace(custom_mask=step.get("custom_mask"))
    wants = {
        "layer_id": 3,
        "attn_type": "decoder",
        "xai_temperature_len": -1,
        "head_dim": 16,
        "v_head_dim": 16,
    }
    with pytest.raises(Unsupported, match=rf"^layer 3 wants .*{words}"):
        backend(
            *[np.zeros((1, 64), np.float32)] * 3,
            SimpleNamespace(**(wants | layer)),
            forward_batch=None,
            token_to_kv_pool=None,
            causal=step.get("causal", 1),
        )
