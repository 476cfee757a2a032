"""Tests that are coroutines run on asyncio; what they make is closed after them."""

from collections.abc import Iterator

import pytest

from fdjax import AsyncLLM
from fdjax.serve import inbox
from tests.support.async_llm import TOKENIZER, Make
from tests.support.fake_engine import FakeEngine


@pytest.fixture
def anyio_backend() -> str:
    """What anyio's plugin runs them on."""
    return "asyncio"


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token is read by itself, however slow the reader is."""
    monkeypatch.setattr(inbox, "_is_plain", lambda item: False)


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes an `AsyncLLM` over an engine."""
    made: list[tuple[AsyncLLM, FakeEngine]] = []

    def make(engine: FakeEngine) -> AsyncLLM:
        made.append((AsyncLLM(engine, TOKENIZER), engine))
        return made[-1][0]

    yield make
    for llm, engine in made:
        if engine.hung is not None:  # its step would never end
            engine.hung.set()
        llm.close()
