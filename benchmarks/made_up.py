"""Models of made-up weights for other engines, from configurations alone."""

import json
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

GRAPHS = [1, 2, 4, *range(8, 64, 8), *range(64, 129, 16), *range(160, 257, 32)]
"""Batch sizes for which vLLM captures graphs: between them it pads."""
VLLM_TOKENS = 8192
"""Of a step of vLLM's."""


def folder_of(
    model: str | pathlib.Path, fields: Mapping[str, Any] | None = None
) -> str:
    """A folder with a configuration and nothing else; it stays until a restart.

    Args:
        model: the configuration's file.
        fields: that replace the file's.
    """
    folder = pathlib.Path(tempfile.mkdtemp())
    config = json.loads(pathlib.Path(model).read_text())
    (folder / "config.json").write_text(json.dumps({**config, **(fields or {})}))
    return str(folder)


def positions(model: str | pathlib.Path, length: int) -> dict[str, int]:
    """What a configuration needs replaced for sequences of a length: often nothing.

    Args:
        model: the configuration's file.
        length: in tokens.
    """
    key = "max_position_embeddings"
    there = json.loads(pathlib.Path(model).read_text()).get(key, length)
    return {key: length} if there < length else {}


def transformers_model(folder: str) -> tuple[Any, str]:
    """A model of transformers', on a GPU if there is one; and where it is.

    Args:
        folder: with a configuration.
    """
    import torch  # pyright: ignore[reportMissingImports]  (group parity)
    import transformers

    is_gpu = torch.cuda.is_available()
    place, dtype = ("cuda", torch.bfloat16) if is_gpu else ("cpu", torch.float32)
    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.device(place):
        kind: Any = transformers.AutoModelForCausalLM
        return kind.from_config(config, dtype=dtype).eval(), place
