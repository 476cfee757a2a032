"""Beam searches with every family find what transformers finds.

Every combination of what may be asked of them: `test_beams_parity`.
"""

from collections.abc import Sequence

import jax
import pytest

from tests.support import beam_models
from tests.support.beam_models import ModelCase
from tests.support.engines import tiny_engine
from tests.support.soak import is_idle


def find(name: str, cases: Sequence[ModelCase], *, max_model_len: int) -> None:
    model = beam_models.model_of(name)
    engine = tiny_engine(model, max_model_len=max_model_len, max_num_seqs=30)
    for case in cases:
        beam_models.assert_same(beam_models.find(engine, case), case)
    assert is_idle(engine)


@pytest.mark.parametrize("name", beam_models.FAMILIES)
def test_finds_what_transformers_finds(name: str):
    """RoPE, ALiBi, learned positions, windows that a prompt fills, and capped scores.

    Each has two of its cases, so that each width meets every way to end a search, and
    prompts of every length.
    """
    cases = beam_models.expected(name)
    first = beam_models.FAMILIES.index(name) // 3
    some = [cases[(first + nth) % len(cases)] for nth in range(2)]
    find(name, some, max_model_len=64)


def test_finds_what_transformers_finds_with_the_model_of_the_package():
    """Trained weights, and 4, 5 and 30 beams."""
    cases = beam_models.expected("tales-5m")
    assert [case.params["beam_width"] for case in cases] == [4, 5, 30, 4]
    find("tales-5m", cases, max_model_len=128)


@pytest.mark.gpu
def test_a_gpu_finds_what_transformers_finds_with_the_model_of_the_package():
    """In float32, as the definition of each operation has it, or its kernel."""
    with jax.default_matmul_precision("highest"):
        find("tales-5m", beam_models.expected("tales-5m"), max_model_len=128)
