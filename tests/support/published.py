"""How published checkpoints, older than transformers 5, spell what it writes."""

from collections.abc import Mapping
from typing import Any

import torch  # pyright: ignore[reportMissingImports]  (group parity)

from tests.support.hf_model import HfModel


def published_config(config: Mapping[str, Any], model: HfModel) -> dict[str, Any]:
    """`config` with the names of transformers 4 and the model's own `published`."""
    old = dict(config)
    old["torch_dtype"] = old.pop("dtype")
    old["transformers_version"] = "4.40.0"
    rope = old.pop("rope_parameters", None)
    if rope is not None:
        old["rope_theta"] = rope["rope_theta"]
        old["rope_scaling"] = None
        if "partial_rotary_factor" in rope:
            old["partial_rotary_factor"] = rope["partial_rotary_factor"]
    old |= model.published
    left_out = {name for name, value in model.published.items() if value is None}
    return {name: old[name] for name in sorted(old) if name not in left_out}


def published_leftovers(model: HfModel, config: Any) -> dict[str, torch.Tensor]:
    """Masks and frequencies that some published checkpoints hold for no use."""
    leftovers: dict[str, torch.Tensor] = {}
    if model.architecture == "GPTJForCausalLM":
        size = config.n_positions
        for layer in range(config.n_layer):
            attention = f"transformer.h.{layer}.attn"
            mask = torch.ones(size, size, dtype=torch.bool).tril()
            leftovers[f"{attention}.bias"] = mask.view(1, 1, size, size)
            leftovers[f"{attention}.masked_bias"] = torch.tensor(-1e9)
    if model.architecture == "LlamaForCausalLM":
        exponents = torch.arange(0, config.head_dim, 2) / config.head_dim
        for layer in range(config.num_hidden_layers):
            name = f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"
            leftovers[name] = 1 / 10000**exponents
    return leftovers
