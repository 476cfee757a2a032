"""Beam searches with the models of the fixtures, and what transformers finds there."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file

from fdjax.engine.engine import Engine
from fdjax.engine.request import Found, Hypothesis
from fdjax.engine.runs import Runs
from fdjax.generate.beam_fields import EarlyStopping
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.models import Decoder, load
from tests.support.hf_model import FIXTURES, TALES

EXPECTED = FIXTURES / "beams.json"

FAMILIES = (
    "bloom",
    "chatglm",
    "gemma2",
    "glm",
    "glm4",
    "gptj",
    "llama",
    "mistral",
    "mistral_window",
    "opt",
    "qwen2",
    "qwen3",
)
WIDTHS = (4, 5, 30)
_EARLY: tuple[EarlyStopping, ...] = (False, "never", True)
_PENALTIES = (1.0, 2.0, 0.5)
_REPETITIONS = (1.0, 1.2)
_MOST_TOKENS = (16, 12, 8)
# Of the greedy continuation: its tokens end beams, so that some do.
_END_STEPS = (4, 9, 2)
# Of sums of a few dozen log-probabilities, in float32.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class ModelCase:
    """A search with a model.

    Attributes:
        model: a fixture's name.
        prompt: token ids.
        ends: the tokens that finish beams.
        params: the others of `BeamSearchParams`.
        tokens: of each hypothesis that transformers finds, the best first.
        scores: of each.
    """

    model: str
    prompt: list[int]
    ends: list[int]
    params: dict[str, Any]
    tokens: list[list[int]]
    scores: list[float]

    @property
    def search_params(self) -> BeamSearchParams:
        """What the search is asked for."""
        others: dict[str, Any] = {"stop_token_ids": self.ends, "ignore_eos": True}
        return BeamSearchParams(**(self.params | others))


def folder_of(model: str) -> Path:
    """Where a model's weights are."""
    return TALES if model == "tales-5m" else FIXTURES / model


def model_of(name: str) -> Decoder:
    """The model, in float32."""
    return load(folder_of(name), dtype=jnp.float32)


def questions() -> list[ModelCase]:
    """The cases that are kept, without their answers.

    Each family with each width; over all of them each width with every way to end.
    """
    asked = [
        _family(
            name,
            {
                "beam_width": width,
                "early_stopping": _EARLY[(place + nth) % 3],
                "length_penalty": _PENALTIES[(place // 3 + nth) % 3],
                "repetition_penalty": _REPETITIONS[(place + nth) % 2],
            },
            row=place % 3,
            num_ends=1 + (place + nth) % 3,
        )
        for place, name in enumerate(FAMILIES)
        for nth, width in enumerate(WIDTHS)
    ]
    return [*asked, *(_tales(place) for place in range(4))]


def all_questions(name: str) -> list[ModelCase]:
    """Every width, early stopping and penalty with a family.

    Of any two of these, the prompt and the number of ends, each pair of values meets
    three times.
    """
    return [
        _family(
            name,
            {
                "beam_width": WIDTHS[width],
                "early_stopping": _EARLY[early],
                "length_penalty": _PENALTIES[penalty],
                "repetition_penalty": _REPETITIONS[(penalty + width + early) % 2],
            },
            row=(penalty + width + early) % 3,
            num_ends=1 + (penalty + 2 * width) % 3,
        )
        for penalty, width, early in itertools.product(range(3), repeat=3)
    ]


def _family(name: str, params: dict[str, Any], *, row: int, num_ends: int) -> ModelCase:
    """Prompts of 1, 5 and 23 tokens, one to three ends, with penalties or without."""
    held = load_file(FIXTURES / name / "expected.safetensors")
    most = {"max_tokens": _MOST_TOKENS[WIDTHS.index(params["beam_width"])]}
    steps = _END_STEPS[:num_ends]
    ends = sorted({int(held["tokens"][row, step]) for step in steps})
    return ModelCase(name, _prompt(held, row), ends, params | most, [], [])


def _tales(place: int) -> ModelCase:
    held = load_file(FIXTURES / "tales-5m" / "expected.safetensors")
    params = {
        "beam_width": (4, 5, 30, 4)[place],
        "max_tokens": (40, 24, 20, 12)[place],
        "early_stopping": (False, True, "never", False)[place],
        "length_penalty": (1.0, 0.5, 2.0, 0.0)[place],
    }
    ends = [int(token) for token in held["tokens"][place, [9, 12]]]
    return ModelCase(
        "tales-5m", _prompt(held, place), sorted(set(ends)), params, [], []
    )


def _prompt(held: dict[str, np.ndarray], row: int) -> list[int]:
    return held["prompts"][row, : held["lengths"][row]].tolist()


def expected(model: str) -> list[ModelCase]:
    """The cases of a model, with what transformers found."""
    cases = [ModelCase(**entry) for entry in json.loads(EXPECTED.read_text())]
    return [case for case in cases if case.model == model]


def write_expected(cases: Sequence[ModelCase]) -> None:
    """Keeps them."""
    lines = ",\n".join(json.dumps(asdict(case)) for case in cases)
    EXPECTED.write_text(f"[\n{lines}\n]\n")


def shown(tokens: list[int], case: ModelCase) -> list[int]:
    """The tokens that a text shows: not the one that ended it."""
    return tokens[:-1] if tokens[-1] in case.ends else tokens


def find(engine: Engine, case: ModelCase) -> list[Hypothesis]:
    """What an engine finds."""
    runs = Runs(engine)
    request = engine.request(0, case.prompt, case.search_params)
    ((_, found),) = runs.follow(runs.add([request]))
    assert isinstance(found, Found)
    return found.hypotheses


def assert_same(found: Sequence[Hypothesis], case: ModelCase) -> None:
    """Scores are equal up to rounding, and tokens but where two scores tie."""
    scores = [one.score for one in found]
    np.testing.assert_allclose(scores, case.scores, rtol=TOLERANCE)
    for place, one in enumerate(found):
        others = [
            tokens
            for tokens, score in zip(case.tokens, case.scores, strict=True)
            if abs(score - case.scores[place]) <= TOLERANCE * abs(score)
        ]
        assert one.token_ids in others, (case.model, place)
