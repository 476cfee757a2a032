"""Tests of compiled handlers, where the machine and the build have them."""

import pytest

from fdjax.kernels import ffi


def skip_without(operation: str, platform: ffi.Platform) -> None:
    """Skips a test where the extension has no handler, or another platform runs."""
    if (reason := ffi.refuse(operation, platform=platform)) is not None:
        pytest.skip(reason)
