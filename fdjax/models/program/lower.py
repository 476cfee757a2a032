"""From a program to launches: each instruction as the kernels that compute it."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import jax

from fdjax.kernels.activations import place as activation_place
from fdjax.kernels.decode_attention import UnifiedMax
from fdjax.kernels.embedding.cuda import handlers_scale
from fdjax.kernels.layer_program import launches as do
from fdjax.kernels.layer_program.launches import Launch
from fdjax.kernels.layer_program.memory import Memory
from fdjax.kernels.layer_program.operands import Operand, Region, WeightOperand
from fdjax.kernels.paged import ScoreAttributes
from fdjax.kernels.weight import FORMATS, Weight, format_of
from fdjax.models.program import instructions
from fdjax.models.program.buffers import Buffers, assign
from fdjax.models.program.gemms import Gemms
from fdjax.models.program.instructions import Program, Value
from fdjax.models.program.views import RowCounts
from fdjax.notation import Array

_SCRATCH = Operand(Region.SCRATCH)
"""What an instruction's launches have to themselves: see `_scratch_size`."""


@dataclass
class Lowering:
    """Makes the launches of a program.

    Attributes:
        program: what is done.
        rows: of the call.
        parameters: those that it reads, by path; shapes and types are enough.
        windows: those of its layers, each once, as handlers are told them.
    """

    program: Program
    rows: RowCounts
    parameters: Mapping[str, Array | Weight]
    windows: Sequence[int]
    _buffers: Buffers = field(init=False)
    _arrays: dict[str, tuple[Operand, ...]] = field(init=False)
    _gemms: Gemms = field(init=False)

    def __post_init__(self) -> None:
        self._buffers = assign(self.program)
        regions = itertools.count(Region.WEIGHTS)
        self._arrays = {
            path: tuple(Operand(next(regions)) for _ in jax.tree.leaves(each))
            for path, each in self.parameters.items()
        }
        self._gemms = Gemms(self.rows, self.parameters)

    def launches(self) -> tuple[Launch, ...]:
        """All of them, in order."""
        every = self.program.instructions
        return tuple(launch for one in every for launch in self._launches(one))

    @property
    def memory(self) -> Memory:
        """What the launches need."""
        scratch = max(map(self._scratch_size, self.program.instructions))
        return Memory(self._buffers.widths, scratch)

    def _launches(self, one: instructions.Instruction) -> Iterator[Launch]:
        match one:
            case instructions.Embed():
                yield self._embed(one)
            case instructions.Head():
                return  # after the call
            case instructions.Norm():
                yield self._norm(one)
            case instructions.HeadNorm():
                yield self._head_norm(one)
            case instructions.Linear():
                yield from self._linear(one)
            case instructions.Attention():
                yield from self._attention(one)
            case instructions.Sum():
                x, delta = one.reads
                size = self.rows.of(x) * x.columns
                yield do.Sum(size, self._at(x), self._at(delta), self._out(one))
            case instructions.Select():
                (x,) = one.reads
                yield do.Gather(
                    False, x.columns, self.rows.of(x), self._at(x), self._out(one)
                )
            case _:
                raise AssertionError(one)

    def _embed(self, one: instructions.Embed) -> Launch:
        (x,), table = one.writes, one.position_table
        return do.Embed(
            rows=self.rows.of(x),
            columns=x.columns,
            scale=float(handlers_scale(one.factor)),
            num_vectors=self.parameters[one.weight].shape[0],
            num_positions=0 if table is None else self.parameters[table].shape[0],
            position_offset=one.position_offset,
            table=self._array(one.weight),
            positions=self._optional(table),
            out=self._at(x),
        )

    def _norm(self, one: instructions.Norm) -> Launch:
        x, *delta = one.reads
        out, *total = one.writes
        return do.Norm(
            rows=self.rows.of(x),
            columns=x.columns,
            epsilon=float(one.epsilon),
            scale_offset=float(one.scale_offset),
            x=self._at(x),
            delta=self._at(delta[0]) if delta else None,
            delta_scale=self._optional(one.delta_scale),
            scale=self._array(one.scale),
            bias=self._optional(one.bias),
            total=self._at(total[0]) if total else None,
            out=self._at(out),
        )

    def _head_norm(self, one: instructions.HeadNorm) -> Launch:
        (x,) = one.reads
        heads = one.num_heads + 2 * one.num_kv_heads
        return do.HeadNorm(
            rows=self.rows.of(x),
            num_heads=one.num_heads,
            num_kv_heads=one.num_kv_heads,
            head_dim=x.columns // heads,
            epsilon=float(one.epsilon),
            scale_offset=float(one.scale_offset),
            x=self._at(x),
            scale=self._array(one.scale),
            bias=self._optional(one.bias),
            key_scale=self._array(one.key_scale),
            key_bias=self._optional(one.key_bias),
            out=self._out(one),
        )

    def _linear(self, one: instructions.Linear) -> Iterator[Launch]:
        x, *residual = one.reads
        m, (n, k) = self.rows.of(x), self.parameters[one.weight].shape
        gate, epilogue = one.gate, one.epilogue
        slice_rows = self._gemms.slice_rows(one)
        yield do.Linear(
            m=m,
            n=n,
            k=k,
            gated=gate is not None,
            activation=0 if gate is None else activation_place(gate),
            config=self._gemms.config(one),
            x=self._at(x),
            weight=self._weight(one.weight),
            bias=self._optional(one.bias),
            residual=self._at(residual[0]) if residual else None,
            y=self._out(one),
            slice_rows=slice_rows,
            wide=_SCRATCH if slice_rows else None,
        )
        if isinstance(epilogue, instructions.Activate):
            place = activation_place(epilogue.activation)
            yield do.Activate(m * n, place, self._out(one))

    def _scratch_size(self, one: instructions.Instruction) -> int:
        """Elements that an instruction's launches have to themselves."""
        match one:
            case instructions.Linear():
                return self._gemms.scratch(one)
            case instructions.Attention():
                # Of all queries, or of those that lie among others'.
                apart = self.rows.decoding if self.rows.prompts else 0
                rows = self.rows.tokens if self.rows.shares else apart
                return rows * one.num_heads * one.head_dim
            case _:
                return 0

    def _attention(self, one: instructions.Attention) -> Iterator[Launch]:
        qkv, mixed = self._at(one.reads[0]), self._out(one)
        if self.rows.shares:
            yield from self._shared_attention(one, qkv, mixed)
            return
        if not self.rows.prompts and turns_in_attention(one):
            yield self._decode(one, qkv, mixed, rotates=True)
            return
        # Queries lie where the result will: who writes it has read them.
        yield do.Rotate(one.layer, qkv, mixed)
        if not self.rows.prompts:
            yield self._decode(one, mixed, mixed, rotates=False)
            return
        prefill = do.Prefill(
            layer=one.layer,
            scores=_scores(one),
            scheme=UnifiedMax.attributes(one.unified),
            tiles=self.windows.index(_window(one)),
            q=mixed,
            out=mixed,
        )
        if not self.rows.decoding:
            yield prefill
            return
        # Rows that decode have a token each among those of others.
        columns = one.num_heads * one.head_dim
        yield do.Gather(True, columns, self.rows.tokens, mixed, _SCRATCH)
        yield prefill
        yield self._decode(one, _SCRATCH, _SCRATCH, rotates=False)
        yield do.Scatter(True, columns, self.rows.tokens, _SCRATCH, mixed)

    def _shared_attention(
        self, one: instructions.Attention, qkv: Operand, mixed: Operand
    ) -> Iterator[Launch]:
        """Over what rows have of their own, and then over what they share.

        Both read the queries, which so cannot lie where the result will.
        """
        yield do.Rotate(one.layer, qkv, _SCRATCH)
        yield self._decode(one, _SCRATCH, mixed, rotates=False, shares=True)
        yield do.Share(
            layer=one.layer,
            # A query sees all of what it shares.
            scores=ScoreAttributes.of(one.scale, one.soft_cap, None),
            q=_SCRATCH,
            out=mixed,
        )

    def _decode(
        self,
        one: instructions.Attention,
        q: Operand,
        out: Operand,
        *,
        rotates: bool,
        shares: bool = False,
    ) -> Launch:
        return do.Decode(
            layer=one.layer,
            scores=_scores(one),
            scheme=UnifiedMax.attributes(one.unified),
            plan=self.windows.index(_window(one)),
            rotates=rotates,
            shares=shares,
            q=q,
            out=out,
        )

    def _at(self, value: Value) -> Operand:
        if value == self.program.result:
            return Operand(Region.HIDDEN)
        place = self._buffers.places[value.index]
        region = (Region.FIRST, Region.SECOND, Region.THIRD)[place.buffer - 1]
        return Operand(region, self.rows.tokens * place.first)

    def _out(self, one: instructions.Instruction) -> Operand:
        """Of an instruction that writes one value."""
        (value,) = one.writes
        return self._at(value)

    def _weight(self, path: str) -> WeightOperand:
        weight = self.parameters[path]
        assert isinstance(weight, FORMATS)
        return WeightOperand(format_of(weight), self._arrays[path])

    def _array(self, path: str) -> Operand:
        """Of a parameter that is one array."""
        (operand,) = self._arrays[path]
        return operand

    def _optional(self, path: str | None) -> Operand | None:
        return None if path is None else self._array(path)


def _scores(one: instructions.Attention) -> ScoreAttributes:
    return ScoreAttributes.of(one.scale, one.soft_cap, one.window)


def turns_in_attention(one: instructions.Attention) -> bool:
    """Attention of rows that decode can rotate, by eight frequencies at a time."""
    return len(one.frequencies) % 8 == 0


def _window(one: instructions.Attention) -> int:
    return _scores(one).window


def windows_of(program: Program) -> tuple[int, ...]:
    """Of its layers, each once."""
    every = (
        _window(one)
        for one in program.instructions
        if isinstance(one, instructions.Attention)
    )
    return tuple(dict.fromkeys(every))
