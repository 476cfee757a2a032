"""The layer program of a model, as `fdjax inspect --program` shows it."""

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from rich.table import Table

from fdjax.cli.kernels import NUM_ROWS, NUM_TOKENS
from fdjax.cli.linear_kernels import LinearKernels, linear_kernels
from fdjax.cli.tables import pairs, print_all, titled
from fdjax.models.program import Program, program_of
from fdjax.models.program import instructions as do
from fdjax.models.program.buffers import Buffers, Place, assign
from fdjax.models.program.instructions import Instruction
from fdjax.models.weights import parameter_shapes
from fdjax.serve.setup import Settings

_LAYER = re.compile(r"layers\.(\d+)\.")
_DECODE, _PROMPTS = f"{NUM_ROWS} rows", f"{NUM_TOKENS} tokens"


@dataclass(frozen=True)
class Line:
    """One instruction.

    Attributes:
        instruction: what it does, with its epilogue or what else is special.
        parameters: what it reads of the weights; in a layer, without the layer.
        reads: where its operands lie, as "3" or "3 from 12288".
        writes: where its results lie.
        columns: of what it writes.
        parameter_bytes: of what it reads besides.
        decode: what serves it in decoding, where it is a linear map.
        prompts: in a call of prompts.
    """

    instruction: str
    parameters: list[str]
    reads: list[str]
    writes: list[str]
    columns: int
    parameter_bytes: int
    decode: str
    prompts: str


@dataclass(frozen=True)
class Section:
    """Instructions that come together: an end of the model, or layers of a kind."""

    title: str
    lines: list[Line]


@dataclass(frozen=True)
class ProgramReport:
    """A program in words.

    Attributes:
        buffer_columns: widths of the three buffers.
        token_bytes: of all three, a token.
        num_instructions: of the whole program.
        decode: what serves the operation `layer_program` in decoding, and why not
            another.
        prompts: in a call of prompts.
        sections: the instructions, those of like layers once.
    """

    buffer_columns: list[int]
    token_bytes: int
    num_instructions: int
    decode: str
    prompts: str
    sections: list[Section]


def report_program(settings: Settings) -> ProgramReport:
    """The program of a call of prompts; that of decoding has no select."""
    program = program_of(settings.config, selects=True)
    buffers = assign(program)
    lines = _Lines(
        settings,
        buffers,
        decode=linear_kernels(settings, prompts=False),
        prompts=linear_kernels(settings, prompts=True),
    )
    return ProgramReport(
        buffer_columns=list(buffers.widths),
        token_bytes=buffers.columns * settings.dtype.itemsize,
        num_instructions=len(program.instructions),
        decode=lines.decode.program,
        prompts=lines.prompts.program,
        sections=list(_sections(program, lines)),
    )


def show_program(report: ProgramReport) -> None:
    """Writes the program to stdout.

    Raises:
        BrokenPipeError: who read stdout has gone.
    """
    first, second, third = report.buffer_columns
    summary = pairs(
        "Program\n",
        {
            "instructions": f"{report.num_instructions}, of a call with prompts; "
            "decoding has no select",
            "buffers": f"1 and 2 of {first} and {second} columns, 3 of {third}",
            "activations": f"{report.token_bytes:,} bytes a token",
            **_served(report),
        },
    )
    print_all(summary, *map(_table, report.sections))


def _served(report: ProgramReport) -> dict[str, str]:
    """What serves the operation, once where it is the same for all calls."""
    if report.decode == report.prompts:
        return {"layer_program": report.decode}
    return {
        f"layer_program, {_DECODE}": report.decode,
        f"layer_program, {_PROMPTS}": report.prompts,
    }


class _Lines:
    """Makes lines of instructions.

    Args:
        settings: the model and its type.
        buffers: where values lie.
        decode: what computes linear maps in decoding.
        prompts: in a call of prompts.
    """

    def __init__(
        self,
        settings: Settings,
        buffers: Buffers,
        *,
        decode: LinearKernels,
        prompts: LinearKernels,
    ) -> None:
        self.decode = decode
        self.prompts = prompts
        self._shapes = parameter_shapes(settings.config, dtype=settings.dtype)
        self._buffers = buffers

    def line(self, instruction: Instruction) -> Line:
        """An instruction in words."""
        held = [self._shapes[path] for path in instruction.parameters]
        is_linear = isinstance(instruction, do.Linear | do.Head)
        weight = instruction.weight if is_linear else ""
        return Line(
            instruction=_described(instruction),
            parameters=[_role(path) for path in instruction.parameters],
            reads=[self._place(value) for value in instruction.reads],
            writes=[self._place(value) for value in instruction.writes],
            columns=sum(value.columns for value in instruction.writes),
            parameter_bytes=sum(
                math.prod(each.shape) * each.dtype.itemsize for each in held
            ),
            decode=self.decode.names.get(weight, ""),
            prompts=self.prompts.names.get(weight, ""),
        )

    def _place(self, value: do.Value) -> str:
        place: Place = self._buffers.places[value.index]
        return (
            f"{place.buffer} from {place.first}" if place.first else f"{place.buffer}"
        )


def _sections(program: Program, lines: _Lines) -> Iterator[Section]:
    """The two ends, and between them every kind of layer once."""
    layers: dict[int, list[Line]] = {}
    ends: dict[str, list[Line]] = {}
    current: int | None = None
    for instruction in program.instructions:
        current = _layer_of(instruction, current)
        name = "Embedding" if not layers else "Head"
        mine = ends.setdefault(name, []) if current is None else None
        written = layers.setdefault(current, []) if current is not None else mine
        assert written is not None
        written.append(lines.line(instruction))
    kinds: dict[tuple[str, ...], list[int]] = {}
    for layer, written in layers.items():
        kinds.setdefault(tuple(map(repr, written)), []).append(layer)
    yield Section("Embedding", ends["Embedding"])
    for alike in kinds.values():
        yield Section(_numbered(alike), layers[alike[0]])
    yield Section("Head", ends["Head"])


def _layer_of(instruction: Instruction, current: int | None) -> int | None:
    """The layer that an instruction belongs to; without parameters, the current one."""
    for path in instruction.parameters:
        found = _LAYER.match(path)
        return int(found[1]) if found else None
    return instruction.layer if isinstance(instruction, do.Attention) else current


def _numbered(layers: list[int]) -> str:
    if len(layers) == 1:
        return f"Layer {layers[0]}"
    steps = {after - before for before, after in itertools.pairwise(layers)}
    if steps == {1}:
        return f"Layers {layers[0]} to {layers[-1]}"
    if len(steps) == 1:
        return f"Layers {layers[0]}, {layers[1]}, ... {layers[-1]}"
    return f"Layers {', '.join(map(str, layers))}"


def _described(instruction: Instruction) -> str:
    match instruction:
        case do.Norm():
            words = ["norm"] * (instruction.delta_scale is not None)
            words += ["add"] * (len(instruction.reads) - 1) + ["norm"]
        case do.Linear(epilogue=do.Add()):
            words = ["linear", "add"]
        case do.Linear(epilogue=do.Gate(name)):
            words = ["linear", f"{name} gate"]
        case do.Linear(epilogue=do.Activate(name)):
            words = ["linear", name]
        case do.Attention():
            words = _attention(instruction)
        case _:
            words = [type(instruction).__name__.lower()]
    return ", ".join(words)


def _attention(instruction: do.Attention) -> list[str]:
    parts = ["rotate", "attention"] if instruction.frequencies else ["attention"]
    if instruction.slopes:
        parts.append("ALiBi")
    if instruction.soft_cap is not None:
        parts.append(f"cap {instruction.soft_cap:g}")
    if instruction.window is not None:
        parts.append(f"window {instruction.window}")
    return parts


def _role(path: str) -> str:
    """A parameter's path; in a layer without the layer."""
    return _LAYER.sub("", path)


def _table(section: Section) -> Table:
    table = titled(f"\n{section.title}")
    names = ("instruction", "reads", "writes", "columns", "parameters")
    for name in (*names, "MiB", _DECODE, _PROMPTS):
        table.add_column(
            name, justify="right" if name in ("columns", "MiB") else "left"
        )
    for line in section.lines:
        table.add_row(
            line.instruction,
            ", ".join(line.reads),
            ", ".join(line.writes),
            str(line.columns or ""),
            "\n".join(line.parameters),
            f"{line.parameter_bytes / 2**20:,.1f}" if line.parameters else "",
            line.decode,
            line.prompts,
        )
    return table
