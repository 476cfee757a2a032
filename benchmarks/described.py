"""A device that is not here, for what is arithmetic."""

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from unittest import mock

from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from fdjax.kernels import ffi


@contextmanager
def described(kind: str | None) -> Generator[None]:
    """As on a GPU of this name, whose extension has every kernel; nothing can run.

    Tables that a user has made do not count.

    Args:
        kind: as its vendor names it, "NVIDIA H200"; `None`: the device that is here.
    """
    if kind is None:
        yield
        return
    gpu = AbstractDevice(device_kind=kind, num_cores=None, platform="gpu")
    mesh = AbstractMesh((), (), abstract_device=gpu)
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, XDG_CONFIG_HOME=folder),
        mock.patch.object(ffi, "refuse", _refuse),
        use_abstract_mesh(mesh),
    ):
        yield


def _refuse(operation: str, *, platform: str) -> str | None:
    return None if platform == "gpu" else f"{operation} is planned for a GPU"
