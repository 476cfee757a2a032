"""Where the steps of beam searches find keys and values."""

import pathlib
from typing import Any

import jax
import numpy as np
import pytest

from fdjax import device
from fdjax.engine.beam_prompts import BeamPrompts
from fdjax.engine.engine import Engine
from fdjax.engine.sequence import EngineSequence
from fdjax.errors import ConfigError
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.kernels.shared_prefix import table
from fdjax.kernels.shared_prefix.table import Worth
from fdjax.kernels.tuning import files
from tests.support.engines import tiny_engine, tiny_model

PAGE_SIZE = 4
SEARCH = BeamSearchParams(beam_width=2, max_tokens=20, ignore_eos=True)


def _tables(engine: Engine) -> Any:
    return engine._pipeline._executor.beams._tables


def _added(engine: Engine, *lengths: int) -> list[EngineSequence]:
    prompts = (list(range(3, 3 + length)) for length in lengths)
    return [engine.add(engine.request(0, prompt, SEARCH)) for prompt in prompts]


@pytest.mark.parametrize("least", [0, Worth.prompt_bytes])
def test_pages_are_sent_where_they_have_changed(
    least: int, monkeypatch: pytest.MonkeyPatch
):
    """And are those of the moment; what is compiled ahead has their shapes."""
    monkeypatch.setattr(table.PART, "find", lambda: Worth(prompt_bytes=least))
    engine = tiny_engine(page_size=PAGE_SIZE, max_num_seqs=8)
    tables = _tables(engine)
    searches = _added(engine, 5, 9)  # of two kinds, whose calls take turns
    steps, made = 0, list[int]()
    monkeypatch.setattr(tables, "_made", _counted(tables._made, made))
    while engine.has_work:
        engine.step()
        now = [one for one in searches if one.row is not None and one.search.run][:1]
        if not now:
            continue
        steps += 1
        pages, count = tables.pages(now), len(made)
        fresh = tables._made(now)
        del made[count:]
        jax.tree.map(np.testing.assert_array_equal, pages, fresh)
        assert (pages.prefixes is None) == bool(least)
        shapes = tables.shapes(*tables.sizes(now))
        assert jax.tree.structure(shapes) == jax.tree.structure(pages)
        assert [x.shape for x in jax.tree.leaves(shapes)] == [
            x.shape for x in jax.tree.leaves(pages)
        ]
    assert steps > 15
    assert len(made) <= 2 * steps * 2 / PAGE_SIZE, "pages grow, and others die"


def _counted(function: Any, calls: list[int]) -> Any:
    def counted(searches: Any) -> Any:
        calls.append(len(searches))
        return function(searches)

    return counted


def test_a_prompt_is_read_once_where_that_saves_enough():
    prompts = BeamPrompts(tiny_model("llama").config)
    heads = tiny_model("llama").config.layers[0].attention
    token = 2 * heads.num_kv_heads * heads.head_dim * 2
    room = -(-Worth.prompt_bytes // token)
    assert prompts.is_worth(1, 2, room)
    assert not prompts.is_worth(1, 2, room - 1)
    assert prompts.is_worth(2, 2, room // 2 + 1), "two groups save twice as much"
    assert not prompts.is_worth(4, 1, room), "a beam alone saves nothing"
    windows = BeamPrompts(tiny_model("mistral_window").config)
    assert not windows.is_worth(1, 2, 1000 * room)


def test_a_table_that_cannot_be_read_is_told_when_an_engine_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    """Not by a step, with which all requests would end."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = files.user_path(device.kind())
    path.parent.mkdir(parents=True)
    path.write_text(files.to_json({"shared_prefix": {"of_group": -1}, "shapes": []}))
    with pytest.raises(ConfigError, match="shared_prefix: of_group is -1"):
        tiny_engine(page_size=PAGE_SIZE)
