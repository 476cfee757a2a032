"""Calls of vLLM's offline examples, with the import replaced, on the shipped model."""

import asyncio
from typing import Any

import pytest

import fdjax
from fdjax import LLM, AsyncLLM, SamplingParams

PROMPTS = [
    "Hello, my name is",
    "The king of the land is",
    "Once upon a time",
    "The future of the fox is",
]
SMALL: dict[str, Any] = {"max_model_len": 128, "max_num_seqs": 4}


def test_basic(llm: LLM):
    params = SamplingParams(temperature=0.8, top_p=0.95)
    outputs = llm.generate(PROMPTS, params)
    for given, output in zip(PROMPTS, outputs, strict=True):
        assert output.prompt == given
        assert output.outputs[0].text
        assert output.finished


def test_generate_with_the_model_s_own_parameters(llm: LLM):
    params = llm.get_default_sampling_params()
    assert params == SamplingParams()
    assert len(llm.generate(PROMPTS, params)) == len(llm.generate(PROMPTS)) == 4


def test_chat(llm: LLM):
    conversation = [
        {"role": "system", "content": "You are a teller of tales"},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello! How can I assist you today?"},
        {"role": "user", "content": "Write a tale about a fox"},
    ]
    (output,) = llm.chat(conversation, SamplingParams(max_tokens=8), use_tqdm=False)
    assert output.outputs[0].text
    conversations = [conversation for _ in range(3)]
    assert len(llm.chat(conversations, SamplingParams(max_tokens=8))) == 3


def test_prompts_of_token_ids(llm: LLM):
    tokenizer = llm.get_tokenizer()
    prompts = [{"prompt_token_ids": tokenizer.encode(text)} for text in PROMPTS]
    params = SamplingParams(temperature=0.0)
    by_ids = llm.generate(prompts, params, use_tqdm=False)  # pyright: ignore[reportArgumentType]  (dict, as vLLM's examples have it)
    by_text = llm.generate(PROMPTS, params, use_tqdm=False)
    assert [o.outputs[0].text for o in by_ids] == [o.outputs[0].text for o in by_text]


def test_prefix_caching():
    prefix = "Once upon a time there was a king who had three sons, and the youngest "
    prompts = [prefix + text for text in ("was called", "went to", "had a")]
    params = SamplingParams(temperature=0.0, max_tokens=4)
    plain = LLM(enable_prefix_caching=False, gpu_memory_utilization=0.4, **SMALL)
    regular = plain.generate(prompts, params)
    assert [output.num_cached_tokens for output in regular] == [0, 0, 0]
    cached = LLM(enable_prefix_caching=True, gpu_memory_utilization=0.4, **SMALL)
    cached.generate(prompts[0], params)
    outputs = cached.generate(prompts, params)
    assert all(output.num_cached_tokens for output in outputs)
    texts = [[o.outputs[0].text for o in many] for many in (regular, outputs)]
    assert texts[0] == texts[1]
    assert cached.reset_prefix_cache()
    (again,) = cached.generate(prompts[0], params)
    assert again.num_cached_tokens == 0


def test_structured_outputs(llm: LLM):
    pytest.importorskip("llguidance")
    form = fdjax.StructuredOutputs(choice=["Positive", "Negative"])
    params = SamplingParams(structured_outputs=form, max_tokens=16)
    (output,) = llm.generate("Classify this sentiment: tales are wonderful!", params)
    assert output.outputs[0].text in ("Positive", "Negative")


def test_logprobs_and_stops(llm: LLM):
    params = SamplingParams(
        n=2, logprobs=1, stop=["."], max_tokens=32, bad_words=["the"], seed=3
    )
    (output,) = llm.generate(prompts=PROMPTS[2], sampling_params=params)
    for sample in output.outputs:
        assert sample.logprobs is not None
        assert len(sample.logprobs) == len(sample.token_ids)
        assert sample.cumulative_logprob is not None
        assert " the " not in (sample.text or "")
        if sample.finish_reason == "stop":
            assert sample.stop_reason == "."


def test_async_llm_streaming():
    async def main() -> str:
        engine = AsyncLLM.from_model(gpu_memory_utilization=0.4, **SMALL)
        params = SamplingParams(max_tokens=12, temperature=0.8, top_p=0.95, seed=42)
        text = ""
        try:
            async for chunk in engine.generate(
                request_id="stream-1", prompt=PROMPTS[2], sampling_params=params
            ):
                assert chunk.request_id == "stream-1"
                text += chunk.text or ""
        finally:
            engine.close()
        return text

    assert asyncio.run(main())
