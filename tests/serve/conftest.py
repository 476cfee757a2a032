"""Tests that are coroutines run on asyncio."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """What anyio's plugin runs them on."""
    return "asyncio"
