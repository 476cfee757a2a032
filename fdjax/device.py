"""Facts about the device a computation is traced for."""

import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import jax
from jax.sharding import get_abstract_mesh

from fdjax.errors import ConfigError


class NoDeviceError(ConfigError):
    """JAX starts no device, as where `JAX_PLATFORMS` names one that is not there.

    Attributes:
        reason: why, mostly in JAX's words.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        asked = jax.config.jax_platforms
        if asked:
            message = (
                f"JAX_PLATFORMS is {asked!r}, and JAX starts no device by it: "
                f"{reason}; unset JAX_PLATFORMS, or see what `fdjax doctor` says"
            )
        else:
            message = f"JAX starts no device: {reason}; see what `fdjax doctor` says"
        super().__init__(message)


def platform() -> str:
    """The platform a trace is for: "cpu" or "gpu".

    An abstract device in the current mesh (ahead-of-time compilation) wins over
    the default backend.

    Raises:
        NoDeviceError: JAX starts none, here and for all below that ask for a device.
    """
    device = get_abstract_mesh().abstract_device
    if device is not None and device.platform:
        return "gpu" if device.platform in ("gpu", "cuda", "rocm") else device.platform
    return _started(jax.default_backend)


def kind() -> str:
    """The device's name as its vendor gives it, for example "NVIDIA H200"."""
    device = get_abstract_mesh().abstract_device
    if device is not None:
        return device.device_kind
    return _first().device_kind


# All of compute capability 9.0; "H20" stands for the H200 too.
_HOPPER = ("H100", "H20", "H800", "GH200")


def is_hopper() -> bool:
    """Whether it has wgmma, TMA and clusters: compute capability 9.0."""
    described = get_abstract_mesh().abstract_device
    if described is not None:  # only the name is known
        return any(name in described.device_kind for name in _HOPPER)
    return compute_capability() == (9, 0)


def compute_capability() -> tuple[int, int] | None:
    """That of an NVIDIA GPU; `None` of others, and where only the name is known."""
    if get_abstract_mesh().abstract_device is not None:
        return None
    text = str(getattr(_first(), "compute_capability", ""))
    match = re.fullmatch(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def claim_memory(fraction: float) -> None:
    """Asks JAX for a fraction of the accelerator's memory, where it is not too late.

    JAX sizes its pool when its backend starts; a process that has used JAX before, or
    that sets `XLA_CLIENT_MEM_FRACTION` itself, keeps the pool it has.
    """
    os.environ.setdefault("XLA_CLIENT_MEM_FRACTION", str(fraction))


def begin() -> None:
    """Starts JAX's backend in a thread: seconds on a GPU, of which Python has no part.

    After `claim_memory`. Who uses the backend waits for it, and is told if it fails.
    """

    def start() -> None:
        with suppress(Exception):
            jax.devices()

    threading.Thread(target=start, name="begin-backend").start()


def memory_budget(fraction: float) -> int:
    """Bytes the engine may use: JAX's pool on a GPU, a fraction of RAM on a CPU."""
    statistics = _first().memory_stats()
    if statistics is not None and "bytes_limit" in statistics:
        return int(statistics["bytes_limit"])
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(fraction * physical)


def _first() -> Any:
    return _started(jax.devices)[0]


def _started[T](ask: Callable[[], T]) -> T:
    """What JAX answers, which starts its backend for the first who asks."""
    try:
        return ask()
    except AssertionError as error:  # left with none, as it skips "cuda" without a GPU
        raise NoDeviceError(str(error) or "it sees no NVIDIA GPU") from error
    except RuntimeError as error:
        said, *_ = str(error).splitlines() or [type(error).__name__]
        reason = said.partition(" (set JAX_PLATFORMS=")[0]  # a remedy of its own
        raise NoDeviceError(reason.rstrip(".")) from error
