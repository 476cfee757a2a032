"""`fdjax chat`: a conversation at the terminal."""

import secrets
import sys
from typing import Annotated

import typer

from fdjax.cli import chat_commands, line_reader, progress
from fdjax.cli.conversation import Conversation
from fdjax.cli.errors import reported
from fdjax.cli.loading import keep_programs, load, sampling_defaults
from fdjax.cli.options import (
    DebugOption,
    ModelArgument,
    ModelOptions,
    SamplingOptions,
    command,
)

MAX_TOKENS = 512

_HELP = "/help shows what there is, /exit leaves; Ctrl-C stops an answer"


@command
def chat(
    name: ModelArgument = None,
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

    /help shows what else can be said: /system, /set, /save and others. Ctrl-C stops an
    answer; at the prompt it leaves. When the conversation outgrows the model, its
    oldest turns are dropped, and you are told.
    """
    with reported(debug=debug), line_reader.history():
        model = model.named(name)
        given = sampling.given(max_tokens=max_tokens)
        keep_programs()
        llm = load(model, for_chat=True)
        chosen = sampling_defaults(llm.folder, model) | given
        chosen.setdefault("seed", secrets.randbits(31))
        conversation = Conversation(llm, chosen, system=system)
        if sys.stdin.isatty():
            progress.note(f"{model.model}: {_HELP}")
        _converse(conversation)


def _converse(conversation: Conversation) -> None:
    while (typed := line_reader.read()) is not None:
        if typed.text.startswith("/") and not typed.fenced:
            if not chat_commands.run(conversation, typed.text):
                return
        elif typed.text.strip():
            conversation.answer(typed.text)
