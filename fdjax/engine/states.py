"""What sequences ask of sampling and how far they have come, as arrays by row."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fdjax.engine.sequence import EngineSequence
from fdjax.generate.plan import SamplingPlan
from fdjax.generate.progress import GenerationProgress
from fdjax.generate.rows import Arrivals
from fdjax.generate.sampling_state import (
    SamplingProgress,
    SamplingRules,
    SamplingState,
    init_state,
)
from fdjax.generate.softmax_counts import SoftmaxCounts
from fdjax.kernels.paged import KVCache
from fdjax.models.config import ModelConfig
from fdjax.notation import Array


class States:
    """Makes them, of one model.

    Args:
        config: the model's.
        num_rows: of the batch, `R`.
        num_arrivals: the most that a call seats, `A`.
    """

    def __init__(
        self, config: ModelConfig, *, num_rows: int, num_arrivals: int
    ) -> None:
        self._config = config
        self._num_rows = num_rows
        self._num_arrivals = num_arrivals
        self._nobody: tuple[SamplingPlan, Arrivals] | None = None

    def empty(self, plan: SamplingPlan) -> SamplingState:
        """Of rows that nobody has.

        They are all alike, and one is sent: with Llama-3's vocabulary 256 in the plan
        for all are 177 MB, which take 67 ms to make and to copy on a host.
        """
        return _alike(self._of([], plan, 1), num_rows=self._num_rows)

    def begin(
        self, plan: SamplingPlan, kv: KVCache, table: np.ndarray
    ) -> tuple[SamplingRules, GenerationProgress]:
        """Rules and progress of rows that nobody has.

        Args:
            plan: stages of sampling.
            kv: the KV array.
            table: of its pages, `[R, W]`.
        """
        state, zeros = self.empty(plan), np.zeros(self._num_rows, np.int32)
        lengths, tokens, there = jax.device_put((zeros, zeros, table.copy()))
        counts = SoftmaxCounts.of(self._config)
        progress = GenerationProgress(
            kv, lengths, tokens, state.progress, counts, there
        )
        return state.rules, progress

    def uncounted(self, progress: GenerationProgress) -> GenerationProgress:
        """The same, with nothing counted yet."""
        return dataclasses.replace(progress, softmax=SoftmaxCounts.of(self._config))

    def arrivals(
        self, sequences: Sequence[EngineSequence], plan: SamplingPlan
    ) -> Arrivals:
        """Of sequences whose prompts are complete; kept where there are none.

        Arrays may be others' too: do not donate them.
        """
        if self._nobody is None or self._nobody[0] != plan:
            state = self._of([], plan, self._num_arrivals)
            self._nobody = plan, self._arrivals([], state)
        nobody = self._nobody[1]
        if not sequences:
            return nobody
        state = self._of(sequences, _asked(sequences, plan), self._num_arrivals)
        rules = _filled(state.rules, nobody.state.rules)
        progress = _filled(state.progress, nobody.state.progress)
        return self._arrivals(sequences, SamplingState(rules, progress))

    def _arrivals(
        self, sequences: Sequence[EngineSequence], state: SamplingState
    ) -> Arrivals:
        rows = np.full(self._num_arrivals, self._num_rows, np.int32)
        lengths = np.zeros(self._num_arrivals, np.int32)
        rows[: len(sequences)] = [
            sequence.row for sequence in sequences if sequence.row is not None
        ]
        lengths[: len(sequences)] = [len(sequence.tokens) for sequence in sequences]
        return Arrivals(state, *jax.device_put((rows, lengths)))

    def _of(
        self, sequences: Sequence[EngineSequence], plan: SamplingPlan, num_rows: int
    ) -> SamplingState:
        return init_state(
            [sequence.request.limited_params for sequence in sequences],
            [sequence.request.prompt for sequence in sequences],
            plan=plan,
            vocab_size=self._config.embedding.vocab_size,
            eos_token_ids=self._config.eos_token_ids,
            default_seeds=[sequence.seed for sequence in sequences],
            num_rows=num_rows,
            outputs=[sequence.output for sequence in sequences],
            masks=[
                None if m is None else m.mask() for m in (j.matcher for j in sequences)
            ],
        )


@functools.partial(jax.jit, static_argnames="num_rows")
def _alike(state: SamplingState, *, num_rows: int) -> SamplingState:
    """Rows that are all like the one of a state."""

    def rows(leaf: Array) -> Array:
        return jnp.broadcast_to(leaf, (num_rows, *leaf.shape[1:]))

    return jax.tree.map(rows, state)


def _asked(sequences: Sequence[EngineSequence], plan: SamplingPlan) -> SamplingPlan:
    """A plan's stages but for large ones that none of the sequences has asked for.

    These have something for each token of the vocabulary: of Llama-3's, 44 MB in all
    for 64 arrivals, which take 4 ms to make, and are the same as nobody's.
    """
    params = [sequence.request.params for sequence in sequences]
    penalties = plan.penalties and any(one.has_penalties for one in params)
    lists = plan.token_lists and any(one.has_token_lists for one in params)
    masks = plan.masks and any(one.matcher is not None for one in sequences)
    return dataclasses.replace(
        plan, penalties=penalties, token_lists=lists, masks=masks
    )


def _filled[T: (SamplingRules, SamplingProgress)](part: T, whole: T) -> T:
    """`part`, with what is left out in it taken from `whole`."""
    missing: dict[str, Any] = {
        field.name: getattr(whole, field.name)
        for field in dataclasses.fields(part)
        if getattr(part, field.name) is None
    }
    return dataclasses.replace(part, **missing)


def kept[T: (SamplingRules, SamplingProgress)](old: T, fresh: T) -> T:
    """`fresh`, with the parts that `old` has too taken from there."""
    both: dict[str, Any] = {}
    for field in dataclasses.fields(fresh):
        before, after = getattr(old, field.name), getattr(fresh, field.name)
        if before is not None and after is not None:
            both[field.name] = before
    return dataclasses.replace(fresh, **both)
