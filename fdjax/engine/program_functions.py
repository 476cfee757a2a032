"""The functions that an engine's programs are made of, jitted over flat weights."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import jax

from fdjax.engine.borrowing import BorrowingCall
from fdjax.engine.invariance import as_config_says
from fdjax.generate.beam_loop import beam_steps, judged_step
from fdjax.generate.beam_run import BeamRun
from fdjax.generate.packed import Packed
from fdjax.generate.pooled_states import pool_tokens
from fdjax.generate.prompt_scores import score_tokens
from fdjax.generate.rows import RowTokens, decode_rows, extend_rows, sample_rows
from fdjax.kernels.paged import KVCache
from fdjax.models.config import ModelConfig
from fdjax.models.decoder import Decoder
from fdjax.models.program import kept_free
from fdjax.notation import Array, Float

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

    def over(
        function: Callable[..., Any],
        call: BorrowingCall | None = None,
        tokens: Callable[..., int] | None = None,
        **always: Any,
    ) -> Callable[..., Any]:
        """A function of flat weights, and of the other operands.

        Args:
            function: of the model and these.
            call: what it is, if it borrows of the KV array.
            tokens: of these operands, how many the call has.
            always: its other arguments, which stay the same.
        """
        as_said = as_config_says(config, function)

        @wraps(function)
        def run(weights: tuple[Array, ...], *operands: Any, **static: Any) -> Any:
            model = jax.tree.unflatten(structure, weights)
            free = None
            if kept is not None and call is not None and tokens is not None:
                free = kept(call, tokens(*operands))
            with kept_free(free):
                return as_said(model, *operands, **always, **static)

        return run

    jit = partial(jax.jit, compiler_options=options)
    planned = partial(jit, static_argnames=("plan",))
    extend = over(extend_rows, "extend", _of_call, mixed=mixed)
    decode = over(decode_rows, "decode", _of_rows, num_steps=steps_per_launch)
    return ProgramFunctions(
        extend=jit(extend, donate_argnums=1),
        sample=planned(over(sample_rows), donate_argnums=(4, 5)),
        logits=jit(over(row_logits)),
        score=jit(over(score_tokens, "score", _of_prompts), donate_argnums=1),
        pool=jit(over(pool_tokens, "pool", _of_prompts), donate_argnums=1),
        decode=planned(decode, donate_argnums=2),
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
