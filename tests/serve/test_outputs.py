"""What `LLM` returns: whose request it was, how it ended, when it ran."""

import math

import pytest

from fdjax import LLM, Chunk, SamplingParams
from fdjax.serve.outputs import Completion, Metrics, Output

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
STORY = "Once upon a time"


def test_requests_are_counted_over_all_calls(llm: LLM):
    first, second = llm.generate([STORY, STORY], GREEDY)
    (third,) = llm.generate(STORY, GREEDY)
    ids = [int(output.request_id) for output in (first, second, third)]
    assert ids == [ids[0], ids[0] + 1, ids[0] + 2]
    chunks = list(llm.stream([STORY, "A fox"], GREEDY))
    assert {int(chunk.request_id or -1) for chunk in chunks} == {ids[2] + 1, ids[2] + 2}


def test_an_output_is_finished_when_all_its_samples_are():
    done, left = Completion(0, finish_reason="stop"), Completion(1)
    output = Output(0, None, (5,), [done, left])
    assert (done.finished(), left.finished(), output.finished) == (True, False, False)
    left.add(Chunk(0, [7], None, "length"))
    assert output.finished


def test_the_logprob_of_all_tokens(llm: LLM):
    (output,) = llm.generate(STORY, SamplingParams(logprobs=0, max_tokens=5, seed=1))
    (sample,) = output.outputs
    assert sample.logprobs is not None
    total = sum(one.logprob for one in sample.logprobs)
    assert sample.cumulative_logprob == pytest.approx(total)
    (without,) = llm.generate(STORY, GREEDY)
    assert without.outputs[0].cumulative_logprob is None


def test_logprobs_of_a_prompt(llm: LLM):
    params = SamplingParams(prompt_logprobs=0, max_tokens=3, n=2, seed=1)
    (output,) = llm.generate(STORY, params)
    assert output.prompt_logprobs is not None
    first, *others = output.prompt_logprobs
    assert first is None
    assert len(others) == len(output.prompt_token_ids) - 1
    assert all(one is not None and one.logprob < 0 and not one.top for one in others)
    (without,) = llm.generate(STORY, GREEDY)
    assert without.prompt_logprobs is None
    (short,) = llm.generate([0], params)
    assert short.prompt_logprobs == [None]


def test_what_stopped_it(llm: LLM):
    (free,) = llm.generate(STORY, GREEDY)
    token = free.token_ids[3]
    assert free.outputs[0].stop_reason is None
    by_token = SamplingParams(temperature=0.0, stop_token_ids=[token])
    by_text = SamplingParams(temperature=0.0, stop=["zebra", (free.text or "")[5:9]])
    ended, cut = llm.generate([STORY, STORY], [by_token, by_text])
    assert ended.outputs[0].stop_reason == token
    assert cut.outputs[0].stop_reason == (free.text or "")[5:9]


def test_tokens_that_were_there_already_are_counted(llm: LLM):
    llm.engine.scheduler.pool.forget()
    prompt = "There was once a very old king who lived in a castle by the deep sea"
    (cold,) = llm.generate(prompt, GREEDY)
    (warm,) = llm.generate(prompt, GREEDY)
    page_size = llm.engine.plan.layout.page_size
    assert len(cold.prompt_token_ids) > page_size
    assert cold.num_cached_tokens == 0
    full_pages = (len(cold.prompt_token_ids) - 1) // page_size
    assert warm.num_cached_tokens == full_pages * page_size
    assert warm.token_ids == cold.token_ids


def test_times_are_in_their_order(llm: LLM):
    (output,) = llm.generate(STORY, SamplingParams(n=2, max_tokens=9))
    metrics = output.metrics
    assert metrics.num_generation_tokens == sum(
        len(s.token_ids) for s in output.outputs
    )
    times = (
        metrics.queued_ts,
        metrics.scheduled_ts or math.nan,
        metrics.first_token_ts or math.nan,
        metrics.last_token_ts or math.nan,
    )
    assert list(times) == sorted(times)
    assert metrics.first_token_latency == times[2] - times[0]


def test_times_of_what_has_made_nothing():
    metrics = Metrics()
    metrics.add(0, scheduled_ts=3.0)
    assert (metrics.scheduled_ts, metrics.first_token_ts) == (3.0, None)
    assert metrics.first_token_latency is None
