"""The definition of beam search in NumPy: one prompt, one beam after the other.

Written from transformers' `_beam_search` (5.23), and for diverse groups from the
`group_beam_search` and `HammingDiversityLogitsProcessor` that it had before 5; with
what the engine knows besides: texts that end, and tokens that may not come. Arithmetic
is float32, in the order of transformers.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import numpy as np

from fdjax.generate import steps
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.models import Decoder
from tests.support.engines import layout_of

_OUT = np.float32(-1e9)
_score = jax.jit(steps.score)

type Logprobs = Callable[[Sequence[int]], np.ndarray]


@dataclass(frozen=True)
class Search:
    """What is looked for.

    Attributes:
        params: with all limits; `stop_token_ids` are all that end.
        prompt: token ids.
        logprobs: of the token after a prefix, float32 `[V]`.
        ended: whether an output ends with its last token, for its text.
        may: whether an output may be.
    """

    params: BeamSearchParams
    prompt: Sequence[int]
    logprobs: Logprobs
    ended: Callable[[list[int]], bool] = lambda _: False
    may: Callable[[list[int]], bool] = lambda _: True

    def found(self) -> list[tuple[list[int], float]]:
        """Tokens and scores of the `n` best, the best first."""
        groups = [_Group(self) for _ in range(self.params.num_beam_groups)]
        while any(not one.over for one in groups):
            chosen: list[int] = []
            for group in groups:
                if not group.over:
                    group.step(chosen)
                    chosen += [tokens[-1] for _, tokens in group.running]
        found = [one for group in groups for one in group.hypotheses if one.exists]
        found.sort(key=lambda one: -one.score)
        best = found[: self.params.n]
        return [(one.tokens, float(one.score)) for one in best if one.total > _OUT / 2]


class _Hypothesis(NamedTuple):
    """What ended.

    Attributes:
        score: by which the best are kept.
        total: the sum; of what continues no beam at all it is about `_OUT`.
        tokens: of the output.
        exists: it is none of those that are there before the first.
    """

    score: np.float32
    total: np.float32
    tokens: list[int]
    exists: bool


@dataclass
class _Group:
    search: Search
    running: list[tuple[np.float32, list[int]]] = field(init=False)
    hypotheses: list[_Hypothesis] = field(init=False)
    improvable: bool = True
    over: bool = False

    def __post_init__(self) -> None:
        self.running = [
            (np.float32(0) if beam == 0 else _OUT, list[int]())
            for beam in range(self.width)
        ]
        self.hypotheses = [_Hypothesis(_OUT, _OUT, [], exists=False)] * self.width

    @property
    def width(self) -> int:
        return self.search.params.group_width

    def step(self, chosen: Sequence[int]) -> None:
        """Goes on by a token; `chosen` are those of the groups before."""
        params = self.search.params
        rows = [self._scores(tokens, chosen) + total for total, tokens in self.running]
        sums: list[np.float32] = [total for row in rows for total in row]
        kept = max(2, 1 + len(params.stop_token_ids)) * self.width
        candidates: list[tuple[np.float32, list[int], bool]] = []
        for place in np.argsort(-np.array(sums), kind="stable")[:kept]:
            beam, token = divmod(int(place), len(rows[0]))
            tokens = [*self.running[beam][1], token]
            candidates.append((sums[place], tokens, self._ends(tokens, sums[place])))
        full = params.early_stopping is True and all(
            one.exists for one in self.hypotheses
        )
        by_sum = [(s + (_OUT if ends else 0), t) for s, t, ends in candidates]
        by_sum.sort(key=lambda one: -one[0])
        self.running = by_sum[: self.width]
        length = len(candidates[0][1])
        new: list[_Hypothesis] = []
        for place, (total, tokens, ends) in enumerate(candidates):
            score = total / self._divisor(length)
            finishes = ends and place < self.width
            for is_out in (full, not self.improvable, not finishes):
                score = score + (_OUT if is_out else np.float32(0))
            new.append(_Hypothesis(score, total, tokens, finishes))
        both = [*self.hypotheses, *new]
        both.sort(key=lambda one: -one.score)
        self.hypotheses = both[: self.width]
        self._end([ends for _, _, ends in candidates], length)

    def _end(self, ends: Sequence[bool], length: int) -> None:
        params = self.search.params
        at = length
        if params.early_stopping == "never" and params.length_penalty > 0:
            assert params.max_tokens is not None
            at = params.max_tokens
        best = self.running[0][0] / self._divisor(at)
        lowest = min(one.score for one in self.hypotheses)
        worst = [lowest if one.exists else _OUT for one in self.hypotheses]
        self.improvable &= any(best > one for one in worst)
        full = params.early_stopping is True and all(
            one.exists for one in self.hypotheses
        )
        self.over = not self.improvable or full or all(ends)

    def _scores(self, tokens: list[int], chosen: Sequence[int]) -> np.ndarray:
        params = self.search.params
        prefix = [*self.search.prompt, *tokens]
        scores = self.search.logprobs(prefix).copy()
        for token, bias in (params.logit_bias or {}).items():
            scores[token] += np.float32(bias)
        for token in chosen:
            scores[token] -= np.float32(params.diversity_penalty)
        if params.repetition_penalty != 1:
            seen = sorted(set(prefix))
            factor = np.float32(params.repetition_penalty)
            scores[seen] = np.where(
                scores[seen] < 0, scores[seen] * factor, scores[seen] / factor
            )
        for token in range(len(scores)):
            if not self.search.may([*tokens, token]):
                scores[token] = -np.inf
        if len(tokens) < params.min_tokens:
            scores[list(params.stop_token_ids)] = -np.inf
        return scores

    def _ends(self, tokens: list[int], total: np.float32) -> bool:
        params = self.search.params
        assert params.max_tokens is not None
        if tokens[-1] in params.stop_token_ids or len(tokens) >= params.max_tokens:
            return True
        return bool(total > _OUT / 2) and self.search.ended(tokens)

    def _divisor(self, length: int) -> np.float32:
        return np.float32(float(length) ** self.search.params.length_penalty)


def model_logprobs(model: Decoder, *, room: int) -> Logprobs:
    """Of a model, the whole prefix computed each time.

    Args:
        model: the decoder.
        room: most tokens of a prefix.
    """

    kv = layout_of(model, num_pages=1, page_size=room).allocate()

    @functools.cache
    def of(prefix: tuple[int, ...]) -> np.ndarray:
        tokens = np.zeros((1, room), np.int32)
        tokens[0, : len(prefix)] = prefix
        lengths, table = np.array([len(prefix)], np.int32), np.zeros((1, 1), np.int32)
        logits, _ = _score(model, kv, *jax.device_put((tokens, lengths, table)))
        return np.asarray(jax.nn.log_softmax(logits[0, len(prefix) - 1]))

    return lambda prefix: of(tuple(prefix))
