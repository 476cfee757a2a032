"""Beam searches with every family find what transformers finds.

All of them so with widths 4, 5 and 30, and tales-5m: `test_beams_parity`.
"""

import pytest

from tests.support import beam_models
from tests.support.engines import tiny_engine
from tests.support.soak import is_idle


@pytest.mark.parametrize("name", beam_models.FAMILIES)
def test_finds_what_transformers_finds(name: str):
    """RoPE, ALiBi, learned positions, windows that a prompt fills, and capped scores.

    Each has one of its cases, so that each width meets every way to end a search, and
    prompts of every length.
    """
    place = beam_models.FAMILIES.index(name)
    case = beam_models.expected(name)[place // 3 % len(beam_models.WIDTHS)]
    engine = tiny_engine(beam_models.model_of(name), max_model_len=64, max_num_seqs=30)
    beam_models.assert_same(beam_models.find(engine, case), case)
    assert is_idle(engine)
