"""Tokens made text one by one: the text of all of them, at a bounded cost."""

import random
from collections.abc import Callable, Sequence

import pytest

from fdjax.serve.text_stream import TextStream

# Tokens are pieces of bytes. Those after 255 are special (no text), words, three that
# each end one character and begin another, and U+FFFD itself.
SPECIAL = 256
STRADDLING = "中国人中".encode()
PIECES = (
    *(bytes([byte]) for byte in range(256)),
    b"",
    b" fox",
    "火☃".encode(),
    *(STRADDLING[start : start + 3] for start in (2, 5, 8)),
    "\ufffd".encode(),
)


class Decoder:
    """Decodes, and counts what it costs.

    Attributes:
        most: tokens decoded at once.
        count: calls.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self.most = 0
        self.count = 0

    def __call__(self, token_ids: Sequence[int]) -> str:
        self.most = max(self.most, len(token_ids))
        self.count += 1
        return self._decode(token_ids)


def plain(token_ids: Sequence[int]) -> str:
    """As byte-level tokenizers decode."""
    return b"".join(PIECES[token] for token in token_ids).decode("utf-8", "replace")


def stripping(token_ids: Sequence[int]) -> str:
    """As sentencepiece does: a text does not begin with a space."""
    return plain(token_ids).removeprefix(" ")


def all_or_nothing(token_ids: Sequence[int]) -> str:
    """As byte fallback does: of bytes in a row, all are characters or none is."""
    text, run = "", b""
    for token in (*token_ids, None):
        if token is not None and (token < 256 or token == SPECIAL):
            run += PIECES[token]
            continue
        try:
            text += run.decode()
        except UnicodeDecodeError:
            text += "\ufffd" * len(run)
        text, run = text + ("" if token is None else PIECES[token].decode()), b""
    return text


def forgetting(token_ids: Sequence[int]) -> str:
    """As ByT5 does: bytes that are no character are left out."""
    return b"".join(PIECES[token] for token in token_ids).decode("utf-8", "ignore")


def pieces(
    prompt: Sequence[int],
    output: Sequence[int],
    decode: Callable[[Sequence[int]], str] = plain,
) -> list[str]:
    """The text of each token, and of the end."""
    stream = TextStream(decode, prompt)
    return [*(stream(token) for token in output), stream.rest()]


def ids(text: str) -> list[int]:
    return list(text.encode())


@pytest.mark.parametrize("decode", [plain, stripping])
def test_any_tokens_make_the_text_of_all(decode: Callable[[Sequence[int]], str]):
    draw = random.Random(1)
    tokens = range(len(PIECES))
    for kind in (tokens, tokens[128:], tokens[257:], [0xE4, 0xB8, 0xAD, SPECIAL]):
        for _ in range(300):
            prompt = [*draw.choices(tokens, k=draw.randrange(12)), 257]
            output = draw.choices(kind, k=draw.randrange(80))
            text = "".join(pieces(prompt, output, decode))
            assert decode(prompt) + text == decode([*prompt, *output])


def test_what_a_decoder_takes_back_is_not_shown_again():
    """A bad byte unmakes the character before it, which has been shown."""
    tokens = [*ids("中"), 0xE4, 257, 257]
    assert all_or_nothing(tokens) == "\ufffd\ufffd\ufffd\ufffd fox fox"
    made = pieces([257], tokens, all_or_nothing)
    assert made == ["", "", "中", "", "\ufffd fox", " fox", ""]


def test_bytes_that_are_left_out_are_waited_for():
    assert pieces([257], ids("中!"), forgetting) == ["", "", "中", "!", ""]
    endless = Decoder(forgetting)
    made = pieces([257], [*[0xFF] * 200, *ids("中")], endless)
    assert "".join(made) == "中"
    assert endless.most < 40


@pytest.mark.parametrize("decode", [plain, stripping, all_or_nothing, forgetting])
@pytest.mark.parametrize("before", ["", "a", "火火火火火火火"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_prompt_inside_a_character(
    decode: Callable[[Sequence[int]], str], before: str, count: int
):
    whole = ids("🙂")
    prompt = [*ids(before), *whole[:count]]
    made = pieces(prompt, [*whole[count:], *ids("中"), 257], decode)
    assert [piece for piece in made if piece] == ["🙂", "中", " fox"]


def test_a_prompt_that_ends_one_character_and_begins_another():
    made = pieces([257, *ids("中")[:2], 259], ids("国")[2:])
    assert made == ["国", ""]


def test_a_prompt_of_bytes_alone_leaves_whole_what_follows():
    made = pieces([257, *ids("中" * 5)], ids("🙂"), all_or_nothing)
    assert made == ["", "", "", "🙂", ""]


@pytest.mark.parametrize("decode", [plain, all_or_nothing])
def test_what_is_wrong_in_a_prompt_is_not_repeated(
    decode: Callable[[Sequence[int]], str],
):
    assert pieces([257, 0xFF], [257], decode) == [" fox", ""]
    assert pieces([257, 0xFF, SPECIAL], [], decode) == [""]


def test_what_is_wrong_in_a_prompt_is_not_repeated_late():
    made = "".join(pieces([257, 0xFF], [*[SPECIAL] * 40, 257]))
    assert made == " fox"


def test_special_tokens_do_not_eat_the_next_space():
    made = pieces([257], [*[SPECIAL] * 100, 257], stripping)
    assert made == [*[""] * 100, " fox", ""]


def test_a_text_begins_without_a_space():
    assert pieces([SPECIAL], [257, 257], stripping) == ["fox", " fox", ""]


def test_nothing_waits_for_ever():
    stream = TextStream(plain, [257])
    made = "".join(stream(0xFF) for _ in range(100))
    assert len(made) > 80
    lone = TextStream(plain, [257])
    made = "".join(lone(token) for token in [0xFF, *[SPECIAL] * 40])
    assert made == "\ufffd", "it is let out also if nothing follows"


def test_a_character_after_endless_garbage_is_whole():
    for count in range(40):
        made = "".join(pieces([257], [*[0xFF] * count, *ids("中")]))
        assert made == "\ufffd" * count + "中"
        made = "".join(pieces([257], [*[262] * count, *ids("中")], all_or_nothing))
        assert made.strip("\ufffd") == "中"


def test_tokens_that_all_end_inside_a_character():
    tokens = [0xE4, 0xB8, *[259, 260, 261] * 20]
    assert len(plain(tokens)) == 61
    made = pieces([257], tokens)
    assert "".join(made) == plain(tokens)
    assert "\ufffd" not in "".join(made[:-1])


@pytest.mark.parametrize("decode", [plain, stripping, all_or_nothing, forgetting])
@pytest.mark.parametrize(
    "output", [[257], [0xFF], [SPECIAL], [0xFF, SPECIAL], ids("🙂"), [0xFF, *ids("中")]]
)
def test_a_token_costs_the_same_however_many_came(
    decode: Callable[[Sequence[int]], str], output: list[int]
):
    decoder = Decoder(decode)
    stream = TextStream(decoder, [257] * 1000)
    before = decoder.count
    for token in output * (2000 // len(output)):
        stream(token)
    assert decoder.most <= 40
    assert decoder.count - before <= 5000
