"""`ModelConfig`: everything the one decoder needs to know about a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fdjax.config import Attention, Embedding, Mlp, Norm, Positions
from fdjax.kernels.decode_attention.unified import UnifiedMax


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only language model, declared.

    Attributes:
        family: name of the family that knows its weights, for example "llama".
        hidden_size: `E`.
        num_layers: `L`.
        max_position: longest sequence the model was made for, in tokens.
        embedding: token embedding and head.
        positions: how positions enter.
        attention: the attention of every layer.
        windows: sliding window of each layer in tokens, `None` for full attention.
        mlp: the feed-forward part of every layer.
        norm: the normalisation before attention, before the MLP and at the end.
        residual: "sequential" (attention, then MLP) or "parallel" (both read the
            same normalised input, GPT-J).
        post_norms: attention's and the MLP's outputs are normalised before they are
            added (Gemma 2, GLM-4-0414).
        bos_token_id: first token of a sequence, where the model has one.
        eos_token_ids: tokens that end a sequence.
        dtype: type the checkpoint was saved in.
        unified: maximum of the asynchronous softmax in decoding, from a calibration;
            `None` is the synchronised softmax. It changes results by rounding only.
        batch_invariant: a row's results have the same bits in any batch: its programs
            take only implementations that promise it.
    """

    family: str
    hidden_size: int
    num_layers: int
    max_position: int
    embedding: Embedding
    positions: Positions
    attention: Attention
    windows: tuple[int | None, ...]
    mlp: Mlp
    norm: Norm
    residual: Literal["sequential", "parallel"] = "sequential"
    post_norms: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: Literal["float16", "bfloat16", "float32"] = "bfloat16"
    unified: UnifiedMax | None = None
    batch_invariant: bool = False

    @staticmethod
    def from_hf(config: Mapping[str, Any]) -> "ModelConfig":
        """Maps a Hugging Face `config.json`, once and strictly.

        Args:
            config: the parsed file.

        Raises:
            ConfigError: the architecture is unknown, a field is missing or has the
                wrong type, or a field changes the mathematics in a way fdjax does
                not support; the message names it.
        """
        from fdjax.models.families import family_of  # the families build ModelConfig

        return family_of(config).read(config)
