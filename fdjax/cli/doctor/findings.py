"""What `fdjax doctor` finds out, as plain data."""

import os
import platform
import re
from dataclasses import dataclass
from importlib import metadata

from fdjax.cli.doctor import caches, driver, extras
from fdjax.cli.doctor.caches import Kept
from fdjax.cli.doctor.driver import Card
from fdjax.cli.options import ModelOptions
from fdjax.kernels.ffi import Extension
from fdjax.version import __version__

_LIBRARIES = ("jax", "jaxlib", "flax", "jax-cuda13-plugin", "transformers")
_REFUSAL = re.compile(r"; not (\w+): ")


@dataclass(frozen=True)
class Device:
    """The device that JAX computes on.

    Attributes:
        platform: "cpu" or "gpu".
        kind: its name.
        count: of such devices; one is used.
        capability: of computation, of an NVIDIA GPU.
        memory_bytes: what a model may use by default.
    """

    platform: str
    kind: str
    count: int
    capability: tuple[int, int] | None
    memory_bytes: int


@dataclass(frozen=True)
class Operation:
    """What serves an operation.

    Attributes:
        name: of the operation.
        served_by: the implementation.
        refused: the faster ones that do not, and why.
    """

    name: str
    served_by: str
    refused: dict[str, str]

    @staticmethod
    def of(line: str) -> "Operation":
        """From a line of `Op.explain`."""
        answer, *refusals = _REFUSAL.split(line)
        name, _, served_by = answer.partition(": ")
        pairs = zip(refusals[::2], refusals[1::2], strict=True)
        return Operation(name, served_by, dict(pairs))


@dataclass(frozen=True)
class Findings:
    """Everything `fdjax doctor` shows.

    Attributes:
        versions: of fdjax, Python and libraries; of those that are there.
        cards: the NVIDIA GPUs that the driver knows.
        no_cards: why there are none.
        device: what JAX computes on; `None` where it finds nothing at all.
        device_problem: what JAX says then.
        platforms_asked: `JAX_PLATFORMS`, where it is set.
        extension: the compiled one.
        model: whose operations are told.
        operations: of a decode step, a prefill and a draw.
        extras: packages that are missing, by extra.
        kept: caches and tables.
    """

    versions: dict[str, str]
    cards: list[Card]
    no_cards: str | None
    device: Device | None
    device_problem: str | None
    platforms_asked: str | None
    extension: Extension
    model: str
    operations: list[Operation]
    extras: dict[str, list[str]]
    kept: list[Kept]


def find(model: str) -> Findings:
    """Looks at this machine; allocates nothing, and fetches configurations only.

    Raises:
        ConfigError: there is no such model, or fdjax does not know its kind.
    """
    from fdjax.kernels import ffi

    cards, no_cards = driver.cards()
    device, problem = _device()
    return Findings(
        versions=_versions(),
        cards=cards,
        no_cards=no_cards,
        device=device,
        device_problem=problem,
        platforms_asked=os.environ.get("JAX_PLATFORMS"),
        extension=ffi.extension(),
        model=model,
        operations=[] if device is None else _operations(model),
        extras=extras.missing(),
        kept=caches.kept(None if device is None else device.kind),
    )


def _versions() -> dict[str, str]:
    found = {"fdjax": __version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _device() -> tuple[Device | None, str | None]:
    import jax

    from fdjax import device

    fraction = ModelOptions().memory_fraction
    device.claim_memory(fraction)
    try:
        started = device.platform()
    except device.NoDeviceError as error:
        return None, error.reason
    found = Device(
        platform=started,
        kind=device.kind(),
        count=jax.device_count(),
        capability=device.compute_capability(),
        memory_bytes=device.memory_budget(fraction),
    )
    return found, None


def _operations(model: str) -> list[Operation]:
    from fdjax.cli.kernels import all_explanations
    from fdjax.cli.loading import configuration
    from fdjax.cli.shortage import smallest_plan
    from fdjax.serve.setup import Settings

    settings = Settings.of(configuration(model, None), softmax="synchronised")
    lines = all_explanations(settings, smallest_plan(settings))
    return [Operation.of(line) for line in lines]
