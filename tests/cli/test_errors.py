"""What ends any command, told in one line."""

import jax
import pytest

from tests.cli.conftest import Invoke


@pytest.mark.parametrize(
    "command",
    [
        ("generate", "Once"),
        ("chat",),
        ("calibrate", "--text", __file__),
        ("inspect",),
        ("inspect", "--program"),
        ("inspect", "--plan", "512"),
        ("tune",),
        ("tune", "--part", "chip"),
        ("bench", "throughput"),
        ("bench", "latency"),
    ],
)
def test_no_command_computes_without_a_device(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
):
    def fail() -> None:
        raise AssertionError  # as JAX where JAX_PLATFORMS is "cuda", without a GPU

    monkeypatch.setattr(jax, "devices", fail)
    monkeypatch.setattr(jax, "default_backend", fail)
    result = invoke(*command)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: JAX")
    assert "starts no device" in result.stderr
    assert result.stderr.endswith("`fdjax doctor` says\n")
