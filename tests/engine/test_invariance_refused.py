"""An engine does not start where bits would depend on the batch and must not."""

import dataclasses
import pathlib

import jax.numpy as jnp
import pytest

from fdjax.engine.invariance import check_batch_invariant
from fdjax.errors import ConfigError
from tests.support import h200
from tests.support.engines import tiny_model


def test_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    config = dataclasses.replace(tiny_model("llama").config, batch_invariant=True)
    layout = config.kv_layout(num_pages=4, page_size=16, dtype=jnp.bfloat16)
    h200.pretend(monkeypatch, tmp_path)
    with pytest.raises(ConfigError, match=r"batch_invariant is on.*run on a CPU"):
        check_batch_invariant(config, layout)
