"""Commands run in this process, on the model that all tests share."""

from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

from fdjax import LLM

type Invoke = Callable[..., Result]


@pytest.fixture
def invoke() -> Invoke:
    """Runs `fdjax` with these arguments."""
    from fdjax.cli.app import app

    def run(*arguments: str, text: str | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=text)

    return run


@pytest.fixture(autouse=True)
def programs_kept_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where JAX keeps programs is for a whole process, and so for all tests."""
    for module in ("generate", "chat"):
        monkeypatch.setattr(f"fdjax.cli.{module}.keep_programs", lambda: None)


@pytest.fixture
def shared(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """Commands take the shared model instead of loading one."""
    for module in ("generate", "chat"):
        monkeypatch.setattr(f"fdjax.cli.{module}.load", lambda _, **__: llm)
    return llm
