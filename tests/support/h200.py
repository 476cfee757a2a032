"""As if the trace were for an H200, and the extension had its handlers."""

import pathlib

import pytest

from fdjax import device
from fdjax.kernels import ffi


def pretend(monkeypatch: pytest.MonkeyPatch, config_home: pathlib.Path) -> None:
    """Nothing can run then; what is asked before does.

    Args:
        monkeypatch: of the test.
        config_home: in place of the user's own folder of tables.
    """
    monkeypatch.setattr(device, "platform", lambda: "gpu")
    monkeypatch.setattr(device, "kind", lambda: "NVIDIA H200")
    refusals = {"gpu": None, "cpu": "here is a GPU"}
    monkeypatch.setattr(ffi, "refuse", lambda _, platform: refusals[platform])
    monkeypatch.setattr(device, "is_hopper", lambda: True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config_home))
