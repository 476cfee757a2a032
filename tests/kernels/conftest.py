"""What tests of several operations share."""

import pathlib

import pytest

from tests.support import h200


@pytest.fixture
def on_h200(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """As if the trace were for an H200, whose user has tuned nothing."""
    h200.pretend(monkeypatch, tmp_path)
