"""A chat so far as the text that its model continues, by the model's template.

A template is a program of strangers, who may have written one without end: it is
rendered in a process of its own.
"""

import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from fdjax.errors import ConfigError, RequestError
from fdjax.models.regular_files import read_whole
from fdjax.models.strict_json import read_object
from fdjax.serve.forks import ExhaustedError, Forks, answer_calls
from fdjax.serve.tokenizer import check_transformers

SECONDS = 2.0
"""Of processor: a template that takes more is refused."""
_STACK_BYTES = 2**23
_MAX_ERROR = 500

type Message = dict[str, Any]
type ChatEnd = Literal["begun", "closed", "open"]
"""Where the text of a chat ends: with the beginning of an answer, behind the last
message, or where that one's content ends, so that it goes on."""


@dataclass(frozen=True)
class ChatText:
    """What a chat becomes.

    Attributes:
        text: of all turns, up to where the model goes on.
        plain: it has its special tokens already; none are added when it is tokenised.
    """

    text: str
    plain: bool


def chat_end(
    last: Mapping[str, Any],
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
) -> ChatEnd:
    """Where a chat's text ends, in the words of `transformers`.

    Args:
        last: message of the chat.
        add_generation_prompt: an answer begins behind it; by default, unless it goes
            on.
        continue_final_message: it goes on, and is a text of the assistant's.

    Raises:
        RequestError: both are true, or the message cannot go on.
    """
    if not continue_final_message:
        return "closed" if add_generation_prompt is False else "begun"
    name, calls = "continue_final_message", last.get("tool_calls")
    if add_generation_prompt:
        raise RequestError(
            f"{name} is true, and so is add_generation_prompt, which begins a new "
            "message; set one of them to false"
        )
    if last["role"] != "assistant" or calls:
        raise RequestError(
            f"{name} is true, but the last of the messages is of the role "
            f"{last['role']}{' with tool_calls' if calls else ''}; let a text of the "
            f"assistant be the last, or leave {name} out"
        )
    return "open"


class ChatTemplate:
    """The template in a model's folder; any thread may use it.

    Args:
        folder: the model's.

    Attributes:
        text: of the template, or of several one after another; empty without one.

    Raises:
        ConfigError: the file that may hold the template cannot be read, or there is
            one and `transformers`, which renders it, is not there.
    """

    def __init__(self, folder: Path) -> None:
        self._forks = None
        text = _text_of(folder)
        self.text = text or ""
        if text is not None:
            check_transformers(f"the chat template of {folder}")
            self._forks = Forks(__name__, [str(folder.absolute())])

    def start(self) -> None:
        """Starts ahead what `render` would start, and does not wait for it."""
        if self._forks is not None:
            self._forks.start()

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        end: ChatEnd = "begun",
    ) -> ChatText:
        """The text of a chat.

        The model's own template where it has one, rendered by `transformers` in a
        sandbox; else the messages one after another, which suits a base model.

        Args:
            messages: in the words that templates know.
            tools: that may be called, as OpenAI's API describes them.
            options: more that the template may look at.
            end: of the text; without a template, it always ends with the last message.

        Raises:
            RequestError: the template refuses the messages, fails, or does not end.
            RuntimeError: it could not be tried; the next call tries again.
        """
        if self._forks is None:
            return ChatText("\n".join(one["content"] for one in messages), plain=False)
        question = {
            "conversation": list(messages),
            "tools": tools and list(tools),
            "options": options or {},
            "end": end,
        }
        try:
            text, error = self._forks.call(question, cpu_seconds=SECONDS)
        except ExhaustedError:
            error = f"it takes more than {SECONDS:g} seconds, or too much memory"
            text = None
        if text is None:
            raise RequestError(
                f"messages do not suit the model's chat template: {error}"
            )
        return ChatText(text, plain=True)


def _text_of(folder: Path) -> str | None:
    path = folder / "chat_template.jinja"
    try:
        if path.is_file():
            return read_whole(path).decode()
        path = folder / "tokenizer_config.json"
        given = read_object(path).get("chat_template") if path.is_file() else None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if isinstance(given, list):  # several by name, of which one is for tools
        named = cast("list[Any]", given)
        return "\n".join(str(one.get("template")) for one in named)
    return None if given is None else str(given)


def _main() -> None:
    """Renders chats by the template of the folder that the command line names."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # no thread that a fork would lack
    from transformers import AutoTokenizer

    tokenizer: Any = None
    failure = ""
    try:
        tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=False)
    except Exception as error:
        failure = f"it cannot be loaded: {_shown(error)}"

    def rendered(question: dict[str, Any]) -> tuple[str | None, str]:
        if failure:
            return None, failure
        options, end = question.pop("options"), question.pop("end")
        apply = tokenizer.apply_chat_template
        # A template of the request's, say, which would be run.
        taken = inspect.signature(apply).parameters.keys() & options.keys()
        if taken:
            return None, f"chat_template_kwargs may not have {', '.join(taken)}"
        try:
            text = apply(
                **question,
                **options,
                tokenize=False,
                add_generation_prompt=end == "begun",
                continue_final_message=end == "open",
            )
        except MemoryError:
            raise
        except Exception as error:
            return None, _shown(error)
        return text, ""

    answer_calls(rendered, stack_bytes=_STACK_BYTES)


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_MAX_ERROR]


if __name__ == "__main__":
    _main()
