"""The definition of every model: transformers, in float32 on a CPU. Needs torch."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  (group parity)
import transformers
from safetensors.torch import save_file

from tests.support import chatglm
from tests.support.hf_model import NEW_TOKENS, PROMPT_LENGTHS, HfModel
from tests.support.published import published_config, published_leftovers

# Larger than the float32 noise of any order of summation by two orders of magnitude.
SAFE_GAP = 1e-3

# Of weights in units of 1 / sqrt(fan-in): attention far from uniform, logits apart.
_GAIN = 1.5

# Small beside what the layers add: a tied head would only echo the last token. BLOOM
# normalises its embedding, so that only the scale of that norm makes it small.
_EMBEDDING_GAIN = 0.5
_EMBEDDING_NORM = 0.05


@dataclass(frozen=True)
class Expected:
    """What transformers computes for some prompts, each run alone.

    Attributes:
        prompts: int32 `[B, S]`, padded with 0.
        lengths: int32 `[B]`.
        logits: float32 `[T, V]`, all positions of all prompts, `T = sum(lengths)`.
        tokens: int32 `[B, N]`, the greedy continuations.
        gaps: float32 `[B, N]`, by how much each of `tokens` won: best logit minus the
            second best, relative to the largest magnitude.
    """

    prompts: np.ndarray
    lengths: np.ndarray
    logits: np.ndarray
    tokens: np.ndarray
    gaps: np.ndarray


def write(model: HfModel, folder: Path, *, seed: int) -> Expected:
    """Writes `config.json` and `model.safetensors`, and computes with those files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = draw(model, seed=seed)
    config = drawn.config.to_diff_dict()
    config |= {"architectures": [model.architecture], "dtype": "bfloat16"}
    weights = {name: p.detach() for name, p in drawn.named_parameters()}
    if model.chatglm:
        config, weights = chatglm.config(config), chatglm.weights(config, weights)
    if model.spelling == "published":
        config = published_config(config, model)
        weights |= published_leftovers(model, drawn.config)
        weights = {n.removeprefix(model.prefix): w for n, w in weights.items()}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    stored = {n: _to_bfloat16(w) for n, w in weights.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    reference = drawn if model.chatglm else load(folder)
    return expect(reference, *random_prompts(model, seed=seed))


def load(folder: Path) -> Any:
    """The model of a checkpoint, in float32 with eager attention."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def random_prompts(model: HfModel, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Prompts `[B, S]` padded with 0, and their lengths `[B]`."""
    rng = np.random.default_rng([seed, 1])
    lengths = np.array(PROMPT_LENGTHS, np.int32)
    drawn = rng.integers(model.config["vocab_size"], size=(len(lengths), max(lengths)))
    valid = np.arange(max(lengths)) < lengths[:, None]
    return np.where(valid, drawn, 0).astype(np.int32), lengths


@torch.no_grad()  # pyright: ignore[reportUntypedFunctionDecorator]  (the same)
def expect(
    reference: Any,
    prompts: np.ndarray,
    lengths: np.ndarray,
    *,
    new_tokens: int = NEW_TOKENS,
) -> Expected:
    """Runs every prompt alone, so that nothing is padded, with a KV cache."""
    rows = [
        _run(reference, prompt[:length], new_tokens)
        for prompt, length in zip(prompts, lengths, strict=True)
    ]
    logits, tokens, gaps = zip(*rows, strict=True)
    return Expected(
        prompts, lengths, np.concatenate(logits), np.stack(tokens), np.stack(gaps)
    )


def _run(
    reference: Any, prompt: np.ndarray, new_tokens: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ids = torch.from_numpy(prompt.astype(np.int64))[None]
    out = reference(input_ids=ids, use_cache=True)
    logits = out.logits[0]
    tokens: list[int] = []
    gaps: list[float] = []
    for _ in range(new_tokens):
        last = out.logits[0, -1]
        best, second = last.topk(2).values
        gaps.append(float((best - second) / last.abs().max()))
        tokens.append(int(last.argmax()))
        ids = torch.tensor([[tokens[-1]]])
        out = reference(
            input_ids=ids, past_key_values=out.past_key_values, use_cache=True
        )
    return (
        logits.float().numpy(),
        np.array(tokens, np.int32),
        np.array(gaps, np.float32),
    )


def draw(model: HfModel, *, seed: int) -> Any:
    """A model whose weights NumPy drew: the same with every release of torch."""
    kind: Any = getattr(transformers, model.architecture)
    config = kind.config_class(**model.config)
    config._attn_implementation = "eager"
    drawn = kind(config).eval().requires_grad_(False)
    rng = np.random.default_rng([seed, 0])
    for name, parameter in sorted(drawn.named_parameters()):
        value = _draw_parameter(name, tuple(parameter.shape), rng)
        if model.architecture == "Gemma2ForCausalLM" and "norm" in name:
            value -= 1  # Gemma's norms add 1 to what is stored.
        rounded = torch.from_numpy(value.astype(np.float32)).bfloat16()
        parameter.copy_(rounded.float())
    return drawn


def _draw_parameter(
    name: str, shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray:
    normal = rng.standard_normal(shape)
    embeds = any(part in name for part in ("embed", "wte"))
    if len(shape) == 2:
        return normal * (_EMBEDDING_GAIN if embeds else _GAIN) / np.sqrt(shape[1])
    vector = 0.2 * normal + (0 if name.endswith("bias") else 1)
    return vector * (_EMBEDDING_NORM if embeds else 1)


def _to_bfloat16(weight: torch.Tensor) -> torch.Tensor:
    if weight.dtype != torch.float32:
        return weight
    return weight.bfloat16().contiguous()
