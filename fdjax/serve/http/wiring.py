"""From a loaded model to the application that serves it."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI

from fdjax.serve.apart.loaded import LoadedApart
from fdjax.serve.async_llm import AsyncLLM
from fdjax.serve.chat_template import ChatTemplate
from fdjax.serve.http.app import create_app
from fdjax.serve.http.hosts import ANY
from fdjax.serve.http.keyring import Keyring
from fdjax.serve.http.limits import Limits
from fdjax.serve.http.metrics import PREFIX
from fdjax.serve.http.server import STALL_SECONDS, ServedModel
from fdjax.serve.loading import Loaded
from fdjax.serve.texts import MAX_BYTES_PER_TOKEN, TextLimit
from fdjax.serve.turns.turns import Turns


def application(
    loaded: Loaded | LoadedApart,
    *,
    names: Sequence[str],
    allowed_hosts: Sequence[str] = (ANY,),
    allowed_origins: Sequence[str] = (),
    metrics_prefix: str = PREFIX,
    stall_seconds: float = STALL_SECONDS,
    sampling: Mapping[str, Any],
    limits: Limits | None = None,
    keyring: Keyring | None = None,
    max_bytes_per_token: int = MAX_BYTES_PER_TOKEN,
    tool_call_parser: str | None = None,
    reasoning_parser: str | None = None,
) -> tuple[FastAPI, AsyncLLM]:
    """An application over a model's engine, which from now on serves nothing else.

    Args:
        loaded: the model, here or in a process of its own.
        names: what the API calls it.
        allowed_hosts: see `create_app`.
        allowed_origins: see `create_app`.
        metrics_prefix: see `create_app`.
        stall_seconds: see `create_app`.
        sampling: arguments of `SamplingParams` for what requests leave open.
        limits: of one request; its body may be as long as texts may.
        keyring: see `create_app`.
        max_bytes_per_token: of a text as long as the model allows; longer ones are
            refused before they are tokenised.
        tool_call_parser: see `Turns`.
        reasoning_parser: see `Turns`.

    Raises:
        ConfigError: a parser is not known, or the chat template cannot be read.

    Returns:
        The application, and what whoever runs it closes at the end.
    """
    max_model_len, limits = loaded.max_model_len, limits or Limits()
    chat = text_limit = turns = None
    if loaded.tokenizer is not None:
        template = ChatTemplate(loaded.folder)
        template.start()
        chat = template.render
        turns = Turns(
            loaded.tokenizer,
            template=template.text,
            tool_call_parser=tool_call_parser,
            reasoning_parser=reasoning_parser,
        )
        text_limit = TextLimit.of(
            loaded.tokenizer,
            max_model_len=max_model_len,
            max_bytes_per_token=max_bytes_per_token,
        )
        body_bytes = max(limits.body_bytes, text_limit.num_bytes)
        limits = dataclasses.replace(limits, body_bytes=body_bytes)
    serving = _serving(loaded, text_limit)
    model = ServedModel(
        names=names,
        vocab_size=loaded.vocab_size,
        max_model_len=max_model_len,
        chat=chat,
        turns=turns,
        sampling=sampling,
    )
    app = create_app(
        serving,
        model,
        keyring=keyring,
        allowed_hosts=allowed_hosts,
        allowed_origins=allowed_origins,
        metrics_prefix=metrics_prefix,
        stall_seconds=stall_seconds,
        limits=limits,
    )
    return app, serving


def _serving(loaded: Loaded | LoadedApart, text_limit: TextLimit | None) -> AsyncLLM:
    tokenizer = loaded.tokenizer
    if isinstance(loaded, LoadedApart):
        return AsyncLLM.over(loaded.engine, tokenizer, text_limit=text_limit)
    return AsyncLLM(loaded.engine, tokenizer, loaded.grammars, text_limit=text_limit)
