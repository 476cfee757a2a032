"""Steps that are timed for the choice of a chain's kernels."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fdjax.errors import Unsupported
from fdjax.generate.chain_times import ChainTimes, lowered
from fdjax.kernels.layer_program.table import ChainRows
from fdjax.kernels.paged import KVCache
from fdjax.kernels.tuning.chain import LIBRARY, MOST, only
from fdjax.models.config import ModelConfig
from fdjax.models.decoder import Decoder
from fdjax.serve.setup import Settings
from tests.support import h200
from tests.support.engines import tiny_model


def _config() -> ModelConfig:
    return Settings.of("tales-5m", dtype="bfloat16").config


def test_layers_that_run_one_by_one_are_not_timed():
    config = tiny_model().config
    with pytest.raises(Unsupported, match="layer_program: layer by layer"):
        ChainTimes.check(config, "float32")
    times = ChainTimes(config, "float32", most_rows=2)
    with pytest.raises(Unsupported, match="layer_program: layer by layer"):
        times.microseconds(ChainRows(), 2)


def test_a_step_has_the_kernels_that_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    h200.pretend(monkeypatch, tmp_path)
    config = _config()
    kv: Any = jax.ShapeDtypeStruct((256, 6, 2, 16, 2, 64), jnp.bfloat16)
    cache, model = KVCache.page_major(kv), Decoder(config, "bfloat16")
    programs = {
        name: lowered(model, cache, only(name, ChainRows()), 4).as_text()
        for name in (*MOST, LIBRARY)
    }
    assert len(set(programs.values())) == 4
    many = lowered(model, cache, ChainRows(), 100).as_text()
    assert "tensor<100x2xi32>" in many, "as many pages a row as there are for all"
    ChainTimes.check(config, "bfloat16")
