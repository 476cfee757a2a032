"""Which GPUs the extension's code runs on."""

import jax
import pytest

from fdjax.kernels import ffi
from fdjax.kernels.architectures import refuse_architectures

DEFAULT = ("80-real", "90a-real")


@pytest.mark.parametrize(
    ("architectures", "capability", "runs"),
    [
        (DEFAULT, (8, 0), True),
        (DEFAULT, (8, 9), True),
        (DEFAULT, (9, 0), True),
        (DEFAULT, (7, 5), False),
        (DEFAULT, (10, 0), False),
        (DEFAULT, (12, 0), False),
        (("90a-real",), (8, 0), False),
        (("90-real",), (9, 0), True),
        (("86-real",), (8, 0), False),
        (("80-virtual",), (12, 0), True),  # PTX, which the driver compiles
        (("80",), (10, 3), True),
        (("90a",), (10, 0), False),  # PTX too, but for one GPU
        (("100f-real",), (10, 3), True),
        (("100f",), (12, 0), False),
        (("120a-real",), (12, 1), False),
        (("native",), (12, 0), True),
    ],
)
def test_code_runs_where_cuda_says(
    architectures: tuple[str, ...], capability: tuple[int, int], runs: bool
):
    said = refuse_architectures(architectures, capability)
    assert (said is None) == runs


def test_a_newer_gpu_is_told_what_to_build(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ffi, "_ffi", object())
    monkeypatch.setattr(ffi, "_architectures", DEFAULT)
    monkeypatch.setattr(ffi, "_targets", {"gpu": frozenset({"draw"})})
    monkeypatch.setattr(ffi.device, "platform", lambda: "gpu")
    monkeypatch.setattr(ffi.device, "compute_capability", lambda: (10, 0))
    said = ffi.refuse("draw", platform="gpu")
    assert said is not None
    assert (
        "code for 80-real, 90a-real, and this GPU has compute capability 10.0" in said
    )
    assert "FDJAX_CUDA_ARCHITECTURES=100-real" in said
    monkeypatch.setattr(ffi.device, "compute_capability", lambda: (9, 0))
    assert ffi.refuse("draw", platform="gpu") is None
    monkeypatch.setattr(ffi.device, "compute_capability", lambda: None)
    assert ffi.refuse("draw", platform="gpu") is None


@pytest.mark.parametrize(
    ("text", "capability"), [("9.0", (9, 0)), ("12.0", (12, 0)), ("gfx942", None)]
)
def test_the_capability_is_jaxs(
    text: str, capability: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
):
    class Device:
        compute_capability = text

    monkeypatch.setattr(jax, "devices", lambda: [Device])
    assert ffi.device.compute_capability() == capability
    assert ffi.device.is_hopper() == (capability == (9, 0))
