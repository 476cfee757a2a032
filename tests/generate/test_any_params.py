"""`by_kind`: parameters that ask for a beam search become its own."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from fdjax.errors import RequestError
from fdjax.generate.any_params import by_kind, num_outputs
from fdjax.generate.beam_fields import BeamSearch
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import SamplingParams
from fdjax.generate.plan import serving_plan
from fdjax.generate.pooling_params import PoolingParams
from fdjax.generate.sampling_state import init_state
from fdjax.generate.structured import StructuredOutputs

OWN: dict[str, Any] = {
    "beam_width": 6,
    "length_penalty": 0.5,
    "early_stopping": "never",
    "num_beam_groups": 3,
    "diversity_penalty": 1.5,
}
COMMON: dict[str, Any] = {
    "max_tokens": 9,
    "min_tokens": 2,
    "stop_token_ids": (3,),
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "ignore_eos": True,
    "logit_bias": {4: 1.5},
    "allowed_token_ids": (3, 4),
    "bad_words": ("a",),
    "repetition_penalty": 1.5,
    "logprobs": 3,
}


def test_every_word_arrives():
    params = SamplingParams(n=4, beam_search=BeamSearch(**OWN), **COMMON)
    assert by_kind(params) == BeamSearchParams(n=4, **OWN, **COMMON)
    form = StructuredOutputs(choice=["a", "b"])
    judged = SamplingParams(
        stop="c", structured_outputs=form, beam_search=BeamSearch(beam_width=2)
    )
    expected = BeamSearchParams(beam_width=2, n=1, stop="c", structured_outputs=form)
    assert by_kind(judged) == expected
    neutral = {one.name for one in dataclasses.fields(BeamSearchParams)}
    told = {*OWN, *COMMON, "n", "stop", "structured_outputs"}
    assert neutral - told == {"temperature", "stream_best"}


def test_all_else_stays_what_it_is():
    for params in (
        SamplingParams(seed=3),
        PoolingParams(),
        BeamSearchParams(beam_width=2),
    ):
        assert by_kind(params) is params


def test_one_output_by_default_and_no_more_than_beams():
    params = SamplingParams(beam_search=BeamSearch(beam_width=3))
    assert num_outputs(params) == num_outputs(by_kind(params)) == 1
    with pytest.raises(RequestError, match=r"n is 4 but beam_width is 3; .* lower n"):
        dataclasses.replace(params, n=4)


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": 0.7},
        {"temperature": 1e-6},
        {"top_p": 0.9},
        {"top_k": 5},
        {"min_p": 0.1},
        {"seed": 0},
        {"presence_penalty": -1.0},
        {"frequency_penalty": 0.5},
        {"prompt_logprobs": 0},
        {"spaces_between_special_tokens": False},
    ],
    ids=lambda given: next(iter(given)),
)
def test_what_is_for_draws_alone_is_refused_by_name(given: dict[str, Any]):
    ((name, value),) = given.items()
    told = rf"{name} is {value}, but a beam search .*; leave out {name} or beam_search"
    with pytest.raises(RequestError, match=told):
        SamplingParams(beam_search=BeamSearch(beam_width=2), **given)


@pytest.mark.parametrize(
    "given",
    [{"temperature": 0}, {"temperature": 1.0}, {"top_k": -1}, {"top_p": 1}],
    ids=str,
)
def test_what_asks_for_nothing_is_taken(given: dict[str, Any]):
    params = SamplingParams(beam_search=BeamSearch(beam_width=2), **given)
    assert by_kind(params) == BeamSearchParams(beam_width=2, n=1)
    assert params.is_greedy


@pytest.mark.parametrize(
    "wrong", [4, True, {"beam_width": 4}, BeamSearchParams(beam_width=4)]
)
def test_a_search_of_another_type_is_refused(wrong: Any):
    with pytest.raises(RequestError, match=r"beam_search is .*; use BeamSearch"):
        SamplingParams(beam_search=wrong)


@pytest.mark.parametrize("name", ["stop", "structured_outputs"])
def test_groups_are_not_judged_by_their_texts(name: str):
    values: dict[str, Any] = {
        "stop": "a",
        "structured_outputs": StructuredOutputs(choice=["a"]),
    }
    search = BeamSearch(beam_width=4, num_beam_groups=2)
    told = f"{name} needs beams that are judged .* num_beam_groups, 2, does not allow"
    with pytest.raises(RequestError, match=told):
        SamplingParams(beam_search=search, **{name: values[name]})


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"beam_width": 0}, "beam_width is 0; use an integer from 1 to 512"),
        ({"beam_width": 513}, "beam_width is 513; use an integer from 1 to 512"),
        ({"length_penalty": 11}, "length_penalty is 11; use a number from -10 to 10"),
        ({"early_stopping": 1}, 'early_stopping is 1; use true, false or "never"'),
        ({"early_stopping": np.ones(2)}, r"early_stopping is array\(.*; use true, "),
        ({"num_beam_groups": 3}, "num_beam_groups is 3, which does not divide"),
        ({"diversity_penalty": 1.0}, "but num_beam_groups is 1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_both_ways_in_refuse_the_same(wrong: dict[str, Any], told: str):
    words: dict[str, Any] = {"beam_width": 4} | wrong
    for make in (BeamSearch, BeamSearchParams):
        with pytest.raises(RequestError, match=told):
            make(**words)


def test_programs_to_compile_are_those_of_what_draws_nothing():
    params = SamplingParams(beam_search=BeamSearch(beam_width=2))
    assert serving_plan([params]) == serving_plan([SamplingParams(temperature=0.0)])


def test_rows_that_draw_do_not_pass_a_search_over():
    params = SamplingParams(beam_search=BeamSearch(beam_width=2))
    with pytest.raises(RequestError, match="beam_search asks for a beam search, and r"):
        init_state(
            [params],
            [[1]],
            plan=serving_plan([params]),
            vocab_size=8,
            eos_token_ids=[],
            default_seeds=[0],
            num_rows=1,
        )
