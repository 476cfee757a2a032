"""`fdjax chat`: a conversation at the terminal."""

import secrets
import sys
from typing import Annotated

import typer

from fdjax.cli import progress
from fdjax.cli.conversation import Conversation
from fdjax.cli.errors import reported
from fdjax.cli.loading import load, sampling_defaults
from fdjax.cli.options import DebugOption, ModelOptions, SamplingOptions, command
from fdjax.cli.writer import emit

MAX_TOKENS = 512

_HELP = "/reset forgets the conversation, /exit leaves; Ctrl-C stops an answer"


@command
def chat(
    *,
    system: Annotated[
        str | None, typer.Option(help="What the model is told before everything else.")
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(help="Longest answer, in tokens.")
    ] = MAX_TOKENS,
    model: ModelOptions,
    sampling: SamplingOptions,
    debug: DebugOption = False,
) -> None:
    """Talk to a model.

    /reset forgets the conversation, /exit or the end of input leaves. Ctrl-C stops an
    answer; at the prompt it leaves. When the conversation outgrows the model, its
    oldest turns are dropped, and you are told.
    """
    with reported(debug=debug):
        given = sampling.given(max_tokens=max_tokens)
        llm = load(model)
        chosen = sampling_defaults(llm.folder, model) | given
        chosen.setdefault("seed", secrets.randbits(31))
        conversation = Conversation(llm, chosen, system=system)
        if sys.stdin.isatty():
            progress.note(f"{model.model}: {_HELP}")
        _converse(conversation)


def _converse(conversation: Conversation) -> None:
    while (line := _read_line()) is not None:
        match line.strip():
            case "":
                continue
            case "/exit" | "/quit":
                return
            case "/reset":
                conversation.reset()
                progress.note("[the conversation is forgotten]")
            case message if message.startswith("/"):
                progress.note(f"[there is no command {message.split()[0]}; {_HELP}]")
            case message:
                conversation.answer(message)


def _read_line() -> str | None:
    """The next line of the user; `None` at the end of input."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line or None
    try:
        return input("> ")
    except EOFError:
        emit("\n")
        return None
    except KeyboardInterrupt:
        emit("\n")
        raise
