"""Steps that are timed for the choice of a chain's kernels."""

import pathlib

import pytest

from fdjax.errors import Unsupported
from fdjax.generate.chain_times import NUM_LAYERS, ChainTimes
from fdjax.kernels.layer_program.table import ChainRows
from fdjax.kernels.tuning.chain import only
from fdjax.models.config import ModelConfig
from fdjax.serve.setup import Settings
from tests.support import h200
from tests.support.engines import tiny_model


def _config() -> ModelConfig:
    return Settings.of("tales-5m", dtype="bfloat16").config


def test_layers_that_run_one_by_one_are_not_timed():
    times = ChainTimes(tiny_model().config, "float32", most_rows=2)
    with pytest.raises(Unsupported, match="layer_program: reference"):
        times.microseconds(ChainRows(), 2)


def test_a_step_has_the_kernels_that_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    times = ChainTimes(_config(), "bfloat16", most_rows=4)
    h200.pretend(monkeypatch, tmp_path)
    programs = {
        name: times.lowered(only(name, ChainRows()), 4).as_text()
        for name in ("gemv", "flat", "library")
    }
    assert len(set(programs.values())) == len(programs)
    assert NUM_LAYERS == 4
