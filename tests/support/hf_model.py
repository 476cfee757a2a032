"""What describes a small random model, and where its fixture lies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

FIXTURES = Path(__file__).parents[1] / "fixtures"

# The model that ships in the package; the fixture of its name holds no weights.
TALES = Path(__file__).parents[2] / "fdjax" / "assets" / "tales-5m"

# The whole 23-token prompt is longer than any window below, and 1 token is shorter.
PROMPT_LENGTHS = (1, 5, 23)
NEW_TOKENS = 32

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class HfModel:
    """A model with random weights that transformers can build.

    Attributes:
        name: folder of its fixture.
        architecture: class of transformers that defines it.
        config: keyword arguments of that class's configuration.
        seed: first seed tried for its weights and prompts.
        spelling: `config.json` as transformers 5 writes it, or as the published
            checkpoints do, which are older ("rope_theta", "torch_dtype").
        published: fields of `config.json` that published checkpoints spell in their
            own way; a value of `None` leaves the field out. "published" only.
        prefix: beginning of tensor names that the published checkpoints leave out.
        chatglm: weights and configuration are renamed to ChatGLM2's; transformers has
            no such class, but its GLM computes the same.
        distinct: least number of tokens that its continuations must have among them;
            those that repeat few would hide a wrong position or window.
    """

    name: str
    architecture: str
    config: Mapping[str, Any]
    seed: int
    spelling: Literal["transformers", "published"] = "transformers"
    published: Mapping[str, Any] = field(default=_NOTHING)
    prefix: str = ""
    chatglm: bool = False
    distinct: int = 24


def sizes(
    *, hidden: int, ffn: int, layers: int, heads: int, kv_heads: int, head: int | None
) -> dict[str, Any]:
    """The usual names of a model's sizes; without `head`, `hidden / heads` is it."""
    config = {
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": 131,
        "max_position_embeddings": 128,
        # Large enough that a wrong one is seen.
        "rms_norm_eps": 1e-3,
    }
    return config if head is None else config | {"head_dim": head}


def opt_sizes(*, hidden: int, ffn: int, layers: int, heads: int) -> dict[str, Any]:
    """OPT's names of a model's sizes."""
    return {
        "hidden_size": hidden,
        "ffn_dim": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": 131,
        "max_position_embeddings": 67,
    }
