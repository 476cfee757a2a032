"""What a program needs of the machine, or ends without at once, in one sentence."""

import concurrent.futures
import importlib.util
import multiprocessing
import pathlib
import sys
from collections.abc import Mapping

import jax

from fdjax import device
from fdjax.memory.plan import gib

# Of weights: a model of more is no measurement on a CPU, but hours, if it fits at all.
MOST_CPU_BYTES = 8 * 2**30
_STACK = "docs/stacks.md says how to install it, at the versions in tests/stacks/"
INSTALLED_BY: Mapping[str, str] = {
    "aiperf": "`.ci/run clients` installs it, at the versions in "
    "tests/clients/aiperf.txt",
    "sgl_jax": _STACK + "sgl-jax.txt",
    "torch": "`uv pip install -c constraints.txt --group parity` installs it, as "
    "CONTRIBUTING.md says of the group",
    "tunix": _STACK + "tunix.txt",
    "vllm": "docs/performance.md is of vLLM 0.26, which is installed by its own manual",
    "vllm_beam_search": "docs/beam-search.md is of vllm-beam-search-plugin 0.1.5",
}
"""Packages that are not in the project's environment, and how they come there."""


def gpu(*, instead: str = "`fdjax doctor` says why", apart: bool = False) -> None:
    """Ends a program whose numbers mean nothing without a GPU.

    It starts JAX, so it comes after `device.claim_memory`.

    Args:
        instead: what to do.
        apart: ask JAX in a process of its own, as another one will have the GPU.

    Raises:
        SystemExit: JAX computes on something else.
    """
    if (found := _found(apart=apart)) is not None:
        raise SystemExit(f"this benchmark needs a GPU, and {found}; {instead}")


def gpu_for(model: str | pathlib.Path, *, apart: bool = False) -> None:
    """Ends a program whose model is too large for anything but a GPU.

    Args:
        model: as `fdjax.LLM` takes it.
        apart: see `gpu`.

    Raises:
        SystemExit: JAX computes on something else, and the model is large.
    """
    if (found := _found(apart=apart)) is None:
        return
    from fdjax.serve.setup import Settings  # more than the rest of this needs

    num_bytes = Settings.of(model).weight_bytes
    if num_bytes > MOST_CPU_BYTES:
        raise SystemExit(
            f"this benchmark needs a GPU for {model} ({gib(num_bytes)} of weights), "
            f"and {found}; ask for a small model, as tales-5m"
        )


def packages(*names: str) -> None:
    """Ends a program without the packages that it runs beside.

    Args:
        names: as they are imported; each is in `INSTALLED_BY`.

    Raises:
        SystemExit: one is not installed.
    """
    for name in names:
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            raise SystemExit(missing(name))


def missing(name: str) -> str:
    """That a package is not there, and how it is installed."""
    how = INSTALLED_BY[name]
    return f"this benchmark needs {name}, which is not installed here: {how}"


def _found(*, apart: bool) -> str | None:
    """What JAX has in place of a GPU; `None`: it has one.

    Raises:
        SystemExit: it has no device at all.
    """
    if not apart:
        return _other_than_gpu()
    spawned = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawned) as pool:
        return pool.submit(_other_than_gpu).result()


def _other_than_gpu() -> str | None:
    try:
        platform = device.platform()
    except device.NoDeviceError as error:
        raise SystemExit(
            "this benchmark needs a GPU, and JAX found no device: "
            f"{error.reason}; `fdjax doctor` says what to do"
        ) from None
    if platform == "gpu":
        return None
    return f"JAX found a {platform.upper()} alone ({jax.devices()[0].device_kind})"
