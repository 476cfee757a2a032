"""What a model family declares: how its configuration and its weights are read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fdjax.models.config import ModelConfig
from fdjax.models.hf_config import HfConfig

type Transform = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class FusedRows:
    """Rows of a fused parameter that would be one of their own.

    Attributes:
        name: "q", "k", "v", "gate" or "up".
        rows: how many, behind those of the parts before.
    """

    name: str
    rows: int


@dataclass(frozen=True)
class Rule:
    """One parameter of the decoder and the checkpoint tensors it is made of.

    The sources are concatenated along axis 0 in the order given. A fused weight keeps
    its parts, so that each can be divided among devices by itself; a checkpoint stores
    them one by one, a source each, or fused as well.

    Attributes:
        target: the parameter's path, for example "layers.0.attention.qkv.weight".
        sources: names of tensors in the checkpoint.
        transform: a reordering of each source's rows that keeps its shape (BLOOM
            stores q, k and v interleaved by head).
        parts: of a fused parameter, in the order of its rows; else none.
    """

    target: str
    sources: tuple[str, ...]
    transform: Transform | None = None
    parts: tuple[FusedRows, ...] = ()

    def __post_init__(self) -> None:
        """Checks that several sources are a part each."""
        assert len(self.sources) in (1, len(self.parts)), self


@dataclass(frozen=True)
class Family:
    """A family of models that share names and mathematics.

    Attributes:
        name: for example "llama", which is also its "model_type" in `config.json`.
        architectures: class names in `config.json` that this family reads.
        configure: maps the fields of `config.json`.
        rules: the weight rules of one configured model.
        ignored: regular expressions (whole name) of checkpoint tensors that hold
            nothing a model needs, such as stored masks and frequencies.
        prefixes: prefixes that some checkpoints leave out or add ("transformer.").
    """

    name: str
    architectures: tuple[str, ...]
    configure: Callable[[HfConfig], ModelConfig]
    rules: Callable[[ModelConfig], tuple[Rule, ...]]
    ignored: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()

    def read(self, config: Mapping[str, Any]) -> ModelConfig:
        """Maps `config` and refuses fields that nothing consumed."""
        fields = HfConfig(config)
        # Masks of transformers' classes depend on it, and null is false to them, while
        # `finish` would pass both.
        fields.require(
            "is_causal", (True,), because="every layer attends to earlier tokens only"
        )
        model = self.configure(fields)
        fields.finish()
        return model
