"""Beam searches that an engine refuses: too wide, or too large for its memory."""

import dataclasses

import pytest

from fdjax.engine.engine import Engine
from fdjax.engine.origin import Origin
from fdjax.errors import RequestError
from fdjax.generate.beam_params import BeamSearchParams
from tests.support.engines import PROMPTS, shallow_model, tiny_engine

SEARCH = BeamSearchParams(beam_width=3, max_tokens=12, ignore_eos=True)


def engine_of(**options: int) -> Engine:
    return tiny_engine(shallow_model(), page_size=8, max_num_seqs=4, **options)


def test_what_never_fits_is_refused_with_the_remedy():
    engine = engine_of(num_pages=6)
    with pytest.raises(RequestError, match=r"beam_width is 5, but max_num_seqs is 4 "):
        engine.request(0, [1], BeamSearchParams(beam_width=5))
    told = (
        r"8 pages of .*,536 bytes\), but there are 6 \(.*; .* max_tokens or beam_width"
    )
    with pytest.raises(RequestError, match=told):
        engine.request(0, [1] * 9, SEARCH)


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        ("max_beam_width", "max_beam_width is 2; .* raise .* 512 at most"),
        ("max_num_beams", "max_num_beams is 2 of max_num_seqs, 4, .* raise"),
    ],
)
def test_a_search_wider_than_a_limit_is_refused_with_the_remedy(limit: str, told: str):
    engine = engine_of(**{limit: 2})
    with pytest.raises(RequestError, match=f"beam_width is 3, but {told}"):
        engine.request(0, PROMPTS[0], SEARCH)
    pair = dataclasses.replace(SEARCH, beam_width=2, n=2)
    assert engine.request(0, PROMPTS[0], pair).num_rows == 2


def test_a_search_wider_than_its_tenant_may_hold_rows_is_refused():
    engine = engine_of()
    request = engine.request(0, PROMPTS[0], SEARCH)
    with pytest.raises(RequestError, match=r"beam_width is 3, .* of 'a' is 2"):
        engine.add(request, Origin(tenant="a", max_running=2))
    assert not engine.has_work
