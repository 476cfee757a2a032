"""What a trace is for, and how much memory there is."""

import os
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
