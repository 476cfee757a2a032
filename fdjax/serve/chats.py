"""Chats as `LLM.chat` takes them, made prompts by the model's template."""

import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from fdjax.errors import RequestError
from fdjax.generate.checks import shown
from fdjax.serve.chat_template import ChatTemplate, Message
from fdjax.serve.prompts import TokensPrompt
from fdjax.serve.tokenizer import Tokenizer, tokenised

type Chat = Sequence[Mapping[str, Any]]


class Chats:
    """Makes prompts of chats.

    Args:
        folder: the model's; its template is read with the first chat.
        tokenizer: of the model; chats are refused without one.
    """

    def __init__(self, folder: pathlib.Path, tokenizer: Tokenizer | None) -> None:
        self._folder = folder
        self._tokenizer = tokenizer

    def prompts(self, messages: Chat | Sequence[Chat]) -> list[TokensPrompt]:
        """One prompt a chat, up to where the answer begins.

        Args:
            messages: of one chat, or of several.

        Raises:
            RequestError: they are no messages, the model has no tokenizer, or its
                template refuses them.
        """
        chats = _chats(messages)
        read = [_messages(chat, index) for index, chat in enumerate(chats)]
        return [self._prompt(chat) for chat in read]

    @functools.cached_property
    def _template(self) -> ChatTemplate:
        return ChatTemplate(self._folder)

    def _prompt(self, messages: Sequence[Message]) -> TokensPrompt:
        if self._tokenizer is None:
            raise RequestError("the model has no tokenizer, and so no chat")
        chat = self._template.render(messages)
        encode = self._tokenizer.encode_plain if chat.plain else self._tokenizer.encode
        token_ids = tokenised(encode, chat.text, "a chat")
        return {"prompt_token_ids": token_ids, "prompt": chat.text}


def _chats(messages: object) -> list[object]:
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise RequestError(f"messages are {shown(messages)}; give a list of them")
    entries = cast("Sequence[object]", messages)
    is_one = bool(entries) and isinstance(entries[0], Mapping)
    return [entries] if is_one else list(entries)


def _messages(chat: object, index: int) -> list[Message]:
    if not isinstance(chat, Sequence) or isinstance(chat, str | bytes) or not chat:
        raise RequestError(f"chat {index} is {shown(chat)}; give at least one message")
    return [_message(one, index) for one in cast("Sequence[object]", chat)]


def _message(message: object, index: int) -> Message:
    fields: dict[object, object] = {}
    if isinstance(message, Mapping):
        fields = {**cast("Mapping[object, object]", message)}
    role, content = fields.get("role"), _text(fields.get("content"))
    if len(fields) != 2 or not isinstance(role, str) or content is None:
        raise RequestError(
            f"chat {index} has the message {shown(message)}; give "
            "{'role': ..., 'content': a text}, and nothing else"
        )
    return {"role": role, "content": content}


def _text(content: object) -> str | None:
    """A text, or the texts that OpenAI's API calls parts; `None` for anything else."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts: list[str] = []
    for part in cast("list[object]", content):
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case _:
                return None
    return "\n".join(texts)
