"""Beam searches that an engine refuses: too wide, or too large for its memory."""

import dataclasses

import pytest

from fdjax.engine.beam_searches import usual_share
from fdjax.engine.engine import Engine
from fdjax.engine.origin import Origin
from fdjax.errors import RequestError
from fdjax.generate.beam_length import longest_search
from fdjax.generate.beam_params import BeamSearchParams
from tests.support.engines import PROMPTS, shallow_model, tiny_engine

SEARCH = BeamSearchParams(beam_width=3, max_tokens=12, ignore_eos=True)


def engine_of(**options: int) -> Engine:
    return tiny_engine(shallow_model(), page_size=8, max_num_seqs=4, **options)


def test_what_never_fits_is_refused_with_the_remedy():
    engine = engine_of(num_pages=6)
    with pytest.raises(RequestError, match=r"beam_width is 5, but max_num_seqs is 4 "):
        engine.request(0, [1], BeamSearchParams(beam_width=5))
    told = r"8 pages of .*,536 bytes\), but there are 6 \(.*; .*, or lower beam_width"
    with pytest.raises(RequestError, match=told):
        engine.request(0, [1] * 9, SEARCH)


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        ("max_beam_width", "max_beam_width is 2; .* raise .* 512 at most"),
        (
            "max_num_beams",
            "max_num_beams is 2 of max_num_seqs, 4, .* raise max_num_beams to 3$",
        ),
    ],
)
def test_a_search_wider_than_a_limit_is_refused_with_the_remedy(limit: str, told: str):
    engine = engine_of(**{limit: 2})
    with pytest.raises(RequestError, match=f"beam_width is 3, but {told}"):
        engine.request(0, PROMPTS[0], SEARCH)
    pair = dataclasses.replace(SEARCH, beam_width=2, n=2)
    assert engine.request(0, PROMPTS[0], pair).num_rows == 2


@pytest.mark.parametrize(("width", "rows"), [(15, 17), (16, 18)])
def test_where_the_share_of_searches_is_the_usual_the_rows_are_said_that_suffice(
    width: int, rows: int
):
    """They are the fewest with which the share is as large."""
    search = dataclasses.replace(SEARCH, beam_width=width, n=1)

    def engine(num_rows: int) -> Engine:
        share = usual_share(num_rows)
        options = {"max_num_seqs": num_rows, "max_num_beams": share}
        return tiny_engine(shallow_model(), max_beam_width=64, **options)

    told = f"or raise max_num_beams to {width}, or, .* default, max_num_seqs to {rows}$"
    with pytest.raises(RequestError, match=told):
        engine(16).request(0, PROMPTS[0], search)
    assert usual_share(rows - 1) < width
    assert engine(rows).request(0, PROMPTS[0], search).num_rows == width


@pytest.mark.parametrize(
    ("penalty", "longest"), [(-10.0, 4), (-5.0, 17), (6.0, 17), (10.0, 5)]
)
def test_lengths_whose_scores_could_not_be_told_apart_are_refused(
    penalty: float, longest: int
):
    """By the limit that holds: `max_tokens`, or the model's room where that is less."""
    engine = engine_of(max_model_len=64)
    few = dataclasses.replace(SEARCH, length_penalty=penalty, allowed_token_ids=[1, 2])
    assert longest_search(few) == longest
    for given, told in ((longest + 1, longest + 1), (None, 63), (999, 63)):
        search = dataclasses.replace(few, max_tokens=given)
        with pytest.raises(
            RequestError,
            match=f"^length_penalty is {penalty:g}, but .* {told} tokens, .* lower "
            f"max_tokens to {longest}, or use a length_penalty nearer to 0",
        ):
            engine.request(0, [1], search)
    for given, room in ((longest, 63), (None, longest)):
        search = dataclasses.replace(few, max_tokens=given)
        prompt = [1] * (64 - room)
        assert engine.request(0, prompt, search).max_tokens == longest


def test_usual_penalties_are_not_refused():
    engine = engine_of(max_model_len=64, num_pages=64)
    for penalty in (-1.0, 0.0, 1.0, 2.0, 10.0):
        search = dataclasses.replace(SEARCH, length_penalty=penalty, max_tokens=None)
        assert engine.request(0, [1], search).max_tokens == 63


def test_a_search_wider_than_its_tenant_may_hold_rows_is_refused():
    engine = engine_of()
    request = engine.request(0, PROMPTS[0], SEARCH)
    with pytest.raises(RequestError, match=r"beam_width is 3, .* of 'a' is 2"):
        engine.add(request, Origin(tenant="a", max_running=2))
    assert not engine.has_work
