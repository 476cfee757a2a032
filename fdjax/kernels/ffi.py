"""The extension `fdjax._ffi`: its handlers, registered, and what is missing of them."""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fdjax import device
from fdjax.kernels.architectures import refuse_architectures
from fdjax.notation import Array

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_STALE = "the extension fdjax._ffi was built from other sources: install fdjax again"
_limits: dict[str, dict[str, int | tuple[int, ...]]] = {}

try:
    import fdjax._ffi as _ffi  # noqa: PLR0402  (`from` raises a plain ImportError)

    _limits = _ffi.limits()
except ModuleNotFoundError:
    _ffi = None
    _problem = (
        "the extension fdjax._ffi is not built: install fdjax with pip where there is "
        "a C++ compiler"
    )
except ImportError as error:
    _ffi = None
    _problem = f"the extension fdjax._ffi does not load: {error}"
except AttributeError:
    _ffi = None
    _problem = _STALE

type Platform = Literal["cpu", "gpu"]

NO_LIMIT = 2**31 - 1
"""What stands for every limit where there is no extension, and so no handler."""

NO_GPU_HANDLERS = (
    "the extension fdjax._ffi is built without GPU handlers: install fdjax again where "
    "nvcc is found, or name it in CUDACXX"
)

# The operations that have a handler, by platform.
_targets: dict[Platform, frozenset[str]] = {}
_build_id = ""
_architectures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Extension:
    """What there is of the extension.

    Attributes:
        problem: why there is nothing of it, or `None`.
        operations: those that have a handler, by platform.
        gpu_architectures: what its GPU code was compiled for, in CMake's words.
        jaxlib: the version of the headers that it was built against.
    """

    problem: str | None
    operations: dict[Platform, tuple[str, ...]]
    gpu_architectures: tuple[str, ...]
    jaxlib: str | None


def extension() -> Extension:
    """What there is of the extension here."""
    return Extension(
        problem=_problem if _ffi is None else None,
        operations={name: tuple(sorted(held)) for name, held in _targets.items()},
        gpu_architectures=_architectures,
        jaxlib=None if _ffi is None else _ffi.build_info()["jaxlib"],
    )


def limit(operation: str, name: str) -> int:
    """A number of `ffi/<operation>/limits.h`, which alone holds it.

    Where there is no extension, nothing serves and nothing is limited: `NO_LIMIT`.
    """
    if name not in _limits.get(operation, {}):
        assert _ffi is None, f"{_STALE}: it has no limit {name} of {operation}"
        return NO_LIMIT
    value = _limits[operation][name]
    assert isinstance(value, int), f"{operation} has several {name}"
    return value


def limits(operation: str, name: str) -> tuple[int, ...]:
    """A list of numbers, likewise; empty where there is no extension."""
    if name not in _limits.get(operation, {}):
        assert _ffi is None, f"{_STALE}: it has no limits {name} of {operation}"
        return ()
    values = _limits[operation][name]
    assert isinstance(values, tuple), f"{operation} has one {name}"
    return values


class Attributes(dict[str, object]):
    """A struct of C++ as JAX takes it: a dictionary, hashable with what is nested."""

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(frozenset(self.items()))


def attributes(struct: "DataclassInstance") -> Attributes:
    """What a handler reads as its struct of the same fields: all are there, or none.

    Args:
        struct: of bools, ints (64 bits there), floats (32 bits) and further structs.
    """
    return Attributes(
        {
            field.name: _attribute(getattr(struct, field.name), field.type)
            for field in dataclasses.fields(struct)
        }
    )


def _attribute(value: Any, kind: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return attributes(value)
    widths: dict[object, Any] = {bool: np.bool_, int: np.int64, float: np.float32}
    return widths[kind](value)


def or_empty(array: Array | None, *shape: int, dtype: jax.typing.DTypeLike) -> Array:
    """An operand that may be absent: for a handler, one without elements is.

    Args:
        array: the operand.
        shape: of what stands for none; it has a 0.
        dtype: of that.
    """
    return jnp.zeros(shape, dtype) if array is None else array


def target(operation: str) -> str:
    """The name under which the handler of `operation` is registered.

    It changes with the extension's sources: a compiled program holds no more of a
    handler than its name, so a program cached on disk must not find a newer one.
    """
    return f"fdjax.{operation}.{_build_id}"


def refuse(operation: str, *, platform: Platform) -> str | None:
    """Why the extension cannot serve `operation` on `platform` now, or `None`."""
    if _ffi is None:
        return _problem
    if operation not in _targets.get(platform, frozenset()):
        if platform == "gpu" and "gpu" not in _targets:
            return NO_GPU_HANDLERS
        return f"the extension fdjax._ffi has no {platform} handler for {operation}"
    if device.platform() != platform:
        return f"it runs on {platform}, and the call is traced for {device.platform()}"
    return _refuse_device() if platform == "gpu" else None


def _refuse_device() -> str | None:
    """Why no code of the extension runs on the GPU traced for, or `None`."""
    capability = device.compute_capability()
    if capability is None:  # a described device has no more than a name
        return None
    return refuse_architectures(_architectures, capability)


def refuse_below_sm90() -> str | None:
    """Why wgmma, TMA and clusters cannot run on the device traced for, or `None`."""
    return None if device.is_hopper() else f"needs sm_90, and this is {device.kind()}"


def _register() -> None:
    """Queues every handler; a backend that starts later takes its own."""
    global _architectures, _build_id
    if _ffi is None:
        return
    info = _ffi.build_info()
    _build_id, _architectures = info["build_id"], info["gpu_architectures"]
    for xla_platform, handlers in _ffi.targets().items():
        for operation, handler in handlers.items():
            jax.ffi.register_ffi_target(
                target(operation), handler, platform=xla_platform
            )
        _targets["cpu" if xla_platform == "cpu" else "gpu"] = frozenset(handlers)


_register()
