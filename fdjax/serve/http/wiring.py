"""From a loaded model to the application that serves it."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI

from fdjax.serve.async_llm import AsyncLLM
from fdjax.serve.http.app import create_app
from fdjax.serve.http.server import Limits, ServedModel
from fdjax.serve.llm import LLM
from fdjax.serve.tokenizer import chat_token_ids


def application(
    llm: LLM,
    *,
    names: Sequence[str],
    api_keys: Sequence[str],
    sampling: Mapping[str, Any],
    max_queued_requests: int | None = None,
) -> tuple[FastAPI, AsyncLLM]:
    """An application over a model's engine, which from now on serves nothing else.

    Args:
        llm: loaded.
        names: what the API calls it.
        api_keys: see `create_app`.
        sampling: arguments of `SamplingParams` for what requests leave open.
        max_queued_requests: of the engine; a request that asks for more samples could
            never be served.

    Returns:
        The application, and what whoever runs it closes at the end.
    """
    serving = AsyncLLM(llm.engine, llm.tokenizer, llm.grammars)
    chat = None
    if llm.tokenizer is not None:
        chat = functools.partial(chat_token_ids, llm.folder, llm.tokenizer)
    model = ServedModel(
        names=names,
        vocab_size=llm.config.embedding.vocab_size,
        max_model_len=llm.engine.plan.max_model_len,
        chat=chat,
        sampling=sampling,
    )
    limits = Limits()
    if max_queued_requests is not None:
        samples = min(limits.samples, max_queued_requests)
        limits = dataclasses.replace(limits, samples=samples)
    app = create_app(serving, model, api_keys=api_keys, limits=limits)
    return app, serving
