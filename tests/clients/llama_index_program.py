"""LlamaIndex's `OpenAILike` against a server; says what it saw as JSON.

It runs where llama-index-llms-openai-like is installed, and fdjax is not.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import json
import sys
from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

STORY = "Once upon a time"


def main(url: str) -> None:
    """Asks for texts and chats."""
    options: dict[str, Any] = {
        "model": "tales-5m",
        "api_base": url,
        "api_key": "none",
        "temperature": 0.0,
        "max_tokens": 16,
        "context_window": 512,
    }
    llm = OpenAILike(**options, is_chat_model=False)
    chat = OpenAILike(**options, is_chat_model=True)
    messages = [ChatMessage(role="user", content=STORY)]
    print(
        json.dumps(
            {
                "text": llm.complete(STORY).text,
                "streamed": "".join(c.delta or "" for c in llm.stream_complete(STORY)),
                "chat": chat.chat(messages).message.content,
                "chat_streamed": "".join(
                    c.delta or "" for c in chat.stream_chat(messages)
                ),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
