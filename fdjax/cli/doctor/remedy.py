"""From what was found to the one next step."""

from collections.abc import Iterator
from dataclasses import dataclass

from fdjax.cli.doctor.findings import Findings
from fdjax.errors import to_install
from fdjax.kernels.architectures import refuse_architectures
from fdjax.kernels.ffi import NO_GPU_HANDLERS

# JAX's CUDA 13 wheels start on no older branch of the driver.
OLDEST_DRIVER = 580


@dataclass(frozen=True)
class Step:
    """What to do next.

    Attributes:
        text: why, and what.
        broken: whether something does not work, or far slower than it could.
    """

    text: str
    broken: bool


def next_step(findings: Findings) -> Step:
    """The first of what is broken; else what is missing; else how to start."""
    for text in _broken(findings):
        return Step(text, broken=True)
    if findings.extras.get("serve"):
        packages = ", ".join(findings.extras["serve"])
        return Step(f"to serve ({packages}), {to_install('serve')}", broken=False)
    if findings.device is not None and findings.device.platform == "gpu":
        return Step("serve a model: fdjax serve Qwen/Qwen3-8B", broken=False)
    return Step('let a model tell a tale: fdjax generate "Once upon a time"', False)


def _broken(findings: Findings) -> Iterator[str]:
    """What does not work, the first cause first."""
    yield from _unseen_gpu(findings)
    device, extension = findings.device, findings.extension
    if device is None:
        asked = findings.platforms_asked
        hint = f"; unset JAX_PLATFORMS, which is {asked!r}" if asked else ""
        yield f"JAX finds no device: {findings.device_problem}{hint}"
    if extension.problem is not None:
        yield extension.problem
    if device is not None and device.platform == "gpu":
        if "gpu" not in extension.operations:
            yield NO_GPU_HANDLERS
        elif device.capability is not None:
            reason = refuse_architectures(
                extension.gpu_architectures, device.capability
            )
            if reason is not None:
                yield reason
    for kept in findings.kept:
        if kept.problem is not None:
            yield f"{kept.what}: {kept.problem}"


def _unseen_gpu(findings: Findings) -> Iterator[str]:
    """Why JAX computes on something else than the GPU that is there."""
    if not findings.cards:
        return
    if findings.device is not None and findings.device.platform == "gpu":
        return
    card = findings.cards[0]
    asked = findings.platforms_asked
    if asked and not {"cuda", "gpu"} & set(asked.split(",")):
        yield (
            f"JAX leaves the {card.name} alone, because JAX_PLATFORMS is {asked!r}: "
            "unset it"
        )
    elif findings.extras.get("cuda13"):
        yield f"JAX has no CUDA for the {card.name}: {to_install('cuda13')}"
    elif 0 < card.driver_major < OLDEST_DRIVER:
        yield (
            f"the driver {card.driver} of the {card.name} is older than CUDA 13 needs: "
            f"update it to {OLDEST_DRIVER} or newer"
        )
    else:
        problem = findings.device_problem or "it does not say why"
        yield (
            f"JAX does not use the {card.name} ({problem}): see what "
            "python -c \"import jax; jax.devices('cuda')\" says"
        )
