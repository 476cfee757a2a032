"""Text to token ids and back, through the `tokenizers` library."""

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from fdjax.errors import ConfigError, RequestError, to_install
from fdjax.serve.text_stream import TextStream, TightStream

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


@runtime_checkable
class Tokenizer(Protocol):
    """What serving needs of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with the special tokens a prompt begins with."""
        ...

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of `text` as it stands: special tokens only where it names them."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        ...

    def piece(self, token_id: int) -> str:
        """What one token adds to a text, special tokens included."""
        ...

    def to_json(self) -> str | None:
        """What a `tokenizer.json` of it holds; `None` where there can be none."""
        ...

    @property
    def longest_token_bytes(self) -> int:
        """As the vocabulary writes it: no token has more text than that."""
        ...

    def stream(
        self,
        prompt: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> TextStream:
        """What makes text of tokens one by one.

        Args:
            prompt: the token ids that come before: whether a word begins with a space
                depends on them.
            skip_special_tokens: see `SamplingParams`.
            spaces_between_special_tokens: see `SamplingParams`.
        """
        ...


class FastTokenizer:
    """A `tokenizer.json`, read by the `tokenizers` library (fast to import).

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        import tokenizers

        self._tokenizer = tokenizers.Tokenizer.from_file(str(path))

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer.encode`."""
        return self._ids(text, add_special_tokens=True)

    def encode_plain(self, text: str) -> list[int]:
        """See `Tokenizer.encode_plain`."""
        return self._ids(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`."""
        (text,) = self._tokenizer.decode_batch([list(token_ids)])
        return text

    def piece(self, token_id: int) -> str:
        """See `Tokenizer.piece`."""
        decode = self._tokenizer.decode
        return _piece(lambda ids: decode(ids, skip_special_tokens=False), token_id)

    def to_json(self) -> str:
        """See `Tokenizer.to_json`."""
        return self._tokenizer.to_str()

    @property
    def longest_token_bytes(self) -> int:
        """See `Tokenizer.longest_token_bytes`."""
        return _longest(self._tokenizer.get_vocab())

    def stream(
        self,
        prompt: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> TextStream:
        """See `Tokenizer.stream`."""
        if skip_special_tokens:
            return TextStream(self._tokenizer.decode, prompt)
        added = self._tokenizer.get_added_tokens_decoder
        return _shown(
            self._tokenizer.decode, prompt, added, spaces_between_special_tokens
        )

    def _ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # The calls for a batch let other threads of Python go on, those for one do not.
        (encoding,) = self._tokenizer.encode_batch_fast(
            [text], add_special_tokens=add_special_tokens
        )
        return list(encoding.ids)


class SlowTokenizer:
    """A tokenizer without `tokenizer.json`, through `transformers`.

    Args:
        folder: the model's folder; its code, if it brings any, is never run.

    Raises:
        ConfigError: `transformers` is not there.
    """

    def __init__(self, folder: Path) -> None:
        check_transformers(f"{folder} has no tokenizer.json, and another tokenizer")
        from transformers import AutoTokenizer

        self._tokenizer: Any = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False
        )

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer.encode`."""
        return list(self._tokenizer.encode(text))

    def encode_plain(self, text: str) -> list[int]:
        """See `Tokenizer.encode_plain`."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def piece(self, token_id: int) -> str:
        """See `Tokenizer.piece`."""
        return _piece(self._tokenizer.decode, token_id)

    def to_json(self) -> str | None:
        """See `Tokenizer.to_json`."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        return None if backend is None else backend.to_str()

    @property
    def longest_token_bytes(self) -> int:
        """See `Tokenizer.longest_token_bytes`."""
        return _longest(self._tokenizer.get_vocab())

    def stream(
        self,
        prompt: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> TextStream:
        """See `Tokenizer.stream`."""
        if skip_special_tokens:
            return TextStream(self.decode, prompt)
        return _shown(
            self._tokenizer.decode,
            prompt,
            lambda: self._tokenizer.added_tokens_decoder,
            spaces_between_special_tokens,
        )


def _piece(decode: Callable[[list[int]], str], token_id: int) -> str:
    """Text of a token that is not the first: some tokenizers strip a text's start."""
    return decode([token_id, token_id])[len(decode([token_id])) :]


def _shown(
    decode: Callable[..., str],
    prompt: Sequence[int],
    added: Callable[[], Any],
    spaces: bool,
) -> TextStream:
    """A stream with special tokens in it."""
    shown = partial(decode, skip_special_tokens=False)
    return (
        TextStream(shown, prompt)
        if spaces
        else TightStream(shown, prompt, _special(added()))
    )


def _special(added: Mapping[int, Any]) -> dict[int, str]:
    """Texts of the special ones among added tokens."""
    return {
        token_id: token.content for token_id, token in added.items() if token.special
    }


def _longest(vocabulary: Iterable[str]) -> int:
    return max((len(token.encode()) for token in vocabulary), default=1)


def tokenised(encode: Callable[[str], list[int]], text: str, what: str) -> list[int]:
    """What `encode` makes of a text.

    Args:
        encode: of a `Tokenizer`.
        text: any.
        what: the text is, for the message.

    Raises:
        RequestError: the tokenizer fails on it. Its files come from strangers: a
            pattern of theirs may go through a text in more ways than anyone can wait
            for, at which the library panics.
    """
    try:
        return encode(text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of Rust is no Exception
        raise RequestError(
            f"{what} cannot be tokenised: the model's tokenizer fails on it ({error}); "
            "send other words, or token ids"
        ) from error


def check_transformers(what: str) -> None:
    """Refuses what `transformers` is needed for where it is not there.

    Args:
        what: needs it, for the message.

    Raises:
        ConfigError: it, or `jinja2`, is not there.
    """
    for name in ("transformers", "jinja2"):
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"{what} needs the package {name}; {to_install('chat')}")


def load_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer in a model's folder; `None` where there is none.

    Raises:
        ConfigError: there are tokenizer files, but they cannot be read, or not
            without `transformers`, which is not there.
    """
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    try:
        if (folder / "tokenizer.json").is_file():
            return FastTokenizer(folder / "tokenizer.json")
        return SlowTokenizer(folder)
    except ConfigError:
        raise
    except Exception as error:  # the libraries raise bare Exception for a bad file
        raise ConfigError(
            f"the tokenizer in {folder} cannot be read ({error}); repair it, or remove "
            "it and give prompts as token ids"
        ) from error
