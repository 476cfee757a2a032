"""The functions that an engine's programs are made of, jitted over flat weights."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from fdjax.generate.beam_loop import beam_steps, judged_step
from fdjax.generate.beam_run import BeamRun
from fdjax.generate.packed import Packed
from fdjax.generate.pooled_states import pool_tokens
from fdjax.generate.progress import decode_rows
from fdjax.generate.prompt_scores import score_tokens
from fdjax.generate.rows import RowTokens, extend_rows, sample_rows
from fdjax.kernels.paged import KVCache
from fdjax.models.decoder import Decoder
from fdjax.notation import Array, Float

type Over = Callable[..., Callable[..., Any]]


@dataclass(frozen=True)
class ProgramFunctions:
    """Jitted, but for those of beam searches, which are compiled by shape.

    Each takes the weights first, as a flat tuple.

    Attributes:
        extend: computes tokens of prompts, and of rows that decode beside them.
        sample: the first tokens after prompts, from what `extend` has left.
        logits: of one row.
        score: log-probabilities of the tokens of prompts.
        pool: states of prompts as vectors.
        decode: steps of all rows, each with its token.
        beams: steps of beam searches.
        judged: one step of a search whose candidates the host judges.
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
    over: Over, *, steps_per_launch: int, mixed: bool, options: dict[str, Any]
) -> ProgramFunctions:
    """The functions over one model.

    Args:
        over: makes a function of a model one of flat weights; see `Programs.over`.
        steps_per_launch: decode steps of one call.
        mixed: calls with prompts may have rows that decode.
        options: of the compiler.
    """
    jit = partial(jax.jit, compiler_options=options)
    extend = over(extend_rows, "extend", _of_call, mixed=mixed)
    decode = over(decode_rows, "decode", _of_rows, num_steps=steps_per_launch)
    return ProgramFunctions(
        extend=jit(extend, donate_argnums=1),
        sample=jit(over(sample_rows), static_argnames=("plan",), donate_argnums=(4, 5)),
        logits=jit(over(row_logits)),
        score=jit(over(score_tokens, "score", _of_prompts), donate_argnums=1),
        pool=jit(over(pool_tokens, "pool", _of_prompts), donate_argnums=1),
        decode=jit(decode, static_argnames=("plan", "all_steps"), donate_argnums=2),
        beams=over(beam_steps, "beams", _of_searches),
        judged=over(judged_step, "beams", _of_search),
    )


def row_logits(model: Decoder, hidden: Float[Array, "R E"], row: Array) -> Array:
    """Logits of one row."""
    return model.logits(hidden[row][None])


def _of_call(_: Any, call: RowTokens) -> int:
    return call.tokens.size


def _of_rows(rules: Any, progress: Any, pages: Any, steps: Array, *_: Any) -> int:
    del rules, progress, pages
    return steps.size


def _of_prompts(_: KVCache, tokens: Array, *others: Any) -> int:
    del others
    return tokens.size


def _of_searches(
    kv: KVCache, rules: Any, runs: tuple[Packed[BeamRun], ...], pages: Any
) -> int:
    return sum(_of_search(kv, rules, run, pages) for run in runs)


def _of_search(kv: KVCache, rules: Any, run: Packed[BeamRun], *others: Any) -> int:
    del kv, rules, others
    return run.shapes.tokens.size
