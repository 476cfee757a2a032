"""Chats as `LLM.chat` takes them, made prompts by the model's template."""

import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from fdjax.errors import RequestError
from fdjax.generate.checks import shown
from fdjax.generate.structured import check_depth
from fdjax.serve.chat_template import ChatEnd, ChatTemplate, Message, chat_end
from fdjax.serve.prompts import TokensPrompt
from fdjax.serve.tokenizer import Tokenizer, tokenised

# What turns with tools have besides.
_MORE = ("name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content")

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

    def prompts(
        self,
        messages: Chat | Sequence[Chat],
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
    ) -> list[TokensPrompt]:
        """One prompt a chat, up to where the answer begins.

        Args:
            messages: of one chat, or of several.
            tools: that the model is told of, as OpenAI's API describes them.
            options: more that the template may look at.
            add_generation_prompt: see `chat_end`, as for the next.
            continue_final_message: see above.

        Raises:
            RequestError: they are no messages or tools, the model has no tokenizer, its
                template refuses them, or the last message cannot go on.
        """
        chats = _chats(messages)
        read = [_messages(chat, index) for index, chat in enumerate(chats)]
        told = _tools(tools)
        check_depth("chat_template_kwargs", options)
        ends: list[ChatEnd] = [
            chat_end(
                chat[-1],
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
            )
            for chat in read
        ]
        return [
            self._prompt(chat, told, options, end)
            for chat, end in zip(read, ends, strict=True)
        ]

    @functools.cached_property
    def _template(self) -> ChatTemplate:
        return ChatTemplate(self._folder)

    def _prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        options: Mapping[str, Any] | None,
        end: ChatEnd,
    ) -> TokensPrompt:
        if self._tokenizer is None:
            raise RequestError("the model has no tokenizer, and so no chat")
        if tools and not self._template.text:
            raise RequestError(
                f"there are {len(tools)} tools, but the model has no chat template to "
                "be told of them by; leave them out"
            )
        chat = self._template.render(messages, tools, options, end)
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
    given = fields.get("content")
    role, content = fields.get("role"), _text("" if given is None else given)
    says = given is not None or "tool_calls" in fields
    known = fields.keys() <= {"role", "content", *_MORE}
    if not (known and says) or not isinstance(role, str) or content is None:
        raise RequestError(
            f"chat {index} has the message {shown(message)}; give "
            "{'role': ..., 'content': a text}, and besides "
            f"{', '.join(_MORE)} alone"
        )
    more = {name: fields[name] for name in _MORE if fields.get(name) is not None}
    check_depth(f"a message of chat {index}", more)
    return {"role": role, "content": content, **more}


def _tools(tools: object) -> list[Mapping[str, Any]] | None:
    """Tools that a template may be told of."""
    if tools is None:
        return None
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise RequestError(f"tools are {shown(tools)}; give a list of them")
    many = cast("Sequence[object]", tools)
    for place, tool in enumerate(many):
        fields = {**tool} if isinstance(tool, Mapping) else {}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  (checked here)
        if fields.get("type") != "function" or "function" not in fields:  # pyright: ignore[reportUnknownMemberType]  (the same)
            raise RequestError(
                f"tools[{place}] is {shown(tool)}; give "
                "{'type': 'function', 'function': {'name': ..., 'parameters': ...}}"
            )
    check_depth("tools", many)
    return cast("list[Mapping[str, Any]]", [*many])


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
