"""Beam search by transformers, over made-up log-probabilities. Needs torch."""

import dataclasses
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  (group parity)
import transformers
from safetensors import safe_open
from transformers.modeling_outputs import CausalLMOutputWithPast

from tests.support import hf_reference
from tests.support.beam_cases import VOCAB_SIZE, BeamCase, Found, logprobs
from tests.support.beam_models import ModelCase, folder_of
from tests.support.hf_model import FIXTURES
from tests.support.hf_models import MODELS


class _Table(transformers.PreTrainedModel, transformers.GenerationMixin):
    """A model whose output depends on the prefix alone."""

    config_class = transformers.PretrainedConfig
    main_input_name = "input_ids"

    def __init__(self, seed: int) -> None:
        config: Any = transformers.PretrainedConfig()
        config.vocab_size = VOCAB_SIZE
        super().__init__(config)
        self.seed = seed
        self.anchor = torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids: Any, **_: Any) -> Any:
        rows = [logprobs(self.seed, prefix) for prefix in input_ids.tolist()]
        return CausalLMOutputWithPast(logits=torch.from_numpy(np.stack(rows))[:, None])


@contextmanager
def _logits_are_logprobs() -> Generator[None]:
    with mock.patch("torch.nn.functional.log_softmax", lambda x, dim: x):
        yield


@torch.no_grad()  # pyright: ignore[reportUntypedFunctionDecorator]  (the same)
def search(case: BeamCase) -> Found:
    """What transformers finds."""
    params = case.params
    bias = {(int(token),): value for token, value in params["logit_bias"].items()}
    table: Any = _Table(case.seed)
    with _logits_are_logprobs():
        out = table.generate(
            torch.tensor([case.prompt]),
            num_beams=params["beam_width"],
            num_return_sequences=params["n"],
            max_new_tokens=params["max_tokens"],
            min_new_tokens=params["min_tokens"] or None,
            length_penalty=params["length_penalty"],
            early_stopping=params["early_stopping"],
            repetition_penalty=params["repetition_penalty"],
            sequence_bias=bias,
            eos_token_id=list(case.ends) or None,
            pad_token_id=0,
            do_sample=False,
            use_cache=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
    found = Found([], [], [float(score) for score in out.sequences_scores])
    for sequence, indices in zip(out.sequences, out.beam_indices, strict=True):
        parents = [int(beam) for beam in indices if beam >= 0]
        found.parents.append(parents)
        tokens = sequence[len(case.prompt) : len(case.prompt) + len(parents)]
        found.tokens.append([int(token) for token in tokens])
    return found


def reference_of(name: str) -> Any:
    """The model of a fixture, or the one that ships in the package."""
    drawn = next((one for one in MODELS if one.name == name and one.chatglm), None)
    if drawn is not None:  # which transformers cannot load: it is drawn again
        with safe_open(FIXTURES / name / "expected.safetensors", "np") as held:
            seed = int(held.metadata()["made_by"].split()[-1])
        return hf_reference.draw(drawn, seed=seed)
    return hf_reference.load(folder_of(name))


@torch.no_grad()  # pyright: ignore[reportUntypedFunctionDecorator]  (the same)
def answered(case: ModelCase, model: Any) -> ModelCase:
    """A case with what transformers finds.

    Args:
        case: one of `beam_models.questions`.
        model: of `reference_of`.
    """
    params = case.params
    ids = torch.tensor([case.prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        num_beams=params["beam_width"],
        num_return_sequences=params["beam_width"],
        max_new_tokens=params["max_tokens"],
        length_penalty=params["length_penalty"],
        early_stopping=params["early_stopping"],
        repetition_penalty=params.get("repetition_penalty", 1.0),
        eos_token_id=case.ends,
        pad_token_id=0,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    tokens: list[list[int]] = []
    for sequence, indices in zip(out.sequences, out.beam_indices, strict=True):
        count = int((indices >= 0).sum())
        own = sequence[len(case.prompt) : len(case.prompt) + count]
        tokens.append([int(token) for token in own])
    scores = [float(score) for score in out.sequences_scores]
    return dataclasses.replace(case, tokens=tokens, scores=scores)
