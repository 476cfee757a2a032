"""Among the grammars of one owner: how long one waits that takes its compiler long."""

import asyncio
import threading
import time

import pytest

from fdjax import LLM
from fdjax.generate.params import SamplingParams
from fdjax.generate.structured import StructuredOutputs
from fdjax.serve.forks import ExhaustedError
from fdjax.serve.grammars import Grammars

pytestmark = pytest.mark.anyio

HOSTILE = 60
INNOCENT_SECONDS = 0.3
FASTER = 20


class Forks:
    """Compiles nothing: counts the seconds that it would take, and sleeps less."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.all_are_there = threading.Event()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Nothing is to be started."""

    def call(self, grammar: str, *, cpu_seconds: float) -> str:
        assert self.all_are_there.wait(30)
        takes = 20.0 if "hostile" in grammar else INNOCENT_SECONDS
        time.sleep(min(takes, cpu_seconds) / FASTER)
        with self._lock:
            self.seconds += min(takes, cpu_seconds)
        if takes > cpu_seconds:
            raise ExhaustedError
        return ""


def asking(regex: str) -> SamplingParams:
    return SamplingParams(structured_outputs=StructuredOutputs(regex=regex))


async def seconds_before(grammars: Grammars, forks: Forks, innocent: str) -> float:
    hostile = [
        asyncio.create_task(grammars.compiled(asking(f"hostile{i}(a|b)")))
        for i in range(HOSTILE)
    ]
    await asyncio.sleep(0)
    asked = asyncio.create_task(grammars.compiled(asking(innocent)))
    await asyncio.sleep(0)
    forks.all_are_there.set()
    assert await asked is not None
    seconds = forks.seconds
    for task in hostile:
        task.cancel()
    await asyncio.gather(*hostile, return_exceptions=True)
    return seconds


@pytest.mark.parametrize(
    ("innocent", "most"),
    [
        # The first trial of all, of each thread all others of two, and its own.
        ("[a-c]+x?", HOSTILE * 0.03 + 4 * (0.1 + 0.35 + 0.6) + 0.43),
        # Of their form it comes when all of them are refused, or nearly.
        ("innocent1(a|b)", HOSTILE * (0.03 + 0.1 + 0.35 + 0.6)),
    ],
)
async def test_of_another_form_it_goes_before(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, innocent: str, most: float
):
    grammars = Grammars(
        llm.get_tokenizer(),
        vocab_size=llm.config.embedding.vocab_size,
        eos_token_ids=[2],
    )
    forks = Forks()
    monkeypatch.setattr(grammars._trial, "_forks", forks)
    assert await seconds_before(grammars, forks, innocent) <= most
