"""What a trace is for, and how much memory there is."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh
from jaxlib import xla_client

from fdjax import device

CLAIM = "XLA_CLIENT_MEM_FRACTION"


def traced_for(kind: str, platform: str) -> use_abstract_mesh:
    """A trace for a device that is not there."""
    described = AbstractDevice(device_kind=kind, num_cores=None, platform=platform)
    return use_abstract_mesh(AbstractMesh((), (), abstract_device=described))


@pytest.mark.cpu
def test_a_trace_is_for_the_default_device():
    assert device.platform() == "cpu"
    assert device.kind() == jax.devices()[0].device_kind
    assert not device.is_hopper()


@pytest.mark.parametrize("platform", ["gpu", "cuda", "rocm"])
def test_a_trace_may_be_for_a_gpu_that_is_not_there(platform: str):
    with traced_for("NVIDIA H200", platform):
        assert (device.platform(), device.kind()) == ("gpu", "NVIDIA H200")


@pytest.mark.parametrize(
    ("kind", "is_hopper"),
    [
        ("NVIDIA H100 80GB HBM3", True),
        ("NVIDIA H200", True),
        ("NVIDIA H20", True),
        ("NVIDIA GH200 480GB", True),
        ("NVIDIA A100-SXM4-80GB", False),
        ("NVIDIA B200", False),
    ],
)
def test_names_of_hopper(kind: str, is_hopper: bool):
    with traced_for(kind, "gpu"):
        assert device.is_hopper() == is_hopper


# --- No device ------------------------------------------------------------------------

ASKING = (
    device.platform,
    device.kind,
    device.is_hopper,
    device.compute_capability,
    partial(device.memory_budget, 0.5),
)


# JAX's ways to say that it is left with no platform, and that one does not start.
FAULTS = (
    (AssertionError(), "it sees no NVIDIA GPU"),
    (RuntimeError(), "RuntimeError"),
    (RuntimeError("no x. (set JAX_PLATFORMS='' to choose)"), "no x"),
    (RuntimeError("no x\nand more"), "no x"),
)


@pytest.mark.parametrize("ask", ASKING)
@pytest.mark.parametrize(("fault", "reason"), FAULTS)
def test_whatever_is_asked_of_no_device(
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[], object],
    fault: Exception,
    reason: str,
):
    def fail() -> None:
        raise fault

    monkeypatch.setattr(jax, "devices", fail)
    monkeypatch.setattr(jax, "default_backend", fail)
    with pytest.raises(device.NoDeviceError) as raised:
        ask()
    assert raised.value.reason == reason


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            "tpu",
            "JAX_PLATFORMS is 'tpu', and JAX starts no device by it: no libtpu; unset "
            "JAX_PLATFORMS, or see what `fdjax doctor` says",
        ),
        (None, "JAX starts no device: no libtpu; see what `fdjax doctor` says"),
    ],
)
def test_a_remedy_is_for_what_was_asked(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, message: str
):
    given = SimpleNamespace(jax_platforms=asked)
    monkeypatch.setattr(jax, "config", given)
    assert str(device.NoDeviceError("no libtpu")) == message


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("asked", "reason"),
    [("cuda", "it sees no NVIDIA GPU"), ("nonsense", "Unable to initialize")],
)
def test_a_platform_that_is_not_there(asked: str, reason: str):
    """A process of its own, as JAX starts once; nor does its end say it once more."""
    code = (
        "import fdjax\n"
        "try: fdjax.LLM()\n"
        "except fdjax.ConfigError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"JAX_PLATFORMS": asked},
        capture_output=True,
        text=True,
        check=True,
    )
    wanted = f"JAX_PLATFORMS is {asked!r}, and JAX starts no device by it: {reason}"
    assert done.stdout.startswith(wanted)
    assert "Traceback" not in done.stderr


# --- Memory ---------------------------------------------------------------------------


@pytest.mark.cpu
@pytest.mark.parametrize("parts", [2, 4])
def test_a_cpu_offers_a_fraction_of_its_memory(parts: int):
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert device.memory_budget(1 / parts) == physical // parts


def test_a_gpu_offers_the_pool_that_was_claimed(monkeypatch: pytest.MonkeyPatch):
    """All of it: the fraction is taken when JAX makes the pool."""
    gpu = SimpleNamespace(memory_stats=lambda: {"bytes_limit": 7 * 2**30, "num": 1})
    monkeypatch.setattr(jax, "devices", lambda: [gpu])
    assert device.memory_budget(0.25) == device.memory_budget(0.5) == 7 * 2**30


def pool_fraction() -> object:
    """Of the pool that JAX would make on a GPU now."""
    return xla_client.generate_pjrt_gpu_plugin_options().get("memory_fraction")


@pytest.fixture
def unclaimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CLAIM, "")  # so that what a test claims is undone
    monkeypatch.delenv(CLAIM)
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)  # the old name


@pytest.mark.usefixtures("unclaimed")
@pytest.mark.parametrize("fraction", [0.25, 0.5])
def test_a_claim_is_what_jax_makes_its_pool_of(fraction: float):
    assert pool_fraction() is None
    device.claim_memory(fraction)
    assert pool_fraction() == fraction


@pytest.mark.usefixtures("unclaimed")
def test_the_first_claim_counts(monkeypatch: pytest.MonkeyPatch):
    device.claim_memory(0.25)
    device.claim_memory(0.5)
    assert pool_fraction() == 0.25
    monkeypatch.setenv(CLAIM, "0.75")  # the user's own
    device.claim_memory(0.5)
    assert pool_fraction() == 0.75
