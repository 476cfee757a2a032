"""Frozen descriptions of a decoder's parts: what families differ in, as data."""

from dataclasses import dataclass
from typing import Literal

type Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True)
class Norm:
    """A normalisation over the hidden axis.

    Attributes:
        kind: "rms" (scale only) or "layer" (mean removed; scale and bias).
        epsilon: added to the mean square or the variance.
        scale_offset: added to the stored scale in float32; Gemma stores `scale - 1`.
    """

    kind: Literal["rms", "layer"]
    epsilon: float
    scale_offset: float = 0.0


@dataclass(frozen=True)
class LinearScaling:
    """Positions divided by `factor` (position interpolation)."""

    factor: float


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's rope scaling: long wavelengths stretched, short ones kept."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


type RopeScaling = LinearScaling | Llama3Scaling


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding of the first `rotary_dim` dimensions of a head.

    Attributes:
        theta: base of the frequencies.
        rotary_dim: dimensions rotated; the rest of the head passes unchanged.
        interleaved: pairs are (0, 1), (2, 3), ... (GPT-J, GLM); otherwise dimension
            `i` is paired with `i + rotary_dim / 2` (Llama).
        scaling: a change of the frequencies for longer contexts.
    """

    theta: float
    rotary_dim: int
    interleaved: bool = False
    scaling: RopeScaling | None = None


@dataclass(frozen=True)
class Alibi:
    """A linear bias of the scores by distance, one slope a query head (BLOOM)."""


@dataclass(frozen=True)
class Learned:
    """A table of `size` position vectors, read at `position + offset` (OPT)."""

    size: int
    offset: int


type Positions = Rope | Alibi | Learned


@dataclass(frozen=True)
class Attention:
    """Self-attention with grouped key/value heads.

    Attributes:
        num_heads: query heads, `Hq`.
        num_kv_heads: key/value heads, `Hkv`; divides `num_heads`.
        head_dim: size of a head, `D`.
        scale: factor of the scores.
        qkv_bias: the fused QKV product adds a bias.
        out_bias: the output product adds a bias.
        qk_norm: normalisation of each query and key head before RoPE (Qwen3).
        soft_cap: scores become `soft_cap * tanh(scores / soft_cap)` (Gemma 2).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: Norm | None = None
    soft_cap: float | None = None


@dataclass(frozen=True)
class Mlp:
    """The feed-forward part.

    Attributes:
        size: intermediate size, `F`.
        activation: applied to the up product, or to the gate where there is one.
        gated: `activation(gate) * up` with gate and up fused in one product.
        bias: both products add a bias.
    """

    size: int
    activation: Activation
    gated: bool
    bias: bool = False


@dataclass(frozen=True)
class Embedding:
    """Token embedding and output head.

    Attributes:
        vocab_size: rows of both tables, `V`.
        tied: the head reuses the token embedding.
        scale: factor of the embedded tokens (Gemma).
        norm: normalisation right after the embedding (BLOOM).
        head_bias: the head adds a bias (GPT-J).
        soft_cap: logits become `soft_cap * tanh(logits / soft_cap)` (Gemma 2).
    """

    vocab_size: int
    tied: bool
    scale: float | None = None
    norm: Norm | None = None
    head_bias: bool = False
    soft_cap: float | None = None
