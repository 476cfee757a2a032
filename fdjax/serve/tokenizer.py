"""Text to token ids and back, through the `tokenizers` library."""

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from fdjax.errors import ConfigError
from fdjax.serve.text_stream import TextStream

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

    def stream(self, prompt: Sequence[int]) -> TextStream:
        """What makes text of tokens one by one.

        Args:
            prompt: the token ids that come before: whether a word begins with a space
                depends on them.
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
        return list(self._tokenizer.encode(text).ids)

    def encode_plain(self, text: str) -> list[int]:
        """See `Tokenizer.encode_plain`."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`."""
        return self._tokenizer.decode(list(token_ids))

    def piece(self, token_id: int) -> str:
        """See `Tokenizer.piece`."""
        decode = self._tokenizer.decode
        return _piece(lambda ids: decode(ids, skip_special_tokens=False), token_id)

    def to_json(self) -> str:
        """See `Tokenizer.to_json`."""
        return self._tokenizer.to_str()

    def stream(self, prompt: Sequence[int]) -> TextStream:
        """See `Tokenizer.stream`."""
        return TextStream(self._tokenizer.decode, prompt)


class SlowTokenizer:
    """A tokenizer without `tokenizer.json`, through `transformers`.

    Args:
        folder: the model's folder; its code, if it brings any, is never run.
    """

    def __init__(self, folder: Path) -> None:
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

    def stream(self, prompt: Sequence[int]) -> TextStream:
        """See `Tokenizer.stream`."""
        return TextStream(self.decode, prompt)


def _piece(decode: Callable[[list[int]], str], token_id: int) -> str:
    """Text of a token that is not the first: some tokenizers strip a text's start."""
    return decode([token_id, token_id])[len(decode([token_id])) :]


def load_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer in a model's folder; `None` where there is none.

    Raises:
        ConfigError: there are tokenizer files, but they cannot be read.
    """
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    try:
        if (folder / "tokenizer.json").is_file():
            return FastTokenizer(folder / "tokenizer.json")
        return SlowTokenizer(folder)
    except Exception as error:  # the libraries raise bare Exception for a bad file
        raise ConfigError(
            f"the tokenizer in {folder} cannot be read ({error}); repair it, or remove "
            "it and give prompts as token ids"
        ) from error


def chat_prompt(folder: Path, messages: Sequence[dict[str, str]]) -> str:
    """The text that a chat so far becomes.

    The model's own template where it has one, rendered by `transformers` in a
    sandbox; else the messages one after another, which suits a base model.
    """
    if not _has_template(folder):
        return "\n".join(message["content"] for message in messages)
    return _template_tokenizer(folder).apply_chat_template(
        list(messages), tokenize=False, add_generation_prompt=True
    )


def chat_token_ids(
    folder: Path, tokenizer: Tokenizer, messages: Sequence[dict[str, str]]
) -> list[int]:
    """The tokens that a chat so far becomes; see `chat_prompt`.

    A template writes the special tokens itself: none are added to what it renders.
    """
    text = chat_prompt(folder, messages)
    if _has_template(folder):
        return tokenizer.encode_plain(text)
    return tokenizer.encode(text)


@functools.lru_cache(maxsize=1)
def _template_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def _has_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file():
        return True
    path = folder / "tokenizer_config.json"
    return path.is_file() and "chat_template" in json.loads(path.read_text())
