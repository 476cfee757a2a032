"""What a start keeps beside weights and KV array, for an H200 and a whole model."""

import gc
import pathlib

import jax
import pytest

from fdjax.engine.warm_up import warm_up
from fdjax.engine.workspace import state_bytes
from fdjax.models.decoder import Decoder
from fdjax.serve.loading import make_engine
from fdjax.serve.setup import Settings
from tests.support import h200

MEMORY_BYTES = 126 * 2**30
ROWS = 256


class _LoweredError(Exception):
    """Ends a start, with calls collected and one of them lowered: none can run."""


def _live_bytes() -> int:
    return sum(array.nbytes for array in jax.live_arrays())


def test_rows_are_there_once_while_programs_are_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    """The rest is what sampling needs; twice, and a server had too little for it."""
    h200.pretend(monkeypatch, tmp_path)
    settings = Settings.of(
        "configs/models/llama3-8b.json", max_num_seqs=ROWS, max_model_len=4096
    )
    gc.collect()
    plan, before = settings.memory_plan(MEMORY_BYTES), _live_bytes()
    declared = Decoder(settings.config, settings.dtype)
    engine = make_engine(settings, declared, plan, seed=0)
    found: list[int] = []

    def awake(*, wait: bool = False) -> bool:
        del wait
        found.append(_live_bytes() - before)
        raise _LoweredError

    with pytest.raises(_LoweredError):
        warm_up(
            engine.executor,
            engine.buckets,
            plan.layout,
            None,
            longest=4096,
            threads=2,
            awake=awake,
        )
    counted = state_bytes(settings.config, num_rows=ROWS)
    assert counted / 2 < found[0] <= counted
