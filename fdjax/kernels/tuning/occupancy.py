"""How many thread blocks and clusters run at once on the GPUs that are here.

The CUDA driver says so of a kernel that has nothing to do, and all of an SM's shared
memory, so that one block fits an SM: nothing is run.
"""

import ctypes
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from fdjax.errors import Unsupported
from fdjax.kernels.chip import SHARED_BYTES, Chip

CLUSTERS = range(2, 9)
"""Blocks of a cluster: more are no GPU's by default."""
_NEEDED = 4  # clusters of up to so many blocks stand in every table
_THREADS = 128
_KERNEL = b"""
.version 8.0
.target sm_90
.address_size 64
.visible .entry nothing() { ret; }
"""
_NUM_SMS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute, of a cluster's dimensions; its value has 64 bytes."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("dimensions", ctypes.c_uint * 16),
    )


class _Launch(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("num_attributes", ctypes.c_uint),
    )


@dataclass(frozen=True)
class Occupancy:
    """What the driver says of one GPU.

    Attributes:
        num_sms: streaming multiprocessors (SMs).
        clusters: by the blocks of a cluster, how many run at once.
    """

    num_sms: int
    clusters: Mapping[int, int]


def sizes(found: Sequence[Occupancy]) -> Chip:
    """What holds for each of some GPUs of a kind; sizes of clusters with none left out.

    Args:
        found: of one GPU at least.
    """
    least = {size: min(gpu.clusters[size] for gpu in found) for size in CLUSTERS}
    fitting = {size: n for size, n in least.items() if n or size <= _NEEDED}
    return Chip(min(gpu.num_sms for gpu in found), fitting)


def of_devices() -> list[Occupancy]:
    """Of each GPU that JAX has.

    Raises:
        Unsupported: the driver is not there, or refuses.
    """
    driver = _driver()
    _check(driver.cuInit(0))
    return [_of_device(driver, gpu.local_hardware_id) for gpu in jax.local_devices()]


@functools.cache
def _driver() -> Any:
    """The CUDA driver's library.

    Raises:
        Unsupported: there is none.
    """
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Unsupported(f"the CUDA driver cannot be loaded: {error}") from error


def _of_device(driver: Any, index: int) -> Occupancy:
    device, count, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    _check(driver.cuDeviceGet(ctypes.byref(device), index))
    _check(driver.cuDeviceGetAttribute(ctypes.byref(count), _NUM_SMS, device))
    # JAX's own, which it has made before.
    _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    try:
        _check(driver.cuCtxPushCurrent_v2(context))
        try:
            clusters = _clusters(driver, count.value)
        finally:
            driver.cuCtxPopCurrent_v2(ctypes.byref(context))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(device)
    return Occupancy(count.value, clusters)


def _clusters(driver: Any, num_sms: int) -> dict[int, int]:
    """Of the current GPU."""
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    _check(driver.cuModuleLoadData(ctypes.byref(module), _KERNEL))
    try:
        _check(driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"nothing"))
        _check(driver.cuFuncSetAttribute(kernel, _DYNAMIC_SHARED_BYTES, SHARED_BYTES))
        return {size: _at_once(driver, kernel, size, num_sms) for size in CLUSTERS}
    finally:
        driver.cuModuleUnload(module)


def _at_once(driver: Any, kernel: ctypes.c_void_p, size: int, num_sms: int) -> int:
    cluster = _Attribute(_CLUSTER_DIMENSION, 0, (size, 1, 1))
    launch = _Launch(
        (size * num_sms, 1, 1),
        (_THREADS, 1, 1),
        SHARED_BYTES,
        None,
        ctypes.pointer(cluster),
        1,
    )
    found = ctypes.c_int()
    _check(
        driver.cuOccupancyMaxActiveClusters(
            ctypes.byref(found), kernel, ctypes.byref(launch)
        )
    )
    return found.value


def _check(status: int) -> None:
    """Of a call of the driver.

    Raises:
        Unsupported: it is an error's.
    """
    if status:
        raise Unsupported(f"the CUDA driver refuses: error {status}")
