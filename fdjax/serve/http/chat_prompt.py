"""A chat made the prompt that its model continues."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fdjax.generate.structured import check_depth
from fdjax.serve.chat_template import ChatEnd
from fdjax.serve.http.errors import ApiError
from fdjax.serve.http.messages import Message
from fdjax.serve.http.server import Server
from fdjax.serve.http.tool_fields import with_arguments
from fdjax.serve.lanes import FairThreads, finished
from fdjax.serve.turns.tool import Tool

# Each waits for a process that renders: see `chat_template`.
_RENDERING = FairThreads(4, "fdjax-chats")


@dataclass(frozen=True)
class ChatPrompt:
    """What a chat becomes.

    Attributes:
        text: by the model's template.
        tokens: of the text.
    """

    text: str
    tokens: list[int]


async def chat_prompt(
    server: Server,
    messages: Sequence[Message],
    tools: Sequence[Tool] | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    end: ChatEnd = "begun",
    owner: str = "",
) -> ChatPrompt:
    """The prompt that a chat becomes, by the model's template.

    Args:
        server: whose model it is for.
        messages: of the chat.
        tools: that the model is told of.
        options: of the template.
        end: of the prompt.
        owner: whose chat it is; owners take turns.

    Raises:
        ApiError: the model has no tokenizer.
        RequestError: the chat is too long, before or after the template; or the
            template refuses it.
    """
    texts = server.llm.texts
    if server.model.chat is None or texts is None:
        raise ApiError("the model has no tokenizer, and so no chat", param="messages")
    if len(messages) > server.limits.messages:
        raise ApiError(
            f"messages has {len(messages)} entries; use at most "
            f"{server.limits.messages}",
            param="messages",
        )
    plain = [message.plain() for message in messages]
    described = [tool.described for tool in tools or ()]
    texts.check([text for one in plain for text in _texts_of(one)], "messages")
    texts.check([_json(described)], "tools")
    check_depth("chat_template_kwargs", options)
    texts.check([_json(options)], "chat_template_kwargs")
    for message in plain:
        if "tool_calls" in message:
            message["tool_calls"] = [*map(with_arguments, message["tool_calls"])]
    rendering = functools.partial(
        server.model.chat, plain, described or None, options or None, end
    )
    size = sum(len(message["content"]) for message in plain)
    chat = await finished(_RENDERING, rendering, owner=owner, size=size)
    tokens = await texts.encode(chat.text, "messages", plain=chat.plain, owner=owner)
    return ChatPrompt(chat.text, tokens)


def _texts_of(message: Mapping[str, Any]) -> list[str]:
    """All that a template may write of a message."""
    written = ("content", "name", "reasoning", "tool_call_id")
    texts = [message[name] for name in written if name in message]
    return texts + ([_json(message["tool_calls"])] if "tool_calls" in message else [])


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
