"""What a CUDA driver says of a GPU's SMs and clusters; here one that is made up."""

import ctypes
from typing import Any

import jax
import pytest

from fdjax.errors import Unsupported
from fdjax.kernels.chip import SHARED_BYTES, Chip
from fdjax.kernels.tuning import occupancy
from fdjax.kernels.tuning.occupancy import CLUSTERS, Occupancy

FIT = {2: 57, 3: 36, 4: 26, 5: 20, 6: 15, 7: 0, 8: 0}


class Driver:
    """One of a GPU of 114 SMs; what is pushed is popped, and what is kept released."""

    def __init__(self, refuse: str = "") -> None:
        self._refuse = refuse
        self.held: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name == self._refuse:
                return 200
            if answer := vars(type(self)).get(f"_{name}"):
                answer(self, *arguments)
            return 0

        return call

    def _cuDeviceGetAttribute(self, found: Any, which: int, _: Any) -> None:
        assert which == 16
        found._obj.value = 114

    def _cuDevicePrimaryCtxRetain(self, *_: Any) -> None:
        self.held.append("context")

    def _cuDevicePrimaryCtxRelease_v2(self, _: Any) -> None:
        self.held.remove("context")

    def _cuCtxPushCurrent_v2(self, _: Any) -> None:
        self.held.append("current")

    def _cuCtxPopCurrent_v2(self, _: Any) -> None:
        self.held.remove("current")

    def _cuModuleLoadData(self, module: Any, text: bytes) -> None:
        assert b".target sm_90" in text
        self.held.append("module")
        module._obj.value = 7

    def _cuModuleUnload(self, module: ctypes.c_void_p) -> None:
        assert module.value == 7
        self.held.remove("module")

    def _cuModuleGetFunction(self, _: Any, module: Any, name: bytes) -> None:
        assert name in occupancy._KERNEL
        assert module.value == 7

    def _cuFuncSetAttribute(self, _: Any, which: int, value: int) -> None:
        assert (which, value) == (8, SHARED_BYTES)

    def _cuOccupancyMaxActiveClusters(self, found: Any, _: Any, launch: Any) -> None:
        told = launch._obj
        assert told.num_attributes == 1 and told.attributes[0].id == 4
        size, *rest = told.attributes[0].dimensions
        assert rest[:2] == [1, 1] and told.grid[0] % size == 0
        assert told.shared_bytes == SHARED_BYTES
        found._obj.value = FIT[size]


class Gpu:
    """A device of JAX."""

    local_hardware_id = 3


def test_the_driver_is_asked_and_left_as_it_was(monkeypatch: pytest.MonkeyPatch):
    driver = Driver()
    monkeypatch.setattr(occupancy, "_driver", lambda: driver)
    monkeypatch.setattr(jax, "local_devices", lambda: [Gpu()])
    found = occupancy.of_devices()
    assert found == [Occupancy(114, FIT)]
    assert not driver.held
    assert occupancy.sizes(found) == Chip(114, {k: n for k, n in FIT.items() if n})


def test_structs_are_as_large_as_cudas():
    assert ctypes.sizeof(occupancy._Launch) == 56
    assert occupancy._Launch.attributes.offset == 40
    assert ctypes.sizeof(occupancy._Attribute) == 72
    assert occupancy._Attribute.dimensions.offset == 8


def test_of_several_gpus_what_each_has_room_for():
    other = Occupancy(132, {**FIT, 2: 66, 3: 35, 7: 15})
    found = occupancy.sizes([Occupancy(114, FIT), other])
    assert (found.num_sms, found.at_once(2), found.at_once(3)) == (114, 57, 35)
    assert set(CLUSTERS) - set(found.clusters) == {7, 8}


@pytest.mark.parametrize(
    "call", ["cuInit", "cuModuleLoadData", "cuOccupancyMaxActiveClusters"]
)
def test_a_driver_that_refuses_is_told(monkeypatch: pytest.MonkeyPatch, call: str):
    driver = Driver(refuse=call)
    monkeypatch.setattr(occupancy, "_driver", lambda: driver)
    monkeypatch.setattr(jax, "local_devices", lambda: [Gpu()])
    with pytest.raises(Unsupported, match="error 200"):
        occupancy.of_devices()
    assert not driver.held


def test_without_a_driver_that_is_told(monkeypatch: pytest.MonkeyPatch):
    def missing(_: str) -> None:
        raise OSError("libcuda.so.1: no such file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(Unsupported, match=r"cannot be loaded: libcuda\.so\.1"):
        occupancy._driver.__wrapped__()
