"""`LLM`: options that say how a model is loaded, and what comes of them."""

import os
import pathlib
from collections.abc import Callable

import jax.numpy as jnp
import pytest

from fdjax import LLM, AsyncLLM, ConfigError, device
from tests.support.engines import FIXTURES


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "auto"])
def test_weights_and_pages_have_the_type_asked_for(dtype: str):
    """The checkpoint is of bfloat16."""
    llm = LLM(FIXTURES / "llama", dtype=dtype, max_model_len=16, max_num_seqs=1)
    automatic = "float32" if device.platform() == "cpu" else "bfloat16"
    wanted = jnp.dtype(automatic if dtype == "auto" else dtype)
    executor = llm.engine.executor
    assert {weight.dtype for weight in executor.programs._weights} == {wanted}
    assert executor.kv.dtype == wanted


@pytest.mark.parametrize("load", [LLM, AsyncLLM.from_model])
@pytest.mark.parametrize("model", ["tales-5m", FIXTURES / "llama"])
def test_a_model_that_is_here_has_no_revision(
    load: Callable[..., object], model: str | pathlib.Path
):
    with pytest.raises(ConfigError, match=r"revision is 'main', but .* leave the"):
        load(model, revision="main")


@pytest.mark.parametrize("load", [LLM, AsyncLLM.from_model])
def test_what_is_read_once_is_asked_for_by_a_boolean(load: Callable[..., object]):
    with pytest.raises(ConfigError, match="shared_prefix_reads is 'no'; use True or"):
        load(shared_prefix_reads="no")
    with pytest.raises(ConfigError, match="batch_invariant and shared_prefix_reads"):
        load(batch_invariant=True, shared_prefix_reads=True)


def test_memory_is_claimed_before_anything_else(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "")  # undone at the end
    monkeypatch.delenv("XLA_CLIENT_MEM_FRACTION")
    with pytest.raises(ConfigError, match="dtype is 'int8'"):
        LLM(dtype="int8", memory_fraction=0.25)
    assert os.environ["XLA_CLIENT_MEM_FRACTION"] == "0.25"
