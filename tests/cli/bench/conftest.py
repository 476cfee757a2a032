"""The shared model for benchmarks in this process."""

import pytest

from fdjax import LLM
from fdjax.cli.options import ModelOptions


@pytest.fixture
def loaded(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> list[ModelOptions]:
    """Benchmarks take the shared model; the list holds how they wanted it."""
    wanted: list[ModelOptions] = []

    def load(options: ModelOptions) -> LLM:
        wanted.append(options)
        return llm

    monkeypatch.setattr("fdjax.cli.bench.offline.load", load)
    return wanted
