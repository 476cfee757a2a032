"""Frozen descriptions of a decoder's parts: what families differ in, as data.

A part that comes in several kinds is a union of them. A field that is `None` or `False`
says that a layer does not have what the field describes.
"""

from dataclasses import dataclass
from typing import Literal

type Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True)
class RmsNorm:
    """Normalisation over the hidden axis by the root of the mean square; has a scale.

    Attributes:
        epsilon: added to the mean square.
        scale_offset: added to the stored scale in float32; Gemma stores `scale - 1`.
    """

    epsilon: float
    scale_offset: float = 0.0


@dataclass(frozen=True)
class LayerNorm:
    """Normalisation over the hidden axis by mean and variance; has a scale and a bias.

    Attributes:
        epsilon: added to the variance.
    """

    epsilon: float


type Norm = RmsNorm | LayerNorm


@dataclass(frozen=True)
class LinearScaling:
    """Positions divided by `factor` (position interpolation)."""

    factor: float


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's rope scaling: long wavelengths stretched, short ones kept.

    Attributes:
        factor: by which long wavelengths are stretched.
        low_freq_factor: wavelengths above `original_max_position` over this are long.
        high_freq_factor: those below `original_max_position` over this are short; in
            between the stretch grows with the wavelength.
        original_max_position: tokens that the model was first made for.
    """

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

    def refuse_head(self, head_dim: int) -> str | None:
        """Why a head of this size cannot be rotated so, or `None`."""
        if self.rotary_dim % 2 == 0 and 2 <= self.rotary_dim <= head_dim:
            return None
        return (
            f"rotates {self.rotary_dim} dimensions of a head of {head_dim}; expected "
            f"an even number from 2 to {head_dim}"
        )


@dataclass(frozen=True)
class Alibi:
    """A linear bias of the scores by distance, one slope a query head (BLOOM)."""


type Positions = Rope | Alibi


@dataclass(frozen=True)
class Attention:
    """Self-attention with grouped key/value heads.

    Attributes:
        num_heads: query heads, `Hq`.
        num_kv_heads: key/value heads, `Hkv`; divides `num_heads`.
        head_dim: size of a head, `D`.
        scale: factor of the scores.
        positions: how positions enter here; `None`: not at all (OPT adds them to the
            embedded tokens).
        window: sliding window in tokens, `None` for full attention.
        qkv_bias: the linear map to q, k and v adds a bias.
        out_bias: the output map adds a bias.
        qk_norm: normalisation of each query and key head before RoPE (Qwen3).
        soft_cap: scores become `soft_cap * tanh(scores / soft_cap)` (Gemma 2).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    positions: Positions | None
    window: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: Norm | None = None
    soft_cap: float | None = None


type AttentionPart = Attention


@dataclass(frozen=True)
class Mlp:
    """A feed-forward part of an up map, an activation and a down map, both linear.

    Attributes:
        size: intermediate size, `F`.
        activation: applied to what the up map gives.
        bias: both maps add a bias.
    """

    size: int
    activation: Activation
    bias: bool = False

    @property
    def up_size(self) -> int:
        """Columns that the up map gives."""
        return self.size


@dataclass(frozen=True)
class GatedMlp:
    """A feed-forward part whose down map takes `activation(gate) * up`.

    Attributes:
        size: intermediate size, `F`.
        activation: applied to the gate.
        bias: both maps add a bias.
    """

    size: int
    activation: Activation
    bias: bool = False

    @property
    def up_size(self) -> int:
        """Columns of gate and up, which are one linear map."""
        return 2 * self.size


type FeedForwardPart = Mlp | GatedMlp


@dataclass(frozen=True)
class LayerSpec:
    """One layer: what attention adds to the residual stream, then what the MLP adds.

    Attributes:
        attention: the attention part.
        mlp: the feed-forward part.
        attention_norm: normalisation before attention.
        mlp_norm: normalisation before the MLP; `None` where residuals are parallel: the
            MLP reads what attention reads, and both are added at once (GPT-J).
        attention_post_norm: normalisation of what attention adds (Gemma 2, GLM-4-0414).
        mlp_post_norm: normalisation of what the MLP adds.
    """

    attention: AttentionPart
    mlp: FeedForwardPart
    attention_norm: Norm
    mlp_norm: Norm | None
    attention_post_norm: Norm | None = None
    mlp_post_norm: Norm | None = None


@dataclass(frozen=True)
class Learned:
    """A table of `size` position vectors, read at `position + offset` (OPT)."""

    size: int
    offset: int


@dataclass(frozen=True)
class Embedding:
    """Token embedding and output head.

    Attributes:
        vocab_size: rows of both tables, `V`.
        tied: the head reuses the token embedding.
        scale: factor of the embedded tokens (Gemma).
        positions: vectors that are added by position (OPT).
        norm: normalisation right after the embedding (BLOOM).
        head_bias: the head adds a bias (GPT-J).
        soft_cap: logits become `soft_cap * tanh(logits / soft_cap)` (Gemma 2).
    """

    vocab_size: int
    tied: bool
    scale: float | None = None
    positions: Learned | None = None
    norm: Norm | None = None
    head_bias: bool = False
    soft_cap: float | None = None
