"""What begins with a stroke in `fdjax chat`: it is for the program, not the model."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

from fdjax.cli import progress
from fdjax.cli.conversation import Conversation
from fdjax.cli.errors import show_error
from fdjax.errors import RequestError

HELP = {
    "/help": "shows this",
    "/system [TEXT]": "tells the model TEXT before everything else, or shows it; - "
    "takes it away",
    "/set [NAME VALUE]": "sets how answers are drawn, as temperature 0.2, or shows it; "
    "the value - is that of the start",
    "/save FILE": "writes the conversation as JSON",
    "/reset": "forgets the conversation",
    "/exit": "leaves; so does Ctrl-D, and Ctrl-C stops an answer",
    '"""': "begins and ends a message of several lines",
}


def run(conversation: Conversation, line: str) -> bool:
    """Runs a command; says what came of it on stderr.

    Args:
        conversation: that it is about.
        line: from the stroke on.

    Returns:
        Whether the chat goes on.
    """
    name, _, rest = line.partition(" ")
    if name in ("/exit", "/quit", "/bye"):
        return False
    command = _COMMANDS.get(name)
    if command is None:
        show_error(f"there is no command {name}; /help shows those that there are")
    else:
        command(conversation, rest.strip())
    return True


def _help(_: Conversation, __: str) -> None:
    width = max(map(len, HELP))
    for name, text in HELP.items():
        progress.note(f"{name:{width}}  {text}")


def _reset(conversation: Conversation, _: str) -> None:
    conversation.reset()
    progress.note("[the conversation is forgotten]")


def _system(conversation: Conversation, text: str) -> None:
    if text:
        conversation.system = None if text == "-" else text
    told = conversation.system
    progress.note(f"[system: {told}]" if told is not None else "[no system message]")


def _set(conversation: Conversation, rest: str) -> None:
    name, _, value = rest.partition(" ")
    if name:
        try:
            conversation.choose(name.replace("-", "_"), _value(value.strip()))
        except RequestError as error:
            show_error(str(error))
            return
    chosen = ", ".join(f"{n} {v}" for n, v in sorted(conversation.sampling.items()))
    progress.note(f"[{chosen}]")


def _value(text: str) -> Any:
    """A number, a truth or a list, as JSON writes them, or a text; `None` for -."""
    if text == "-":
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _save(conversation: Conversation, name: str) -> None:
    if not name:
        show_error("/save needs a file, as /save chat.json")
        return
    place = pathlib.Path(name).expanduser()
    document = {"model": conversation.model, "messages": conversation.messages}
    try:
        with place.open("x", encoding="utf-8") as file:
            file.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    except FileExistsError:
        show_error(f"{place} is there already; name another file")
    except OSError as error:
        show_error(f"{place} cannot be written: {error.strerror}")
    else:
        count = len(conversation.messages)
        progress.note(f"[{count} {'message' if count == 1 else 'messages'} in {place}]")


_COMMANDS: dict[str, Callable[[Conversation, str], None]] = {
    "/help": _help,
    "/reset": _reset,
    "/system": _system,
    "/set": _set,
    "/save": _save,
}
