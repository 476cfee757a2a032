"""The expected values of `test_beams.py`, computed live, for every family."""

import pytest

from fdjax.engine.engine import Engine
from tests.support import beam_models
from tests.support.beam_models import ModelCase
from tests.support.engines import tiny_engine

pytestmark = pytest.mark.parity

pytest.importorskip("torch")


def engine_of(name: str) -> Engine:
    is_small = name in beam_models.FAMILIES
    return tiny_engine(
        beam_models.model_of(name),
        max_model_len=64 if is_small else 128,
        max_num_seqs=4 if is_small else 30,
    )


@pytest.mark.parametrize("name", [*beam_models.FAMILIES, "tales-5m"])
def test_transformers_and_the_engine_find_what_is_committed(name: str):
    from tests.support import hf_beams, hf_reference

    reference = hf_reference.load(beam_models.folder_of(name))
    engine = engine_of(name)
    asked = [case for case in beam_models.questions() if case.model == name]
    cases = beam_models.expected(name)
    assert len(asked) == len(cases)
    for question, case in zip(asked, cases, strict=True):
        _same(hf_beams.answered(question, reference), case)
        beam_models.assert_same(beam_models.find(engine, case), case)


def _same(live: ModelCase, kept: ModelCase) -> None:
    assert (live.prompt, live.ends, live.params) == (
        kept.prompt,
        kept.ends,
        kept.params,
    )
    assert live.tokens == kept.tokens
    assert live.scores == pytest.approx(kept.scores, rel=beam_models.TOLERANCE)
