"""Text and token ids, and what a chat becomes."""

import json
import pathlib
import random
import re
import sys

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers
from transformers import ByT5Tokenizer

from fdjax import ConfigError, RequestError
from fdjax.errors import to_install
from fdjax.models import SHIPPED, resolve
from fdjax.serve.chat_template import ChatTemplate
from fdjax.serve.tokenizer import (
    FastTokenizer,
    SlowTokenizer,
    Tokenizer,
    load_tokenizer,
    tokenised,
)

TALES = resolve(SHIPPED)
TEXT = "The fox (a ☃ and 火) said: “No!”"


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


def streamed(
    tokenizer: Tokenizer, prompt: list[int], token_ids: list[int]
) -> list[str]:
    """The text of each token, and of the end."""
    stream = tokenizer.stream(prompt)
    return [*(stream(token) for token in token_ids), stream.rest()]


def test_a_prompt_inside_a_character(tokenizer: FastTokenizer | SlowTokenizer):
    *prompt, last = tokenizer.encode("Once upon a time 中")
    assert streamed(tokenizer, prompt, [last]) == ["中", ""]


def test_any_tokens_make_the_text_of_all(tokenizer: FastTokenizer | SlowTokenizer):
    draw, prompt = random.Random(2), tokenizer.encode("Once")
    broken = [i for i in range(4096) if "\ufffd" in tokenizer.piece(i)]
    assert len(broken) > 100, "bytes that are no characters"
    for kind in (range(4096), [*broken, *range(3)]):
        for _ in range(20):
            token_ids = draw.choices(kind, k=60)
            text = "".join(streamed(tokenizer, prompt, token_ids))
            assert "Once" + text == tokenizer.decode([*prompt, *token_ids])


@pytest.fixture
def fallback(tmp_path: pathlib.Path) -> Tokenizer:
    """Like Llama 2's: bytes have tokens of their own, after which come three words."""
    names = ("<s>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)))
    vocabulary = {name: place for place, name in enumerate((*names, "▁x", "▁", "y"))}
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.add_special_tokens(["<s>", "</s>", "<unk>"])
    space = decoders.Replace("▁", " ")
    tokenizer.decoder = decoders.Sequence(
        [space, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    assert loaded is not None
    return loaded


def in_bytes(text: str) -> list[int]:
    return [3 + byte for byte in text.encode()]


def test_byte_fallback_may_take_back_what_was_shown(fallback: Tokenizer):
    token_ids = [3 + 0x0A, 3 + 0xE4, 259, 259]
    assert fallback.decode(token_ids) == "\ufffd\ufffd x x"
    made = streamed(fallback, [0, 259], token_ids)
    assert made == ["\n", "", "\ufffd x", " x", ""]


def test_byte_fallback_streams_whole_characters(fallback: Tokenizer):
    draw = random.Random(3)
    kinds = [*map(in_bytes, ("中", "🙂", "é", "\n")), [1], [259], [260], [261]]
    for _ in range(200):
        parts = [draw.choice(kinds) for _ in range(40)]
        tokens = [token for part in parts for token in part]
        cut = draw.randrange(1, 30)
        prompt, token_ids = [0, 259, *tokens[:cut]], tokens[cut:]
        made = streamed(fallback, prompt, token_ids)
        whole, before = fallback.decode([*prompt, *token_ids]), fallback.decode(prompt)
        assert not any("\ufffd" in piece for piece in made)
        assert whole.endswith("".join(made))
        if not before.endswith("\ufffd"):
            assert before + "".join(made) == whole


def test_a_tokenizer_of_python_streams(tmp_path: pathlib.Path):
    """ByT5's leaves out bytes that are no character."""
    ByT5Tokenizer().save_pretrained(tmp_path)
    tokenizer = SlowTokenizer(tmp_path)
    assert tokenizer.to_json() is None
    prompt, token_ids = tokenizer.encode_plain("a"), tokenizer.encode_plain("中🙂!")
    expected = ["", "", "中", "", "", "", "🙂", "!", ""]
    assert streamed(tokenizer, prompt, token_ids) == expected
    assert streamed(tokenizer, [*prompt, token_ids[0]], token_ids[1:3])[1] == "中"


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


@pytest.mark.parametrize("package", ["transformers", "jinja2"])
def test_what_needs_transformers_names_the_extra(
    package: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "vocab.json").write_text("{}")
    message = re.escape(f"needs the package {package}; {to_install('chat')}")
    with pytest.raises(ConfigError, match=f"no tokenizer.json, and .* {message}"):
        load_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("a")
    with pytest.raises(ConfigError, match=f"the chat template of .* {message}"):
        ChatTemplate(tmp_path)
    assert load_tokenizer(TALES) is not None


def test_a_broken_tokenizer_is_named(tmp_path: pathlib.Path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"cannot be read .* give prompts as token"):
        load_tokenizer(tmp_path)


def test_no_token_is_longer_than_the_longest(tokenizer: FastTokenizer | SlowTokenizer):
    longest = max(len(tokenizer.piece(i).encode()) for i in range(4096))
    assert longest <= tokenizer.longest_token_bytes <= 2 * longest


def test_a_pattern_that_goes_through_texts_without_end(tmp_path: pathlib.Path):
    """The library panics; what it cannot split is refused, and the rest is not."""
    tokenizer = json.loads((TALES / "tokenizer.json").read_text())
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    pattern = {"pattern": {"Regex": "(a+)+$"}}
    (tmp_path / "tokenizer.json").write_text(
        json.dumps(tokenizer | {"pre_tokenizer": split | pattern})
    )
    loaded = load_tokenizer(tmp_path)
    assert loaded is not None
    with pytest.raises(RequestError, match=r"prompt 3 cannot be tokenised: .*limit"):
        tokenised(loaded.encode, "a" * 40 + "!", "prompt 3")
    assert tokenised(loaded.encode, "once", "prompt 3") == loaded.encode("once")


def test_who_interrupts_is_no_fault_of_the_tokenizer():
    def encode(text: str) -> list[int]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenised(encode, "a", "prompt 0")


@pytest.mark.parametrize("spaces", [False, True])
def test_special_tokens_are_streamed_if_asked_for(
    tokenizer: FastTokenizer | SlowTokenizer, spaces: bool
):
    first, last = tokenizer.encode_plain(" the king")
    stream = tokenizer.stream(
        tokenizer.encode("Once"),
        skip_special_tokens=False,
        spaces_between_special_tokens=spaces,
    )
    name = tokenizer.piece(0)
    pieces = [stream(token) for token in (first, 0, 0, last)]
    assert name == "<s>"
    assert pieces == [tokenizer.piece(first), name, name, tokenizer.piece(last)]


def test_spaces_between_special_tokens(tmp_path: pathlib.Path):
    words = models.WordLevel({"a": 0, "b": 1}, unk_token="a")
    written = tokenizers.Tokenizer(words)  # without a decoder: words with spaces
    written.add_special_tokens(["[S]", "[T]"])
    written.save(str(tmp_path / "tokenizer.json"))
    loaded = FastTokenizer(tmp_path / "tokenizer.json")

    def pieces(**options: bool) -> list[str]:
        stream = loaded.stream([0], **options)
        return [stream(token) for token in (0, 2, 3, 1)]

    assert pieces() == [" a", "", "", " b"]
    assert pieces(skip_special_tokens=False) == [" a", " [S]", " [T]", " b"]
    tight = pieces(skip_special_tokens=False, spaces_between_special_tokens=False)
    assert tight == [" a", " [S]", "[T]", " b"]
