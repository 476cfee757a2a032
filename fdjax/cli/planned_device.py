"""The device that a command plans for, which need not be here."""

import contextlib
from contextlib import AbstractContextManager
from typing import Any, Literal

DeviceName = Literal["here", "cpu", "a100", "h100", "h200"]

_KINDS = {
    "cpu": ("cpu", "cpu"),
    "a100": ("gpu", "NVIDIA A100-SXM4-80GB"),
    "h100": ("gpu", "NVIDIA H100 80GB HBM3"),
    "h200": ("gpu", "NVIDIA H200"),
}


def planning_for(device: DeviceName) -> AbstractContextManager[Any]:
    """A context in which fdjax plans for a device that need not be here."""
    if device == "here":
        return contextlib.nullcontext()
    from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

    platform, kind = _KINDS[device]
    abstract = AbstractDevice(device_kind=kind, num_cores=None, platform=platform)
    return use_abstract_mesh(AbstractMesh((), (), abstract_device=abstract))
