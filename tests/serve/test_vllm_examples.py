"""Calls of vLLM's offline examples, with the import replaced, on the shipped model."""

import asyncio
import pathlib
import re
import shutil
from typing import Any

import pytest

import fdjax
from fdjax import LLM, AsyncLLM, SamplingParams
from fdjax.models.source import SHIPPED, resolve
from fdjax.serve.chats import Chats

PROMPTS = [
    "Hello, my name is",
    "The king of the land is",
    "Once upon a time",
    "The future of the fox is",
]
SMALL: dict[str, Any] = {"max_model_len": 128, "max_num_seqs": 4}


def test_basic(llm: LLM):
    params = SamplingParams(temperature=0.8, top_p=0.95, seed=1)
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
    (output,) = llm.chat(
        conversation, SamplingParams(max_tokens=8, seed=1), use_tqdm=False
    )
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


FORMS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"choice": ["Positive", "Negative"]}, {}, r"Positive|Negative"),
    ({"regex": r"[a-z]{2,8}@[a-z]{2,8}\.com\n"}, {"stop": ["\n"]}, r"\w+@\w+\.com"),
    (
        {
            "json": {
                "type": "object",
                "properties": {"legs": {"enum": [2, 4]}},
                "required": ["legs"],
                "additionalProperties": False,
            }
        },
        {},
        r'\{"legs":[24]\}',
    ),
    (
        {
            "grammar": """
root ::= select_statement
select_statement ::= "SELECT " column " from " table
column ::= "col_1" | "col_2"
table ::= "table_1" | "table_2"
"""
        },
        {},
        r"SELECT col_[12] from table_[12]",
    ),
]


@pytest.mark.parametrize(("form", "more", "pattern"), FORMS, ids=str)
def test_structured_outputs(
    llm: LLM, form: dict[str, Any], more: dict[str, Any], pattern: str
):
    pytest.importorskip("llguidance")
    structured = fdjax.StructuredOutputs(**form)
    params = SamplingParams(structured_outputs=structured, max_tokens=48, **more)
    (output,) = llm.generate(prompts=PROMPTS[0], sampling_params=params)
    assert re.fullmatch(pattern, output.outputs[0].text or ""), output.outputs[0].text


def test_embed_and_score(llm: LLM):
    outputs = llm.embed(PROMPTS)
    for given, output in zip(PROMPTS, outputs, strict=True):
        assert output.prompt == given
        embeds = output.outputs.embedding
        assert len(embeds) == llm.config.hidden_size > len(embeds[:16])
    pairs = ["The fox is in the wood.", "Hello, my name is"]
    scores = [one.outputs.score for one in llm.score(PROMPTS[0], pairs)]
    assert scores[0] < scores[1] == pytest.approx(1)


def test_chat_with_tools(
    llm: LLM, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("transformers")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(resolve(SHIPPED) / name, tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        "{{ tools | tojson }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n"
        "{% endfor %}"
    )
    monkeypatch.setattr(llm, "_chats", Chats(tmp_path, llm.get_tokenizer()))
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    function = {"name": "get_current_weather", "parameters": parameters}
    tools = [{"type": "function", "function": function}]
    messages = [{"role": "user", "content": "How warm is it in Dallas?"}]
    params = SamplingParams(max_tokens=4, temperature=0.0)
    outputs = llm.chat(messages, sampling_params=params, tools=tools)
    assert "get_current_weather" in (outputs[0].prompt or "")
    text = (outputs[0].outputs[0].text or "").strip()
    messages.append({"role": "assistant", "content": text})
    messages.append({"role": "tool", "content": "85 degrees", "tool_call_id": "a1"})
    (answer,) = llm.chat(messages, params, tools=tools)
    assert "tool: 85 degrees" in (answer.prompt or "")
    messages.append({"role": "assistant", "content": "It is"})
    (answer,) = llm.chat(
        messages, params, add_generation_prompt=False, continue_final_message=True
    )
    assert (answer.prompt or "").endswith("assistant: It is")


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


def test_async_llm_streaming(llm: LLM):
    async def main() -> list[str]:
        engine = AsyncLLM.from_model(gpu_memory_utilization=0.4, **SMALL)
        params = SamplingParams(max_tokens=12, n=2, temperature=0.8, seed=42)
        texts, ends = ["", ""], list[bool]()
        try:
            async for output in engine.generate(
                request_id="stream-1", prompt=PROMPTS[2], sampling_params=params
            ):
                assert output.request_id == "stream-1"
                ends.append(output.finished)
                for completion in output.outputs:
                    texts[completion.index] += completion.text or ""
                if output.finished:
                    break
        finally:
            engine.shutdown()
        assert ends == [*[False] * (len(ends) - 1), True]
        assert not engine.is_running
        return texts

    params = SamplingParams(max_tokens=12, n=2, temperature=0.8, seed=42)
    (whole,) = llm.generate(PROMPTS[2], params)
    assert asyncio.run(main()) == [one.text for one in whole.outputs]
    ends = [chunk.finished for chunk in llm.stream(PROMPTS[:2], params)]
    assert sum(ends) == 2 and ends[-1]
