"""Beam searches over made-up log-probabilities, which need no model.

The log-probabilities of a prefix are a hash of it, in steps of 2**-18: any sum of them
is the same on every machine. They do not sum to one; a search does not care.
"""

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.generate.beam_fields import EarlyStopping
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.beam_search import choose
from fdjax.generate.beam_state import BeamState, init_beams
from fdjax.generate.beam_trace import BeamTrace, TracedStep
from fdjax.generate.plan import SamplingPlan
from fdjax.generate.stopping import FinishReason

EXPECTED = Path(__file__).parents[1] / "fixtures" / "beam_search.json"

VOCAB_SIZE = 48
LIMIT = 12
NUM_CASES = 120

_step = jax.jit(choose)


@dataclass(frozen=True)
class BeamCase:
    """A search.

    Attributes:
        seed: of the log-probabilities.
        prompt: token ids.
        ends: tokens that finish beams.
        params: the others of `BeamSearchParams`.
    """

    seed: int
    prompt: tuple[int, ...]
    ends: tuple[int, ...]
    params: dict[str, Any]

    @property
    def search_params(self) -> BeamSearchParams:
        """What the search is asked for."""
        bias = {int(token): value for token, value in self.params["logit_bias"].items()}
        others: dict[str, Any] = {"logit_bias": bias, "stop_token_ids": self.ends}
        return BeamSearchParams(**(self.params | others))


@dataclass(frozen=True)
class Found:
    """What came of it: hypotheses, the best first.

    Attributes:
        tokens: of each.
        parents: the beam that each of its tokens continued.
        scores: float32, as Python prints it.
    """

    tokens: list[list[int]]
    parents: list[list[int]]
    scores: list[float]


def logprobs(seed: int, prefix: Sequence[int]) -> np.ndarray:
    """Of the token after `prefix`, float32 `[V]`."""
    given = np.array([seed, *prefix], "<u4").tobytes()
    drawn = np.frombuffer(hashlib.shake_256(given).digest(4 * VOCAB_SIZE), "<u4")
    return -((drawn >> 10).astype(np.float32)) / np.float32(2**18)


def cases(count: int = NUM_CASES, seed: int = 0) -> list[BeamCase]:
    """Random searches; a width's candidates are never more than the vocabulary has."""
    rng = random.Random(seed)
    return [_case(rng, index) for index in range(count)]


def _case(rng: random.Random, index: int) -> BeamCase:
    ends = tuple(rng.sample(range(VOCAB_SIZE), rng.choice((0, 1, 1, 2, 3))))
    widest = VOCAB_SIZE // max(2, 1 + len(ends))
    width = min(rng.choice((2, 3, 4, 5, 8, 16)), widest)
    early: EarlyStopping = rng.choice((False, True, "never"))
    max_tokens = rng.choice((1, 2, 5, 8, LIMIT))
    # Ends are as likely as others: made likelier, or there would be few hypotheses.
    bias = {token: rng.choice((0.0, 3.0, 8.0)) for token in ends}
    bias[rng.randrange(VOCAB_SIZE)] = rng.choice((-100.0, 1.5))
    params = {
        "beam_width": width,
        "n": rng.randint(1, width),
        "max_tokens": max_tokens,
        "min_tokens": rng.choice((0, 0, min(3, max_tokens))),
        "length_penalty": rng.choice((-1.0, 0.0, 0.5, 1.0, 1.0, 2.0)),
        "early_stopping": early,
        "repetition_penalty": rng.choice((1.0, 1.0, 1.3)),
        "logit_bias": {str(token): value for token, value in bias.items()},
    }
    prompt = tuple(rng.choices(range(VOCAB_SIZE), k=rng.randint(1, 4)))
    return BeamCase(index, prompt, ends, params)


def start(some: Sequence[BeamCase], width: int = 16) -> BeamState:
    """The state of several searches before their first tokens."""
    return init_beams(
        [case.search_params for case in some],
        [case.prompt for case in some],
        width=width,
        limit=LIMIT,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=(),
        plan=SamplingPlan(num_stop_ids=3, num_biased=4, penalties=True),
    )


def run(some: Sequence[BeamCase], width: int = 16) -> list[Found]:
    """Several searches side by side, each with a width of its own."""
    state = start(some, width)
    traces = [BeamTrace() for _ in some]
    finished = [False] * len(some)
    while not all(finished):
        values = np.stack(
            [
                np.stack([_after(case, trace, beam) for beam in range(width)])
                for case, trace in zip(some, traces, strict=True)
            ]
        )
        chosen, progress = _step(jnp.asarray(values), state)
        chosen = jax.device_get(chosen)
        state = BeamState(state.rules, progress)
        for group, trace in enumerate(traces):
            if not finished[group]:
                tokens, parents = chosen.tokens[group], chosen.parents[group]
                trace.add(TracedStep(tokens.tolist(), parents.tolist()))
        codes = np.asarray(progress.finished).tolist()
        finished = [code != FinishReason.RUNNING for code in codes]
    found = jax.device_get(state.progress.hypotheses)
    return [
        _found(case, found, group, traces[group]) for group, case in enumerate(some)
    ]


def _after(case: BeamCase, trace: BeamTrace, beam: int) -> np.ndarray:
    if beam >= case.params["beam_width"]:
        return np.full(VOCAB_SIZE, 7.0, np.float32)  # would win, if it existed
    tokens, _ = trace.path(beam, len(trace))
    return logprobs(case.seed, [*case.prompt, *tokens])


def _found(case: BeamCase, hypotheses: Any, group: int, trace: BeamTrace) -> Found:
    best = [
        trace.hypothesis(
            int(hypotheses.parents[group, place]),
            int(hypotheses.tokens[group, place]),
            int(hypotheses.lengths[group, place]),
        )
        for place in range(case.params["n"])
    ]
    scores = [float(hypotheses.scores[group, place]) for place in range(len(best))]
    return Found([t for t, _ in best], [p for _, p in best], scores)


def expected() -> list[Found]:
    """What transformers found."""
    return [Found(**entry) for entry in json.loads(EXPECTED.read_text())]


def write_expected(found: Sequence[Found]) -> None:
    """Keeps it."""
    lines = ",\n".join(json.dumps(asdict(one)) for one in found)
    EXPECTED.write_text(f"[\n{lines}\n]\n")
