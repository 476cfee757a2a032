"""`LLM`: prompts of every sort, and those that are refused."""

import shutil
from typing import Any

import pytest

from fdjax import LLM, RequestError, SamplingParams
from fdjax.models import SHIPPED, resolve

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
STORY = "Once upon a time"
PROMPTS = (STORY, "The king said", "In the wood there was an old", "A")


@pytest.fixture(scope="module")
def alone(llm: LLM) -> list[list[int]]:
    """What each prompt gives by itself."""
    return [llm.generate(prompt, GREEDY)[0].token_ids for prompt in PROMPTS]


def ids(llm: LLM, text: str) -> list[int]:
    assert llm.tokenizer is not None
    return llm.tokenizer.encode(text)


def test_prompts_as_vllm_takes_them(llm: LLM, alone: list[list[int]]):
    (one,) = llm.generate({"prompt_token_ids": ids(llm, STORY)}, GREEDY)
    assert (one.token_ids, one.prompt) == (alone[0], None)
    (two,) = llm.generate({"prompt": STORY}, GREEDY)
    assert (two.token_ids, two.prompt) == (alone[0], STORY)
    mixed: list[Any] = [
        {"prompt": PROMPTS[0]},
        PROMPTS[1],
        {"prompt_token_ids": ids(llm, PROMPTS[2])},
    ]
    outputs = llm.generate(mixed, GREEDY)
    assert [output.token_ids for output in outputs] == alone[:3]


def test_a_mapping_is_one_prompt_and_no_list_of_its_names(llm: LLM):
    with pytest.raises(RequestError, match="prompt 0 is a mapping"):
        llm.generate({"text": STORY}, GREEDY)  # pyright: ignore[reportArgumentType]  (refused)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "prompt 1 is empty"),
        ([5000], "names token 5000"),
        ("word " * 200, "but max_model_len is 128"),
        (None, "prompt 1 is None"),
        (3.5, "prompt 1 is 3.5"),
        ([1.5], "give a text or a sequence of token ids"),
        (["1"], "give a text or a sequence of token ids"),
        ({"input_ids": [5]}, "prompt 1 is a mapping with .*'input_ids'"),
        ({"prompt": STORY, "cache_salt": "x"}, "and nothing else"),
        ({"prompt": [5]}, "give {'prompt': a text} or {'prompt_token_ids': token ids}"),
        ({"prompt_token_ids": "text"}, "prompt 1 is a mapping"),
        ({"prompt_token_ids": {5: 6}}, "prompt 1 is a mapping"),
        ({"prompt_token_ids": ["1"]}, "give a text or a sequence of token ids"),
        ({}, "prompt 1 is a mapping"),
    ],
)
def test_one_bad_prompt_refuses_all_before_anything_runs(
    llm: LLM,
    alone: list[list[int]],
    prompt: Any,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
):
    with monkeypatch.context() as nothing_runs:
        nothing_runs.setattr(llm.engine, "add", pytest.fail)
        with pytest.raises(RequestError, match=message):
            llm.generate([STORY, prompt, STORY], GREEDY)
        with pytest.raises(RequestError, match=message):
            llm.stream([STORY, prompt], GREEDY)
    assert llm.generate(STORY, GREEDY)[0].token_ids == alone[0]


def test_an_empty_text_is_a_beginning(llm: LLM):
    (output,) = llm.generate("", GREEDY)
    assert output.prompt_token_ids == (0,), "the tokenizer begins every text with <s>"


@pytest.fixture(scope="module")
def without_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = tmp_path_factory.mktemp("ids") / "model"
    shutil.copytree(resolve(SHIPPED), folder)
    (folder / "tokenizer.json").unlink()
    return LLM(folder, max_model_len=64, max_num_seqs=1)


def test_a_model_without_a_tokenizer_serves_token_ids(
    without_tokenizer: LLM, llm: LLM, alone: list[list[int]]
):
    assert without_tokenizer.tokenizer is None
    (output,) = without_tokenizer.generate(ids(llm, STORY), GREEDY)
    assert output.text is None
    assert output.token_ids == alone[0]
    assert all(c.text is None for c in without_tokenizer.stream([0, 5], GREEDY))


def test_a_model_without_a_tokenizer_refuses_text(without_tokenizer: LLM):
    with pytest.raises(RequestError, match="has no tokenizer; give token ids") as info:
        without_tokenizer.generate([[0, 5], STORY])
    assert "prompt 1 is text" in str(info.value)
