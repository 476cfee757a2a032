"""`LLM`: several samples of a prompt, requests that stop early, and what is shown."""

import dataclasses
from typing import Any

import pytest

from fdjax import LLM, RequestError, SamplingParams

STORY = "Once upon a time"
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
SEEDED = SamplingParams(max_tokens=12, seed=5, n=3)


def test_samples_draw_with_seeds_of_their_own(llm: LLM):
    outputs = llm.generate([STORY, "The fox"], [SEEDED, GREEDY])
    assert [len(output.outputs) for output in outputs] == [3, 1]
    alone = [dataclasses.replace(SEEDED, n=1, seed=seed) for seed in (5, 6, 7)]
    singles = llm.generate([STORY] * 3, alone)
    samples = outputs[0].outputs
    assert [s.token_ids for s in samples] == [one.token_ids for one in singles]
    assert [s.text for s in samples] == [one.text for one in singles]
    assert [s.index for s in samples] == [0, 1, 2]
    assert len({tuple(s.token_ids) for s in samples}) == 3


def test_the_first_sample_stands_for_the_prompt(llm: LLM):
    (output,) = llm.generate(STORY, SEEDED)
    first = output.outputs[0]
    assert (output.text, output.token_ids) == (first.text, first.token_ids)
    assert (output.logprobs, output.finish_reason) == (None, "length")


def test_samples_without_a_seed_differ(llm: LLM):
    (output,) = llm.generate(STORY, SamplingParams(max_tokens=12, n=4))
    assert len({tuple(sample.token_ids) for sample in output.outputs}) > 1


def test_a_stream_says_whose_sample_a_chunk_is(llm: LLM):
    (output,) = llm.generate(STORY, SEEDED)
    texts = ["", "", ""]
    for chunk in llm.stream(STORY, SEEDED):
        texts[chunk.sample] += chunk.text or ""
    assert texts == [sample.text for sample in output.outputs]


@pytest.mark.parametrize("n", [0, -1, 16385, 1.5, True])
def test_a_number_of_samples_is_checked(n: Any):
    with pytest.raises(RequestError, match=r"n is .*"):
        SamplingParams(n=n)


def test_a_stop_string_ends_the_request_in_the_engine(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
):
    steps: list[int] = []
    step = llm.engine.step

    def counted() -> Any:
        steps.append(1)
        return step()

    (whole,) = llm.generate(STORY, GREEDY)
    assert whole.text is not None
    params = SamplingParams(temperature=0.0, max_tokens=110, stop=whole.text[1:5])
    monkeypatch.setattr(llm.engine, "step", counted)
    (stopped,) = llm.generate(STORY, params)
    # A prefill, one launch of eight tokens, and one that was under way.
    assert sum(steps) <= 4
    assert (stopped.text, stopped.finish_reason) == (whole.text[:1], "stop")
    pool = llm.engine.scheduler.pool
    assert pool.num_free == pool.num_pages
    assert not llm.engine.scheduler.running


def test_progress_writes_nothing_where_there_is_no_terminal(
    llm: LLM, capsys: pytest.CaptureFixture[str]
):
    without = llm.generate(STORY, GREEDY)
    shown = llm.generate(STORY, GREEDY, progress=True)
    assert shown == without
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_warm_up_says_how_many_programs_and_seconds(
    llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def warm_up(params: Any, *, on_progress: Any) -> int:
        for done in range(3):
            if on_progress is not None:
                on_progress(done, 2)
        return 2

    monkeypatch.setattr(llm.engine, "warm_up", warm_up)
    assert llm.warm_up() == 2
    assert capsys.readouterr().err == ""
    assert llm.warm_up([GREEDY], progress=True) == 2
    assert "[2 programs ready after " in capsys.readouterr().err
