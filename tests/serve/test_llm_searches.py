"""`SamplingParams(beam_search=...)`: searches beside draws, by every method."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import pytest

from fdjax import (
    LLM,
    AsyncLLM,
    BeamSearch,
    BeamSearchOutput,
    BeamSearchParams,
    Completion,
    Output,
    RequestError,
    SamplingParams,
    StructuredOutputs,
)
from fdjax.generate.any_params import by_kind
from fdjax.serve.outputs import Chunk

STORY = "There was once a king who"
FOX = "The fox"
SEARCH = SamplingParams(
    n=3, max_tokens=12, beam_search=BeamSearch(beam_width=3, length_penalty=0.5)
)
SMALL = SamplingParams(n=1, max_tokens=7, beam_search=BeamSearch(beam_width=2))
SEEDED = SamplingParams(max_tokens=12, seed=5, n=2)
GREEDY = SamplingParams(temperature=0.0, max_tokens=9)


def flat(params: SamplingParams) -> BeamSearchParams:
    """The same in the words of `LLM.beam_search`."""
    found = by_kind(params)
    assert isinstance(found, BeamSearchParams)
    return found


def check_same(output: Output, found: BeamSearchOutput) -> None:
    """Tokens, texts, order and ends are those of `LLM.beam_search`, as are scores."""
    assert output.prompt_token_ids == found.prompt_token_ids
    outputs, sequences = output.outputs, found.sequences
    assert [one.index for one in outputs] == [*range(len(sequences))]
    assert [one.token_ids for one in outputs] == [one.token_ids for one in sequences]
    assert [one.text for one in outputs] == [one.text for one in sequences]
    reasons = [one.finish_reason for one in sequences]
    assert [one.finish_reason for one in outputs] == reasons
    assert scores(outputs) == pytest.approx([one.score for one in sequences])
    assert output.finished
    assert output.failure is None


def scores(outputs: list[Completion]) -> list[float]:
    found = [one.score for one in outputs if one.score is not None]
    assert len(found) == len(outputs)
    return found


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"beam_search": BeamSearch(beam_width=4, early_stopping=True), "n": 2},
        {"beam_search": BeamSearch(beam_width=4, early_stopping="never"), "n": 4},
        {
            "beam_search": BeamSearch(
                beam_width=4, num_beam_groups=2, diversity_penalty=2.0
            )
        },
        {"repetition_penalty": 1.3, "bad_words": ["king", "old"], "min_tokens": 4},
        {"ignore_eos": True, "stop_token_ids": [30], "logit_bias": {30: 3.0}},
    ],
    ids=lambda words: "-".join(words) or "plain",
)
def test_outputs_are_those_of_beam_search(llm: LLM, words: dict[str, Any]):
    params = dataclasses.replace(SEARCH, **words)
    (output,) = llm.generate(STORY, params)
    (found,) = llm.beam_search(STORY, flat(params))
    assert len(output.outputs) == params.n
    check_same(output, found)
    assert scores(output.outputs) == sorted(scores(output.outputs), reverse=True)


def test_searches_of_several_widths_beside_draws_are_as_each_alone(llm: LLM):
    prompts = [FOX, STORY, STORY, [5, 6, 7]]
    params = [SEEDED, SEARCH, GREEDY, SMALL]
    together = llm.generate(prompts, params)
    assert [output.index for output in together] == [0, 1, 2, 3]
    assert [len(output.outputs) for output in together] == [2, 3, 1, 1]
    for output, prompt, one in zip(together, prompts, params, strict=True):
        (alone,) = llm.generate([prompt], one)
        assert [each.token_ids for each in output.outputs] == [
            each.token_ids for each in alone.outputs
        ]
        assert [each.text for each in output.outputs] == [
            each.text for each in alone.outputs
        ]
        assert [each.score for each in output.outputs] == pytest.approx(
            [each.score for each in alone.outputs]
        )
        assert output.finished
    assert [one.score for one in together[0].outputs] == [None, None]
    searched = llm.beam_search([STORY, [5, 6, 7]], [flat(SEARCH), flat(SMALL)])
    check_same(together[1], searched[0])
    check_same(together[3], searched[1])
    pool = llm.engine.scheduler.pool
    assert pool.num_free == pool.num_pages


def test_the_best_of_more_beams_than_outputs(llm: LLM):
    (all_three,) = llm.generate(STORY, SEARCH)
    (best,) = llm.generate(STORY, dataclasses.replace(SEARCH, n=1))
    assert len(best.outputs) == 1
    assert best.token_ids == all_three.token_ids
    assert best.metrics.num_generation_tokens == len(best.token_ids)


def test_log_probabilities(llm: LLM):
    params = dataclasses.replace(SEARCH, logprobs=2)
    (output,) = llm.generate(STORY, params)
    (found,) = llm.beam_search(STORY, flat(params))
    check_same(output, found)
    penalty = 0.5
    for one, sequence in zip(output.outputs, found.sequences, strict=True):
        assert one.logprobs is not None
        assert sequence.logprobs is not None
        tops = [len(logprob.top) for logprob in one.logprobs]
        assert tops == [2] * len(one.token_ids)
        assert [logprob.logprob for logprob in one.logprobs] == pytest.approx(
            [logprob.logprob for logprob in sequence.logprobs]
        )
        # Nothing biases this search, so that its score is of the model's own numbers.
        assert one.cumulative_logprob is not None
        assert one.score == pytest.approx(
            one.cumulative_logprob / len(one.token_ids) ** penalty, rel=1e-4
        )


def test_stop_strings(llm: LLM):
    (free,) = llm.generate(STORY, SEARCH)
    assert free.text is not None
    word = free.text.split()[1]
    params = dataclasses.replace(SEARCH, stop=[word])
    (output,) = llm.generate(STORY, params)
    (found,) = llm.beam_search(STORY, flat(params))
    check_same(output, found)
    stopped = [one for one in output.outputs if one.stop_reason == word]
    assert stopped
    assert all(one.finish_reason == "stop" for one in stopped)
    assert all(word not in (one.text or "") for one in output.outputs)


def test_a_form(llm: LLM):
    form = StructuredOutputs(choice=[" a fox", " a king", " an owl"])
    params = dataclasses.replace(SEARCH, structured_outputs=form)
    (output,) = llm.generate(STORY, params)
    (found,) = llm.beam_search(STORY, flat(params))
    check_same(output, found)
    texts = [one.text for one in output.outputs]
    assert sorted(str(text) for text in texts) == [" a fox", " a king", " an owl"]


def test_fewer_outputs_than_were_asked_for_have_no_score(llm: LLM):
    """Two tokens that may come once make two outputs."""
    params = dataclasses.replace(SEARCH, max_tokens=1, allowed_token_ids=[40, 41])
    (output,) = llm.generate(STORY, params)
    (found,) = llm.beam_search(STORY, flat(params))
    assert len(found.sequences) == 2
    first, second, none = output.outputs
    tokens = [one.token_ids for one in found.sequences]
    assert [first.token_ids, second.token_ids] == tokens
    assert (none.token_ids, none.text, none.score) == ([], "", None)
    assert output.finished


def test_streams_bring_what_generate_gives(llm: LLM):
    prompts, params = [FOX, STORY], [SEEDED, dataclasses.replace(SEARCH, logprobs=0)]
    outputs = llm.generate(prompts, params)
    assert scores(outputs[1].outputs)
    chunks = [*llm.stream(prompts, params)]
    for output in outputs:
        own = [chunk for chunk in chunks if chunk.index == output.index]
        assert [chunk.finished for chunk in own] == [False] * (len(own) - 1) + [True]
        check_joined(own, output.outputs)


def check_joined(chunks: list[Chunk], outputs: list[Completion]) -> None:
    """Chunks of one prompt, put together."""
    joined = [
        Completion(
            one.index, text="", logprobs=None if one.logprobs is None else list[Any]()
        )
        for one in outputs
    ]
    for chunk in chunks:
        joined[chunk.sample].add(chunk)
        assert [one.score for one in chunk.outputs] == [chunk.score]
    assert [one.token_ids for one in joined] == [one.token_ids for one in outputs]
    assert [one.text for one in joined] == [one.text for one in outputs]
    assert [one.score for one in joined] == pytest.approx(
        [one.score for one in outputs]
    )
    assert all(one.finished() for one in joined)
    for mine, theirs in zip(joined, outputs, strict=True):
        assert (mine.logprobs is None) == (theirs.logprobs is None)
        assert len(mine.logprobs or ()) == len(theirs.logprobs or ())


def test_chats(llm: LLM):
    message = {"role": "user", "content": STORY}
    (output,) = llm.chat([message], SEARCH)
    (found,) = llm.beam_search(
        {"prompt_token_ids": output.prompt_token_ids}, flat(SEARCH)
    )
    check_same(output, found)


def test_a_search_that_a_model_recommends():
    """What nobody says otherwise: the defaults are let in as any are."""
    search = BeamSearch(beam_width=2)
    own = LLM(
        max_model_len=32,
        max_num_seqs=2,
        override_generation_config={"beam_search": search, "max_tokens": 4, "n": 2},
    )
    (output,) = own.generate(FOX)
    params = BeamSearchParams(beam_width=2, max_tokens=4)
    check_same(output, own.beam_search(FOX, params)[0])


def test_a_search_that_fails_says_why_of_each_output():
    own = LLM(max_model_len=32, max_num_seqs=4)
    programs = own.loaded.engine.executor.programs
    programs._weights = tuple(one * jnp.nan for one in programs._weights)
    search = SamplingParams(n=2, beam_search=BeamSearch(beam_width=3))
    (output,) = own.generate(FOX, search)
    (found,) = own.beam_search(FOX, flat(search))
    assert found.failure is not None
    for one in output.outputs:
        assert (one.finish_reason, one.failure) == ("error", found.failure)
        assert (one.token_ids, one.score) == ([], None)


@pytest.mark.parametrize(
    "words",
    [
        {"min_tokens": 3, "stop_token_ids": [40], "allowed_token_ids": [40]},
        {
            "structured_outputs": StructuredOutputs(choice=["x", "y"]),
            "allowed_token_ids": [5],
        },
        {"stop": ["a"], "allowed_token_ids": [40], "bad_words": [[40]]},
    ],
)
def test_a_search_that_finds_nothing_at_all_has_failed(llm: LLM, words: dict[str, Any]):
    params = dataclasses.replace(SEARCH, logprobs=1, **words)
    (output,) = llm.generate(FOX, params)
    (found,) = llm.beam_search(FOX, flat(params))
    assert found.failure is not None and found.sequences == []
    assert found.failure.code == "nothing_found"
    assert "allowed_token_ids" in found.failure.message
    assert len(output.outputs) == 3
    for one in output.outputs:
        assert (one.finish_reason, one.failure) == ("error", found.failure)
        assert (one.token_ids, one.logprobs, one.score) == ([], [], None)
    assert not llm.engine.has_work


@pytest.mark.parametrize("early", [False, True, "never"])
def test_what_is_not_there_is_never_better_than_what_is_found(llm: LLM, early: Any):
    """With the longest outputs that a penalty allows; each has one or more to find."""
    only: dict[str, Any] = {"allowed_token_ids": [40], "stop_token_ids": [40]}
    asked: list[dict[str, Any]] = [
        {"length_penalty": 6.0, "max_tokens": 17} | only,
        {"length_penalty": 10.0, "max_tokens": 5} | only,
        {"length_penalty": -10.0, "max_tokens": 4},
        {"length_penalty": -5.0, "max_tokens": 17},
    ]
    for words in asked:
        params = BeamSearchParams(
            beam_width=3, ignore_eos=True, early_stopping=early, **words
        )
        (found,) = llm.beam_search(FOX, params)
        assert found.failure is None
        tokens = [one.token_ids for one in found.sequences]
        if "allowed_token_ids" in words:
            assert tokens == [[40]]
        else:
            assert [*map(len, tokens)] == [words["max_tokens"]] * 3


def test_what_an_engine_refuses_of_searches(llm: LLM):
    wide = dataclasses.replace(SEARCH, beam_search=BeamSearch(beam_width=5))
    for ask in (llm.generate, llm.stream):
        with pytest.raises(
            RequestError, match="beam_width is 5, but max_num_seqs is 4"
        ):
            ask([FOX, STORY], [GREEDY, wide])
    assert not llm.engine.has_work


@pytest.mark.parametrize("params", [SEARCH, SMALL])
def test_engines_take_them_too(llm: LLM, params: SamplingParams):
    """Whoever goes around an `LLM` has no sampled output instead."""
    request = llm.engine.request(0, [5, 6, 7], params)
    assert request.beams == flat(params)
    assert request.num_rows == flat(params).beam_width


@pytest.fixture(scope="module")
def served() -> Iterator[AsyncLLM]:
    own = AsyncLLM.from_model(max_model_len=64, max_num_seqs=4)
    yield own
    own.close()


@pytest.mark.anyio
async def test_async_llm(served: AsyncLLM, llm: LLM):
    (expected,) = llm.generate(STORY, SEARCH)
    chunks = [chunk async for chunk in served.generate(STORY, SEARCH)]
    assert [chunk.sample for chunk in chunks] == [0, 1, 2]
    assert [chunk.finished for chunk in chunks] == [False, False, True]
    check_joined(chunks, expected.outputs)


@pytest.mark.anyio
async def test_streams_of_async_llm(served: AsyncLLM, llm: LLM):
    """`start` is what the server asks."""
    expected = llm.generate([STORY, FOX], SEARCH)
    streams = await served.start([STORY, FOX], SEARCH)
    assert len(streams) == 6
    chunks = [[chunk async for chunk in stream] for stream in streams]
    for place, output in enumerate(expected):
        own = chunks[3 * place : 3 * place + 3]
        check_joined([chunk for one in own for chunk in one], output.outputs)
