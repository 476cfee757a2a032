"""The launches of a step: what each does, its numbers, and where its operands lie.

`encoding` writes them as the handler is told them, field by field, in their order.
"""

from dataclasses import dataclass

from fdjax.kernels.decode_attention.unified import SchemeAttributes
from fdjax.kernels.layer_program.operands import Operand, WeightOperand
from fdjax.kernels.matmul.params import MatmulConfig
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

    Attributes:
        rows: of `x`.
        columns: of a row.
        epsilon: added to the variance, or to the mean square.
        scale_offset: added to the stored scale.
        x: the residual stream.
        delta: what is added to it, if anything is.
        delta_scale: of an RMS norm of `delta` before it is added, with the same
            constants, if there is one.
        scale: one factor a column.
        bias: of a layer norm; an RMS norm has none.
        total: where `x + delta` goes, if there is a `delta`.
        out: where to.
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
    """Query and key heads of `x`, each normalised.

    Attributes:
        rows: of `x`, each with all heads of q, k and v.
        num_heads: query heads.
        num_kv_heads: key heads, and as many value heads, which stay as they are.
        head_dim: `D`.
        epsilon: as in `Norm`.
        scale_offset: as in `Norm`.
        x: q, k and v.
        scale: one factor a dimension of a query head.
        bias: of layer norms of query heads; RMS norms have none.
        key_scale: as `scale`, of key heads.
        key_bias: as `bias`, of key heads.
        out: where to.
    """

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
        x: what is multiplied.
        weight: `[N, K]`, of whatever format.
        bias: one number a row of the weight, if there is one.
        residual: what is added, if anything is; `y` may lie there.
        y: where to.
        slice_rows: rows of which the library writes gate and up at a time; else 0.
        wide: where it writes them, if it does.
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
    """`y = activation(y)`, of `size` elements.

    `activation` is its place among `fdjax.kernels.activations`.
    """

    size: int
    activation: int
    y: Operand


@dataclass(frozen=True)
class Rotate:
    """Queries at their positions; keys and values of all tokens into their pages.

    Attributes:
        layer: whose keys and values they are.
        qkv: of all tokens.
        query: where rotated queries go.
    """

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
        plan: which of the call's: there is one for each window.
        rotates: `q` is `qkv` as its GEMM left it: attention rotates and writes.
        shares: `Share`, which is next, adds to the result: what it needs is kept.
        q: the queries.
        out: where to; it may be where they lie, if they are no `qkv`.
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
    """Attention of rows with any number of tokens, whose keys are in their pages.

    Attributes:
        layer: whose keys and values.
        scores: what becomes of them.
        scheme: of the softmax.
        tiles: which of the call's lists of work: there is one for each window.
        q: the queries.
        out: where to; it may be where they lie.
    """

    layer: int
    scores: ScoreAttributes
    scheme: SchemeAttributes
    tiles: int
    q: Operand
    out: Operand


@dataclass(frozen=True)
class Sum:
    """`total = x + delta`, of `size` elements.

    Attributes:
        size: elements.
        x: the residual stream.
        delta: what is added to it.
        total: where to; it may be where either lies.
    """

    size: int
    x: Operand
    delta: Operand
    total: Operand


@dataclass(frozen=True)
class Gather:
    """Some rows of `x`, one after the other.

    Attributes:
        decoding: those that decode, else those that are wanted.
        columns: of a row.
        rows: of `x`.
        x: all rows.
        out: where to.
    """

    decoding: bool
    columns: int
    rows: int
    x: Operand
    out: Operand


@dataclass(frozen=True)
class Scatter:
    """The rows of `x` to where they belong among others.

    Attributes:
        decoding: they are those that decode, else those that are wanted.
        columns: of a row.
        rows: of `out`.
        x: rows one after the other.
        out: where to; its other rows stay as they are.
    """

    decoding: bool
    columns: int
    rows: int
    x: Operand
    out: Operand


@dataclass(frozen=True)
class Share:
    """Adds to `out`, of rows with one token, what they find in prefixes they share.

    Attributes:
        layer: whose keys and values.
        scores: what becomes of them.
        q: the queries, at their positions.
        out: what `Decode`, which is right before it, has left of the rows' own.
    """

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
