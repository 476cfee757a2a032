"""Text and token ids, and what a chat becomes."""

import json
import pathlib
import shutil

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from fdjax import ConfigError
from fdjax.models import SHIPPED, resolve
from fdjax.serve.tokenizer import (
    FastTokenizer,
    SlowTokenizer,
    chat_prompt,
    chat_token_ids,
    load_tokenizer,
)

TALES = resolve(SHIPPED)
TEXT = "The fox (a ☃ and 火) said: “No!”"
USER = {"role": "user", "content": "Hello"}
TEMPLATE = (
    "<s>{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture(params=[FastTokenizer, SlowTokenizer])
def tokenizer(request: pytest.FixtureRequest) -> FastTokenizer | SlowTokenizer:
    if request.param is FastTokenizer:
        return FastTokenizer(TALES / "tokenizer.json")
    return SlowTokenizer(TALES)


def test_text_comes_back(tokenizer: FastTokenizer | SlowTokenizer):
    token_ids = tokenizer.encode(TEXT)
    assert token_ids[0] == 0, "a prompt begins with <s>"
    assert tokenizer.encode_plain(TEXT) == token_ids[1:]
    assert tokenizer.decode(token_ids) == TEXT


def test_streamed_text_comes_back_character_by_character(
    tokenizer: FastTokenizer | SlowTokenizer,
):
    prompt, token_ids = tokenizer.encode("Once"), tokenizer.encode_plain(TEXT)
    to_text = tokenizer.stream(prompt)
    pieces = [to_text(token) for token in token_ids]
    assert "".join(pieces) == TEXT
    assert not any("\ufffd" in piece for piece in pieces)
    assert "" in pieces, "some character takes several tokens"


def test_single_tokens_are_pieces_of_the_text(
    tokenizer: FastTokenizer | SlowTokenizer,
):
    text = " upon a time there was a fox"
    token_ids = tokenizer.encode_plain(text)
    assert "".join(map(tokenizer.piece, token_ids)) == text
    assert tokenizer.piece(0) == "<s>"


def test_a_word_after_the_prompt_keeps_its_space(tmp_path: pathlib.Path):
    """Llama 2's tokenizer drops the space before the first word of a text."""
    vocabulary = [("<unk>", 0.0), ("▁Once", -1.0), ("▁upon", -1.0), ("▁a", -1.0)]
    tokenizer = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))

    loaded = load_tokenizer(tmp_path)
    assert loaded is not None
    to_text = loaded.stream(loaded.encode("Once"))
    assert [to_text(token) for token in loaded.encode("upon a")] == [" upon", " a"]
    assert [loaded.piece(token) for token in loaded.encode("upon a")] == [" upon", " a"]


def test_no_tokenizer_files_mean_no_tokenizer(tmp_path: pathlib.Path):
    assert load_tokenizer(tmp_path) is None


def test_a_broken_tokenizer_is_named(tmp_path: pathlib.Path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"cannot be read .* give prompts as token"):
        load_tokenizer(tmp_path)


def test_a_base_model_reads_the_messages_as_text():
    tokenizer = FastTokenizer(TALES / "tokenizer.json")
    messages = [USER, {"role": "assistant", "content": "Good day"}]
    assert chat_prompt(TALES, messages) == "Hello\nGood day"
    expected = tokenizer.encode("Hello\nGood day")
    assert chat_token_ids(TALES, tokenizer, messages) == expected


def test_a_template_writes_its_own_special_tokens(tmp_path: pathlib.Path):
    folder = tmp_path / "model"
    shutil.copytree(TALES, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config | {"chat_template": TEMPLATE})
    )
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    assert chat_prompt(folder, [USER]) == "<s>user: Hello\nassistant:"
    token_ids = chat_token_ids(folder, tokenizer, [USER])
    assert token_ids.count(0) == 1, "<s> once: the template's own"
