"""Facts about the device a computation is traced for."""

import jax
from jax.sharding import get_abstract_mesh


def platform() -> str:
    """The platform a trace is for: "cpu" or "gpu".

    An abstract device in the current mesh (ahead-of-time compilation) wins over
    the default backend.
    """
    device = get_abstract_mesh().abstract_device
    if device is not None and device.platform:
        return "gpu" if device.platform in ("gpu", "cuda", "rocm") else device.platform
    return jax.default_backend()


def kind() -> str:
    """The device's name as its vendor gives it, for example "NVIDIA H200"."""
    device = get_abstract_mesh().abstract_device
    if device is not None:
        return device.device_kind
    return jax.devices()[0].device_kind
