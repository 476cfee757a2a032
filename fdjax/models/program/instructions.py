"""The instructions of a layer program: what a step does, with every operand named.

An instruction reads and writes values, which are rows of activations, and names its
parameters by their paths in the decoder. Everything here is static and hashable.
"""

import functools
from dataclasses import dataclass, field, fields
from typing import Literal

from fdjax.kernels.decode_attention import UnifiedMax

PARAMETER = {"parameter": True}
"""Metadata of an instruction's fields that name parameters."""

type Rows = Literal["tokens", "wanted"]
"""A row for each token of the call, or for each whose logits are wanted."""


@dataclass(frozen=True)
class Value:
    """What one instruction writes and later ones read.

    Attributes:
        index: its place among the values of the program.
        name: what it is, for people.
        columns: elements of a row.
        rows: of which tokens.
    """

    index: int
    name: str
    columns: int
    rows: Rows


@dataclass(frozen=True)
class Add:
    """The epilogue that adds the residual stream, the last value read."""


@dataclass(frozen=True)
class Activate:
    """The epilogue that applies an activation function of that name."""

    activation: str


@dataclass(frozen=True)
class Gate:
    """The epilogue that makes one column of two: `activation(gate) * up`."""

    activation: str


type Epilogue = Add | Activate | Gate | None


@dataclass(frozen=True)
class Instruction:
    """One thing that a step does.

    Attributes:
        reads: the values it takes.
        writes: the values it makes.
    """

    reads: tuple[Value, ...]
    writes: tuple[Value, ...]

    @property
    def overwrites(self) -> tuple[Value, ...]:
        """Values read in whose place one of the same size may be written.

        Whoever writes a row there has read that row to its end.
        """
        return ()

    @property
    def parameters(self) -> tuple[str, ...]:
        """Paths of the parameters read, in the order of the fields."""
        marked = (each.name for each in fields(self) if "parameter" in each.metadata)
        paths = (getattr(self, name) for name in marked)
        return tuple(path for path in paths if path is not None)


@dataclass(frozen=True)
class Embed(Instruction):
    """Token vectors, and those of positions: `-> x`.

    Attributes:
        weight: the token embedding.
        position_table: learned positions, or `None`.
        position_offset: what is added to a position to find its vector.
        factor: of the token vectors, or `None`.
    """

    weight: str = field(metadata=PARAMETER)
    position_table: str | None = field(metadata=PARAMETER)
    position_offset: int
    factor: float | None


@dataclass(frozen=True)
class Norm(Instruction):
    """A normalisation: `x -> normal`, or `x, delta -> normal, x + delta`.

    Attributes:
        scale: one factor a column.
        bias: of a layer norm; `None` for an RMS norm.
        epsilon: added to the variance, or to the mean square.
        scale_offset: added to the stored scale.
        delta_scale: of an RMS norm of `delta` before it is added, with the same
            constants, or `None`.
    """

    scale: str = field(metadata=PARAMETER)
    bias: str | None = field(metadata=PARAMETER)
    epsilon: float
    scale_offset: float
    delta_scale: str | None = field(default=None, metadata=PARAMETER)

    @property
    def overwrites(self) -> tuple[Value, ...]:
        """What it reads, the stream last: the sum takes its place, not the norm."""
        return self.reads[::-1]


@dataclass(frozen=True)
class HeadNorm(Instruction):
    """Normalisation of each query and key head: `qkv -> qkv`.

    Attributes:
        scale: one factor a dimension of a query head.
        key_scale: of a key head.
        bias: of layer norms of query heads; `None` for RMS norms.
        key_bias: of key heads.
        num_heads: query heads.
        num_kv_heads: key heads.
        epsilon: as in `Norm`.
        scale_offset: as in `Norm`.
    """

    scale: str = field(metadata=PARAMETER)
    key_scale: str = field(metadata=PARAMETER)
    bias: str | None = field(metadata=PARAMETER)
    key_bias: str | None = field(metadata=PARAMETER)
    num_heads: int
    num_kv_heads: int
    epsilon: float
    scale_offset: float

    @property
    def overwrites(self) -> tuple[Value, ...]:
        """Its operand."""
        return self.reads


@dataclass(frozen=True)
class Linear(Instruction):
    """A linear map and its epilogue: `x -> y`, or `x, residual -> y`.

    Attributes:
        weight: `[N, K]`.
        bias: `[N]`, or `None`.
        epilogue: what becomes of the sums before they are written.
    """

    weight: str = field(metadata=PARAMETER)
    bias: str | None = field(metadata=PARAMETER)
    epilogue: Epilogue = None

    @property
    def gate(self) -> str | None:
        """The activation of its gate, or `None`."""
        return self.epilogue.activation if isinstance(self.epilogue, Gate) else None

    @property
    def overwrites(self) -> tuple[Value, ...]:
        """The residual stream, to which it adds."""
        return self.reads[1:]


@dataclass(frozen=True)
class Attention(Instruction):
    """Rotation, KV write and attention: `qkv -> mixed`.

    Attributes:
        layer: which layer of each page it reads and writes.
        num_heads: query heads, `Hq`.
        num_kv_heads: key/value heads, `Hkv`.
        head_dim: `D`.
        frequencies: of RoPE, `[R / 2]`; empty without it.
        interleaved: pairing of RoPE.
        slopes: ALiBi's, one a query head; empty without it.
        scale: factor of the scores.
        soft_cap: of the scores, or `None`.
        window: sliding window in tokens, or `None`.
        unified: maximum of the asynchronous softmax, or `None`.
    """

    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    frequencies: tuple[float, ...]
    interleaved: bool
    slopes: tuple[float, ...]
    scale: float
    soft_cap: float | None
    window: int | None
    unified: UnifiedMax | None


@dataclass(frozen=True)
class Sum(Instruction):
    """The residual stream and what is added to it: `x, delta -> x`."""

    @property
    def overwrites(self) -> tuple[Value, ...]:
        """Either operand."""
        return self.reads


@dataclass(frozen=True)
class Select(Instruction):
    """The rows of the tokens whose logits are wanted: `x -> x`."""


@dataclass(frozen=True)
class Head(Instruction):
    """Logits in float32, which are the program's result: `normal ->`.

    Attributes:
        weight: `[V, E]`; the token embedding where they are tied.
        bias: `[V]`, or `None`.
        soft_cap: of the logits, or `None`.
    """

    weight: str = field(metadata=PARAMETER)
    bias: str | None = field(metadata=PARAMETER)
    soft_cap: float | None


@dataclass(frozen=True)
class Program:
    """A step of a model, for any number of tokens.

    Attributes:
        instructions: what is done, in order.
        values: all that instructions write.
        hidden_size: `E`.
    """

    instructions: tuple[Instruction, ...]
    values: tuple[Value, ...]
    hidden_size: int

    @property
    def parameters(self) -> tuple[str, ...]:
        """Paths of all parameters, each once, in the order in which they are read."""
        every = (path for one in self.instructions for path in one.parameters)
        return tuple(dict.fromkeys(every))

    @property
    def result(self) -> Value:
        """What the head reads: normalised hidden states."""
        (value,) = self.instructions[-1].reads
        return value

    @functools.cached_property
    def body_parameters(self) -> tuple[str, ...]:
        """As `parameters`, of the body: all but the head."""
        before = self.instructions[:-1]
        return tuple(dict.fromkeys(path for one in before for path in one.parameters))
