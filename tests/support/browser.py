"""A headless Chromium that asks nobody but the server that it is told of."""

import contextlib
import pathlib
import shutil
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page  # pyright: ignore[reportMissingImports]  (group browser)

SECONDS = 60_000  # of playwright, for what takes a moment on a quiet machine
_FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextlib.contextmanager
def chromium(folder: pathlib.Path, **options: Any) -> Generator["Page"]:
    """An empty page; the folder keeps the browser's profile."""
    from playwright.sync_api import sync_playwright  # pyright: ignore[reportMissingImports]  (group browser)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch_persistent_context(
            folder,
            executable_path=shutil.which("chromium"),
            chromium_sandbox=False,
            args=_FLAGS,
            viewport={"width": 1280, "height": 800},
            **options,
        )
        yield browser.pages[0]
        browser.close()
