"""LangChain's classes for OpenAI against a server; says what it saw as JSON.

It runs where langchain-openai is installed, and fdjax is not.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import json
import sys
from typing import Any

from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

STORY = "Once upon a time"
WALK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "walk",
        "description": "Goes somewhere.",
        "parameters": {
            "type": "object",
            "properties": {"way": {"enum": ["north", "south"]}},
            "required": ["way"],
        },
    },
}


def main(url: str) -> None:
    """Asks for texts, chats, calls and vectors."""
    options: dict[str, Any] = {"model": "tales-5m", "base_url": url, "api_key": "none"}
    greedy: dict[str, Any] = {"temperature": 0.0, "max_tokens": 16}
    llm = OpenAI(**options, **greedy)
    chat = ChatOpenAI(**options, **greedy)
    longer = ChatOpenAI(**options, temperature=0.0, max_tokens=64)
    caller = longer.bind_tools([WALK], tool_choice="required")
    responses = ChatOpenAI(**options, **greedy, use_responses_api=True)
    vectors = OpenAIEmbeddings(**options, check_embedding_ctx_length=False)
    called = caller.invoke(STORY)
    print(
        json.dumps(
            {
                "text": llm.invoke(STORY),
                "streamed": "".join(llm.stream(STORY)),
                "batch": llm.batch([STORY, STORY]),
                "chat": chat.invoke(STORY).content,
                "chat_streamed": "".join(str(c.content) for c in chat.stream(STORY)),
                "usage": chat.invoke(STORY).usage_metadata,
                "calls": [[c["name"], c["args"]] for c in called.tool_calls],
                "response": responses.invoke(STORY).text,
                "vectors": vectors.embed_documents([STORY, "The king said"]),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
