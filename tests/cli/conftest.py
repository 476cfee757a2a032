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


@pytest.fixture
def shared(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """Commands take the shared model instead of loading one."""
    for module in ("generate", "chat"):
        monkeypatch.setattr(f"fdjax.cli.{module}.load", lambda _: llm)
    return llm
