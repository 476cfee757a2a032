"""The functions that an engine's programs are made of, jitted over flat weights."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from fdjax.engine.borrowing import BorrowingCall
from fdjax.engine.invariance import as_config_says
from fdjax.generate import rows
from fdjax.generate.beam_loop import beam_steps, judged_step
from fdjax.generate.beam_run import BeamPages, BeamRun, BeamStep, Judgement
from fdjax.generate.beam_state import BeamRules
from fdjax.generate.packed import Packed
from fdjax.generate.plan import SamplingPlan
from fdjax.generate.pooled_states import PooledStates, pool_tokens
from fdjax.generate.progress import GenerationProgress
from fdjax.generate.prompt_scores import PromptScores, score_tokens
from fdjax.generate.row_pages import RowPages
from fdjax.generate.rows import Arrivals, RowTokens
from fdjax.generate.sampling import Sampled
from fdjax.generate.sampling_state import SamplingRules
from fdjax.kernels.paged import KVCache, SharedPrefixes
from fdjax.models.config import ModelConfig
from fdjax.models.program import kept_free
from fdjax.notation import Array, Bool, Float, Int32

type Kept = Callable[[BorrowingCall, int], int]
"""Bytes at the KV array's end that are free while a call of so many tokens runs."""


@dataclass(frozen=True)
class ProgramFunctions:
    """Jitted, but for those of beam searches, which are compiled by shape.

    Each takes the weights first, as a flat tuple.
    """

    extend: Any
    sample: Any
    logits: Any
    score: Any
    pool: Any
    decode: Any
    beams: Callable[..., Any]
    judged: Callable[..., Any]


def functions_of(
    config: ModelConfig,
    structure: Any,
    *,
    steps_per_launch: int,
    mixed: bool,
    options: dict[str, Any],
    kept: Kept | None,
) -> ProgramFunctions:
    """The functions over one model.

    Args:
        config: of the model.
        structure: that makes it of its weights.
        steps_per_launch: decode steps of one call.
        mixed: calls with prompts may have rows that decode.
        options: of the compiler.
        kept: what is free for each call, of which a program that is traced overwrites
            no more; `None`: nobody says.
    """
    decode_rows = as_config_says(config, rows.decode_rows)
    extend = as_config_says(config, rows.extend_rows)
    sample = as_config_says(config, rows.sample_rows)
    score = as_config_says(config, score_tokens)
    pool = as_config_says(config, pool_tokens)

    jit = partial(jax.jit, compiler_options=options)

    def keeping(kind: BorrowingCall, num_tokens: int) -> AbstractContextManager[None]:
        """While a program is traced, which overwrites no more than is kept."""
        return kept_free(kept and kept(kind, num_tokens))

    @partial(jit, donate_argnums=1)
    def run_extend(
        weights: tuple[Array, ...], progress: GenerationProgress, call: RowTokens
    ) -> tuple[GenerationProgress, Float[Array, "R E"]]:
        model = jax.tree.unflatten(structure, weights)
        with keeping("extend", call.tokens.size):
            return extend(model, progress, call, mixed=mixed)

    @partial(jit, donate_argnums=(4, 5), static_argnames=("plan",))
    def run_sample(
        weights: tuple[Array, ...],
        hidden: Float[Array, "R E"],
        decodes: Bool[Array, " R"],
        arrivals: Arrivals,
        rules: SamplingRules,
        progress: GenerationProgress,
        *,
        plan: SamplingPlan,
    ) -> tuple[SamplingRules, GenerationProgress, Sampled]:
        model = jax.tree.unflatten(structure, weights)
        return sample(model, hidden, decodes, arrivals, rules, progress, plan=plan)

    @jit
    def run_logits(
        weights: tuple[Array, ...], hidden: Float[Array, "R E"], row: Array
    ) -> Float[Array, "1 V"]:
        model = jax.tree.unflatten(structure, weights)
        return model.logits(hidden[row][None])

    @partial(jit, donate_argnums=1)
    def run_score(
        weights: tuple[Array, ...], kv: KVCache, *operands: Array
    ) -> tuple[PromptScores, KVCache]:
        model = jax.tree.unflatten(structure, weights)
        with keeping("score", operands[0].size):
            return score(model, kv, *operands)

    @partial(jit, donate_argnums=1)
    def run_pool(
        weights: tuple[Array, ...], kv: KVCache, *operands: Array
    ) -> tuple[PooledStates, KVCache]:
        model = jax.tree.unflatten(structure, weights)
        with keeping("pool", operands[0].size):
            return pool(model, kv, *operands)

    @partial(jit, donate_argnums=2, static_argnames=("plan",))
    def run_decode(
        weights: tuple[Array, ...],
        rules: SamplingRules,
        progress: GenerationProgress,
        pages: RowPages,
        steps: Int32[Array, " B"],
        prefixes: SharedPrefixes | None = None,
        *,
        plan: SamplingPlan,
    ) -> tuple[GenerationProgress, Sampled]:
        model = jax.tree.unflatten(structure, weights)
        operands = rules, progress, pages, steps, prefixes
        static: dict[str, Any] = {"plan": plan, "num_steps": steps_per_launch}
        with keeping("decode", steps.size):
            return decode_rows(model, *operands, **static)

    def run_beams(
        weights: tuple[Array, ...],
        kv: KVCache,
        rules: tuple[Packed[BeamRules], ...],
        runs: tuple[Packed[BeamRun], ...],
        pages: BeamPages,
    ) -> tuple[KVCache, tuple[Packed[BeamRun], ...], Packed[BeamStep]]:
        model = jax.tree.unflatten(structure, weights)
        with keeping("beams", sum(run.shapes.tokens.size for run in runs)):
            return beam_steps(model, kv, rules, runs, pages)

    def run_judged(
        weights: tuple[Array, ...],
        kv: KVCache,
        rules: Packed[BeamRules],
        run: Packed[BeamRun],
        pages: BeamPages,
        judgement: Judgement,
    ) -> tuple[KVCache, Packed[BeamRun], Packed[BeamStep]]:
        model = jax.tree.unflatten(structure, weights)
        with keeping("beams", run.shapes.tokens.size):
            return judged_step(model, kv, rules, run, pages, judgement)

    return ProgramFunctions(
        run_extend,
        run_sample,
        run_logits,
        run_score,
        run_pool,
        run_decode,
        run_beams,
        run_judged,
    )
