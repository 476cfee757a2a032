"""Chats as `LLM.chat` takes them: what is refused, and what becomes of the rest."""

from typing import Any

import pytest

from fdjax import LLM, RequestError, SamplingParams
from fdjax.models import SHIPPED, resolve
from fdjax.serve.chats import Chats
from fdjax.serve.tokenizer import FastTokenizer

TALES = resolve(SHIPPED)
TOKENIZER = FastTokenizer(TALES / "tokenizer.json")
USER = {"role": "user", "content": "Once upon"}
THEN = {"role": "assistant", "content": "a time"}
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


def test_one_chat_or_several():
    chats = Chats(TALES, TOKENIZER)
    first = {
        "prompt": "Once upon\na time",
        "prompt_token_ids": TOKENIZER.encode("Once upon\na time"),
    }
    second = {"prompt": "a time", "prompt_token_ids": TOKENIZER.encode("a time")}
    assert chats.prompts([USER, THEN]) == [first]
    assert chats.prompts([[USER, THEN], [THEN]]) == [first, second]
    assert chats.prompts([]) == []


def test_parts_of_text_are_one_text():
    parts = [{"type": "text", "text": "Once"}, {"type": "text", "text": "upon"}]
    (prompt,) = Chats(TALES, TOKENIZER).prompts([{"role": "user", "content": parts}])
    assert prompt.get("prompt") == "Once\nupon"


@pytest.mark.parametrize(
    "messages",
    [
        "Once upon",
        USER,
        [[]],
        ["Once upon"],
        [USER, "a time"],
        [[USER], USER],
        [{"role": "user"}],
        [{"role": 3, "content": "a"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
        [{"role": "user", "content": "a", "name": "b"}],
    ],
)
def test_what_is_no_chat_is_refused(messages: Any):
    with pytest.raises(RequestError, match=r"give (\{'role'|a list|at least one)"):
        Chats(TALES, TOKENIZER).prompts(messages)


def test_without_a_tokenizer_there_is_no_chat():
    with pytest.raises(RequestError, match="no tokenizer, and so no chat"):
        Chats(TALES, None).prompts([USER])


def test_a_chat_is_answered(llm: LLM):
    (answer,) = llm.chat([USER, THEN], GREEDY, use_tqdm=False)
    (same,) = llm.generate("Once upon\na time", GREEDY)
    assert (answer.prompt, answer.token_ids) == (same.prompt, same.token_ids)
    both = llm.chat([[USER, THEN], [USER]], GREEDY)
    assert both[0].token_ids == same.token_ids
    assert both[1].prompt == "Once upon"
