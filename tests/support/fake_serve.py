"""`fdjax serve` over an engine without a model: `python -m tests.support.fake_serve`.

`FDJAX_FAKE` has arguments of `FakeEngine`, as JSON; `hangs` makes its steps endless.
"""

import json
import os
import sys
import threading
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI

from fdjax.cli import main, serve
from fdjax.serve.async_llm import AsyncLLM
from fdjax.serve.http import wiring
from fdjax.serve.http.app import create_app
from tests.support.fake_engine import FakeEngine
from tests.support.http_server import MODEL, TOKENIZER, TOKENS


def application(
    _: Any, *, stall_seconds: float, **options: Any
) -> tuple[FastAPI, AsyncLLM]:
    del options
    given = json.loads(os.environ.get("FDJAX_FAKE", "{}"))
    hung = threading.Event() if given.pop("hangs", False) else None
    engine = FakeEngine(TOKENS * 1000, max_model_len=10**6, hung=hung, **given)
    serving = AsyncLLM(engine, TOKENIZER)
    return create_app(serving, MODEL, stall_seconds=stall_seconds), serving


if __name__ == "__main__":
    wiring.application = application
    loaded = SimpleNamespace(folder=None)
    serve.load_served = lambda *_: (loaded, {})
    serve.sampling_defaults = lambda *_: {}
    sys.argv[1:1] = ["serve", "--no-engine-process", "--port", "0"]
    main()
