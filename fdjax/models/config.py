"""`ModelConfig`: everything the one decoder needs to know about a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax

from fdjax.config import Attention, Embedding, LayerSpec, Norm, Rope
from fdjax.config.accepted import Accepted, refusal
from fdjax.errors import ConfigError
from fdjax.kernels.decode_attention.unified import UnifiedMax
from fdjax.memory.kv import KVLayout
from fdjax.models.accepted import BY_OTHERS, BY_PROGRAM, PARTS


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only language model, declared.

    Attributes:
        family: name of the family that knows its weights, for example "llama".
        hidden_size: `E`.
        layers: each layer, in order. They share a KV array, so they have the same
            numbers and sizes of heads.
        max_position: longest sequence the model was made for, in tokens.
        embedding: token embedding and head.
        final_norm: the normalisation after the last layer.
        bos_token_id: first token of a sequence, where the model has one.
        eos_token_ids: tokens that end a sequence.
        dtype: type the checkpoint was saved in.
        unified: maximum of the asynchronous softmax, from a calibration;
            `None` is the synchronised softmax. It changes results by rounding only.
        batch_invariant: a row's results have the same bits in any batch: its programs
            take only implementations that promise it.

    Raises:
        ConfigError: a field, the kind of a part or a value is not one of those in
            `models.accepted`; there is no layer; heads cannot share keys or be rotated
            as declared; or those of two layers differ.
    """

    family: str
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    max_position: int
    embedding: Embedding
    final_norm: Norm
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: Literal["float16", "bfloat16", "float32"] = "bfloat16"
    unified: UnifiedMax | None = None
    batch_invariant: bool = False

    def __post_init__(self) -> None:
        """Checks every field, and that one KV array serves all layers."""
        problem = refusal(self, _ACCEPTED)
        if problem is not None:
            raise ConfigError(problem)
        if not self.layers:
            raise ConfigError(f"a {self.family} model has no layers; give at least one")
        first = _heads(self.layers[0])
        for index, layer in enumerate(self.layers):
            if _heads(layer) != first:
                raise ConfigError(
                    f"layer {index} has {_heads(layer)}, and layer 0 {first}; give all "
                    "layers the same, since they share a KV array"
                )
            _check_heads(layer.attention, f"layers.{index}.attention")

    @property
    def num_layers(self) -> int:
        """`L`."""
        return len(self.layers)

    @property
    def kinds(self) -> tuple[LayerSpec, ...]:
        """The layers that differ, each once, in the order in which they come."""
        return tuple(dict.fromkeys(self.layers))

    @property
    def num_heads(self) -> int:
        """Query heads of every layer, `Hq`."""
        return self.layers[0].attention.num_heads

    @property
    def num_kv_heads(self) -> int:
        """Key/value heads of every layer, `Hkv`."""
        return self.layers[0].attention.num_kv_heads

    @property
    def head_dim(self) -> int:
        """Size of a head, `D`."""
        return self.layers[0].attention.head_dim

    def kv_layout(
        self, *, num_pages: int, page_size: int, dtype: jax.typing.DTypeLike
    ) -> KVLayout:
        """A KV array for this model.

        Args:
            num_pages: `P`.
            page_size: `Z`, tokens a page holds.
            dtype: type of keys and values.
        """
        return KVLayout(
            num_pages=num_pages,
            num_layers=self.num_layers,
            page_size=page_size,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            dtype=dtype,
        )

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


_ACCEPTED: Accepted = {**PARTS, ModelConfig: {**BY_PROGRAM, **BY_OTHERS}}


def _check_heads(part: Attention, path: str) -> None:
    """Checks what two fields together must be.

    Raises:
        ConfigError: names one of them.
    """
    if part.num_heads % part.num_kv_heads:
        raise ConfigError(
            f"{path}.num_kv_heads = {part.num_kv_heads} does not divide num_heads = "
            f"{part.num_heads}; give a divisor"
        )
    if isinstance(part.positions, Rope):
        problem = part.positions.refuse_head(part.head_dim)
        if problem is not None:
            raise ConfigError(f"{path}.positions {problem}")


def _heads(layer: LayerSpec) -> str:
    part = layer.attention
    return f"{part.num_heads} heads over {part.num_kv_heads} of {part.head_dim}"
