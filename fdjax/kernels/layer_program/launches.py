"""The launches of a step, as the handler is told them: one flat array of integers.

`ffi/layer_program/chain.h` reads what `encode` writes: for each launch its code, its
numbers, and where its operands lie.
"""

import functools
import struct
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fdjax.kernels.decode_attention.unified import SchemeAttributes
from fdjax.kernels.layer_program.operands import ABSENT, Operand, WeightOperand
from fdjax.kernels.matmul.params import KERNELS, MatmulConfig, config_numbers
from fdjax.kernels.paged import ScoreAttributes


@dataclass(frozen=True)
class Embed:
    """Vectors of the call's tokens, and those of their positions.

    Attributes:
        rows: tokens.
        columns: of a vector.
        scale: of the tokens' vectors; 1: none.
        num_vectors: of the table of tokens.
        num_positions: of the table of positions.
        position_offset: what is added to a position to find its vector.
        table: of tokens.
        positions: the table of positions, if there is one.
        out: where to.
    """

    rows: int
    columns: int
    scale: float
    num_vectors: int
    num_positions: int
    position_offset: int
    table: Operand
    positions: Operand | None
    out: Operand


@dataclass(frozen=True)
class Norm:
    """`out = norm(x + delta)`, and `total = x + delta` where there is a `delta`.

    Where there is a `delta_scale`, `delta` is RMS-normalised first.
    """

    rows: int
    columns: int
    epsilon: float
    scale_offset: float
    x: Operand
    delta: Operand | None
    delta_scale: Operand | None
    scale: Operand
    bias: Operand | None
    total: Operand | None
    out: Operand


@dataclass(frozen=True)
class HeadNorm:
    """Query and key heads of `x`, each normalised."""

    rows: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    epsilon: float
    scale_offset: float
    x: Operand
    scale: Operand
    bias: Operand | None
    key_scale: Operand
    key_bias: Operand | None
    out: Operand


@dataclass(frozen=True)
class Linear:
    """`y = x weight^T + bias + residual`, or its gate.

    Attributes:
        m: rows of `x`.
        n: of the weight; gate and up rows, if it is gated.
        k: columns of `x`.
        gated: whether `y` is `activation(gate) * up`, of half as many columns.
        activation: its place among `fdjax.kernels.activations`.
        config: which kernel serves, and its launch config.
        slice_rows: rows of which the library writes gate and up at a time; else 0.
        wide: where to.
    """

    m: int
    n: int
    k: int
    gated: bool
    activation: int
    config: MatmulConfig
    x: Operand
    weight: WeightOperand
    bias: Operand | None
    residual: Operand | None
    y: Operand
    slice_rows: int
    wide: Operand | None


@dataclass(frozen=True)
class Activate:
    """`y = activation(y)`, of `size` elements."""

    size: int
    activation: int
    y: Operand


@dataclass(frozen=True)
class Rotate:
    """Queries at their positions; keys and values of all tokens into their pages."""

    layer: int
    qkv: Operand
    query: Operand


@dataclass(frozen=True)
class Decode:
    """Attention of rows with one token.

    Attributes:
        layer: whose keys and values.
        scores: what becomes of them.
        scheme: of the softmax.
        plan: which one.
        rotates: `q` is `qkv` as its GEMM left it: attention rotates and writes.
        shares: `Share` adds to the result: what it needs for that is kept.
    """

    layer: int
    scores: ScoreAttributes
    scheme: SchemeAttributes
    plan: int
    rotates: bool
    shares: bool
    q: Operand
    out: Operand


@dataclass(frozen=True)
class Prefill:
    """Attention of rows with any number of tokens, whose keys are in their pages."""

    layer: int
    scores: ScoreAttributes
    scheme: SchemeAttributes
    tiles: int
    q: Operand
    out: Operand


@dataclass(frozen=True)
class Sum:
    """`total = x + delta`, of `size` elements."""

    size: int
    x: Operand
    delta: Operand
    total: Operand


@dataclass(frozen=True)
class Gather:
    """The rows of `x` that are wanted, or those that decode; `x` has `rows`."""

    decoding: bool
    columns: int
    rows: int
    x: Operand
    out: Operand


@dataclass(frozen=True)
class Scatter:
    """Rows of `x` to where the wanted, or the decoding ones are in `out`'s `rows`."""

    decoding: bool
    columns: int
    rows: int
    x: Operand
    out: Operand


@dataclass(frozen=True)
class Share:
    """Adds to `out`, of rows with one token, what they find in prefixes they share."""

    layer: int
    scores: ScoreAttributes
    q: Operand
    out: Operand


type Launch = (
    Embed
    | Norm
    | HeadNorm
    | Linear
    | Activate
    | Rotate
    | Decode
    | Prefill
    | Sum
    | Gather
    | Scatter
    | Share
)

# In the order of the enum Code of reader.h.
CODES: tuple[type[Launch], ...] = (
    *(Embed, Norm, HeadNorm, Linear, Activate, Rotate, Decode, Prefill, Sum, Gather),
    *(Scatter, Share),
)
_CODE_OF = {launch: code for code, launch in enumerate(CODES)}


def encode(launches: Iterable[Launch]) -> np.ndarray:
    """The array that the handler reads, of int64."""
    numbers: list[int] = []
    for launch in launches:
        numbers.append(_CODE_OF[type(launch)])
        _add_fields(numbers, launch)
    return np.array(numbers, np.int64)


def _add_fields(
    numbers: list[int], part: Launch | ScoreAttributes | SchemeAttributes
) -> None:
    """Adds its numbers: every size of a call has hundreds of launches."""
    for name in _names(type(part)):
        value: object = getattr(part, name)
        if value is None:
            numbers.append(ABSENT)
        elif isinstance(value, int):
            numbers.append(int(value))
        elif isinstance(value, Operand):
            numbers.append(value.number)
        elif isinstance(value, float):
            numbers.append(_bits(value))
        elif isinstance(value, WeightOperand):
            numbers.extend(value.numbers)
        elif isinstance(value, KERNELS):
            numbers.extend(config_numbers(value))
        else:
            assert isinstance(value, ScoreAttributes | SchemeAttributes)
            _add_fields(numbers, value)


@functools.cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    """Of its fields."""
    return tuple(field.name for field in fields(kind))


def _bits(value: float) -> int:
    """Of a float32."""
    (bits,) = struct.unpack("i", struct.pack("f", value))
    return bits
