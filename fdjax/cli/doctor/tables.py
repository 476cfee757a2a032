"""`fdjax doctor`'s findings as tables."""

from rich.table import Table
from rich.text import Text

from fdjax.cli.doctor.caches import Kept
from fdjax.cli.doctor.findings import Device, Findings, Operation
from fdjax.cli.doctor.remedy import Step
from fdjax.cli.tables import pairs, print_all, titled
from fdjax.kernels.ffi import Extension
from fdjax.memory.plan import gib


def show(findings: Findings, step: Step) -> None:
    """Writes everything to stdout, the next step last.

    Raises:
        BrokenPipeError: who read stdout has gone.
    """
    told = [] if findings.device is None else _told(findings)
    print_all(
        pairs("Versions", findings.versions),
        pairs("\nDevice", _device_lines(findings)),
        pairs("\nExtension", _extension_lines(findings.extension)),
        *told,
        pairs("\nExtras", _extra_lines(findings.extras)),
        pairs("\nKept", {one.what: _kept_line(one) for one in findings.kept}),
        pairs("\nNext", {"broken" if step.broken else "ready": step.text}),
    )


def _device_lines(findings: Findings) -> dict[str, str]:
    lines = {
        f"GPU {number}": f"{card.name}, compute capability {card.capability}, "
        f"{gib(card.memory_mib * 2**20)}, driver {card.driver}"
        for number, card in enumerate(findings.cards)
    }
    if findings.no_cards is not None:
        lines["NVIDIA GPU"] = f"none: {findings.no_cards}"
    if findings.platforms_asked:
        lines["JAX_PLATFORMS"] = findings.platforms_asked
    lines["JAX uses"] = _used(findings.device, findings.device_problem)
    return lines


def _used(device: Device | None, problem: str | None) -> str:
    if device is None:
        return f"nothing: {problem}"
    number = f", the first of {device.count}" if device.count > 1 else ""
    return (
        f"{device.kind} ({device.platform}){number}; "
        f"{gib(device.memory_bytes)} for a model"
    )


def _extension_lines(extension: Extension) -> dict[str, str]:
    if extension.problem is not None:
        return {"fdjax._ffi": extension.problem}
    lines = {
        f"handlers, {platform}": ", ".join(operations)
        for platform, operations in extension.operations.items()
    }
    if "gpu" not in extension.operations:
        lines["handlers, gpu"] = "none: built without CUDA"
    else:
        lines["built for"] = ", ".join(extension.gpu_architectures)
    return lines | {"built against": f"jaxlib {extension.jaxlib}"}


def _told(findings: Findings) -> list[Table]:
    """What serves the operations; nothing does where there is no device."""
    operations = findings.operations
    return [_operations(operations, findings.model), _refusals(operations)]


def _operations(operations: list[Operation], model: str) -> Table:
    lines: dict[str, list[str]] = {}
    for one in operations:
        instead = f", not {', '.join(one.refused)}" if one.refused else ""
        lines.setdefault(one.name, []).append(f"{one.served_by}{instead}")
    told = {name: "; ".join(dict.fromkeys(said)) for name, said in lines.items()}
    return pairs(f"\nOperations of {model}", told)


def _refusals(operations: list[Operation]) -> Table:
    """Each reason once, with all that it keeps from serving."""
    whose: dict[str, list[str]] = {}
    for one in operations:
        for name, reason in one.refused.items():
            whose.setdefault(reason, []).append(f"{one.name}[{name}]")
    table = titled("\nWhy not")
    table.show_header = False
    table.add_column(style="dim", ratio=1)
    table.add_column(ratio=2)
    for reason, names in whose.items():
        table.add_row(Text(", ".join(dict.fromkeys(names))), Text(reason))
    if not whose:
        table.add_row("", Text("the fastest that there is serves everything"))
    return table


def _extra_lines(extras: dict[str, list[str]]) -> dict[str, str]:
    if not extras:
        return {"fdjax": "not installed, so nothing says what its extras are"}
    return {
        name: f"not there: {_few(missing)}" if missing else "there"
        for name, missing in extras.items()
    }


def _few(names: list[str], shown: int = 4) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def _kept_line(kept: Kept) -> str:
    if kept.problem is not None:
        return kept.problem
    if kept.count == 0:
        return f"nothing in {kept.place}"
    size = "" if kept.num_bytes is None else f", {gib(kept.num_bytes)}"
    return f"{kept.count} in {kept.place}{size}"
