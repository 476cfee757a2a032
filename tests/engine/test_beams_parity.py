"""The expected values of `test_beam_families.py`, computed live, for every family."""

import pytest

from fdjax.engine.engine import Engine
from tests.support import beam_models
from tests.support.beam_models import ModelCase
from tests.support.engines import tiny_engine

pytestmark = pytest.mark.parity

pytest.importorskip("torch")


def engine_of(name: str) -> Engine:
    model = beam_models.model_of(name)
    return tiny_engine(model, max_model_len=128, max_num_seqs=30)


@pytest.mark.parametrize("name", [*beam_models.FAMILIES, "tales-5m"])
def test_transformers_and_the_engine_find_what_is_committed(name: str):
    from tests.support import hf_beams

    reference = hf_beams.reference_of(name)
    engine = engine_of(name)
    asked = [case for case in beam_models.questions() if case.model == name]
    cases = beam_models.expected(name)
    assert len(asked) == len(cases)
    for question, case in zip(asked, cases, strict=True):
        _same(hf_beams.answered(question, reference), case)
        beam_models.assert_same(beam_models.find(engine, case), case)


@pytest.mark.parametrize("name", [*beam_models.FAMILIES, "tales-5m"])
def test_with_every_width_early_stopping_and_penalty_they_find_the_same(name: str):
    from tests.support import hf_beams

    reference = hf_beams.reference_of(name)
    engine = engine_of(name)
    for question in beam_models.all_questions(name):
        case = hf_beams.answered(question, reference)
        beam_models.assert_same(beam_models.find(engine, case), case)


def _same(live: ModelCase, kept: ModelCase) -> None:
    assert (live.prompt, live.ends, live.params) == (
        kept.prompt,
        kept.ends,
        kept.params,
    )
    assert live.tokens == kept.tokens
    assert live.scores == pytest.approx(kept.scores, rel=beam_models.TOLERANCE)
