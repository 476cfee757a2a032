"""`LLM.beam_search`: texts and scores, as transformers finds them."""

import pytest

from fdjax import LLM, BeamSearchParams, RequestError, SamplingParams
from fdjax.serve.setup import MAX_BEAM_WIDTH
from tests.support import beam_models


def test_tales_are_those_of_transformers(llm: LLM):
    case = next(
        one
        for one in beam_models.expected("tales-5m")
        if one.params["beam_width"] == 4 and one.params["length_penalty"] == 1
    )
    (output,) = llm.beam_search({"prompt_token_ids": case.prompt}, case.search_params)
    assert [one.token_ids for one in output.sequences] == case.tokens
    scores = [one.score for one in output.sequences]
    assert scores == pytest.approx(case.scores, rel=beam_models.TOLERANCE)
    for one in output.sequences:
        assert one.cum_logprob == pytest.approx(one.score * len(one.token_ids))
        assert llm.tokenizer is not None and one.text
        shown = llm.tokenizer.decode(beam_models.shown(one.token_ids, case))
        assert one.text.strip() == shown.strip()
        assert one.finish_reason == (
            "stop" if one.token_ids[-1] in case.ends else "length"
        )


def test_several_prompts_have_parameters_of_their_own(llm: LLM):
    params = [
        BeamSearchParams(beam_width=4, max_tokens=6),
        BeamSearchParams(beam_width=2, max_tokens=3, n=1, ignore_eos=True),
    ]
    first, second = llm.beam_search(["The king", [5, 6, 7]], params)
    assert (first.index, first.prompt, second.prompt) == (0, "The king", None)
    assert (len(first.sequences), len(second.sequences)) == (4, 1)
    assert second.prompt_token_ids == (5, 6, 7)
    assert len(second.sequences[0].token_ids) == 3


def test_one_beam_takes_the_likeliest_token_each_time(llm: LLM):
    (output,) = llm.beam_search("The fox", BeamSearchParams(beam_width=1, max_tokens=9))
    (greedy,) = llm.generate("The fox", SamplingParams(temperature=0.0, max_tokens=9))
    assert output.sequences[0].text == greedy.text


def test_as_many_parameters_as_prompts(llm: LLM):
    params = [BeamSearchParams(beam_width=2)] * 3
    with pytest.raises(RequestError, match="2 prompts but 3 params"):
        llm.beam_search(["A", "B"], params)


def test_parameters_of_another_kind_are_refused_by_name(llm: LLM):
    """A search by `generate` would have one output, whatever its n."""
    search, drawn = BeamSearchParams(beam_width=2), SamplingParams()
    told = r"has BeamSearchParams where SamplingParams .* LLM.beam_search BeamSearchP"
    for given in (search, [drawn, search]):
        with pytest.raises(RequestError, match=f"sampling_params {told}"):
            llm.generate(["A", "B"], given)  # pyright: ignore[reportArgumentType]  (wrong on purpose)
    with pytest.raises(RequestError, match="params has SamplingParams where BeamSea"):
        llm.beam_search("A", drawn)  # pyright: ignore[reportArgumentType]  (wrong on purpose)


def test_searches_may_be_as_wide_as_the_model_was_loaded_for(llm: LLM):
    assert llm.engine.max_beam_width == MAX_BEAM_WIDTH == 64
    with pytest.raises(
        RequestError, match="beam_width is 65, but max_beam_width is 64"
    ):
        llm.beam_search("A", BeamSearchParams(beam_width=65))
    wide = LLM(max_model_len=16, max_num_seqs=70, max_beam_width=66)
    assert wide.engine.request(0, [1], BeamSearchParams(beam_width=66)).num_rows == 66
    with pytest.raises(
        RequestError, match="beam_width is 67, but max_beam_width is 66"
    ):
        wide.beam_search("A", BeamSearchParams(beam_width=67))
