"""Calls that overwrite the KV array's last pages, as those of a GPU do, on a CPU."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fdjax.engine.borrowing import BorrowingCall
from fdjax.engine.engine import Engine
from fdjax.engine.programs import Programs
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.progress import GenerationProgress
from fdjax.generate.row_pages import RowPages
from fdjax.generate.rows import RowTokens
from fdjax.generate.sampling_state import SamplingRules
from fdjax.kernels.paged import KVCache, SharedPrefixes


class TokensBorrow:
    """A page for every so many tokens of a call, whatever it is.

    Args:
        tokens_of_page: see above.
    """

    def __init__(self, tokens_of_page: int) -> None:
        self._tokens_of_page = tokens_of_page

    def pages(self, call: BorrowingCall, num_tokens: int, /) -> int:
        del call
        return -(-num_tokens // self._tokens_of_page)


class Poisoned:
    """Has an engine's calls write NaN over what they borrow, before they begin.

    Whatever somebody still holds there is lost: a token that depends on it differs, or
    its request ends with an error.

    Args:
        engine: that was made with `borrowing`.
        borrowing: what its calls borrow.

    Attributes:
        num_calls: that have borrowed a page at least.
    """

    def __init__(self, engine: Engine, borrowing: TokensBorrow) -> None:
        self.num_calls = 0
        self._borrowing = borrowing
        self._pool = engine.scheduler.pool
        programs = engine.executor.programs
        self._wrap_progress(programs)
        self._wrap_beams(engine)
        for name in ("score", "pool"):
            setattr(programs, name, self._of_kv(name, getattr(programs, name)))

    def _wrap_progress(self, programs: Programs) -> None:
        extend, decode = programs.extend, programs.decode

        def run_extend(progress: GenerationProgress, call: RowTokens) -> Any:
            return extend(self._of(progress, "extend", len(call.tokens)), call)

        def run_decode(
            rules: SamplingRules,
            progress: GenerationProgress,
            pages: RowPages,
            steps: jax.Array,
            prefixes: SharedPrefixes | None = None,
            **static: Any,
        ) -> Any:
            progress = self._of(progress, "decode", len(steps))
            return decode(rules, progress, pages, steps, prefixes, **static)

        for name, run in (("extend", run_extend), ("decode", run_decode)):
            setattr(programs, name, run)

    def _wrap_beams(self, engine: Engine) -> None:
        beams, buckets = engine.executor.beams, engine.buckets
        step = beams.step

        def run_step(searches: Sequence[EngineSequence], kv: KVCache) -> Any:
            params = searches[0].request.limited_beams
            rows = buckets.beam_rows(params.num_beam_groups, params.group_width)
            rows *= len(searches)
            return step(searches, self._poisoned(kv, "beams", rows))

        beams.step = run_step

    def _of(
        self, progress: GenerationProgress, call: BorrowingCall, num_tokens: int
    ) -> GenerationProgress:
        kv = self._poisoned(progress.kv, call, num_tokens)
        return dataclasses.replace(progress, kv=kv)

    def _of_kv(
        self, call: BorrowingCall, run: Callable[..., Any]
    ) -> Callable[..., Any]:
        def poisoned(kv: KVCache, tokens: jax.Array, *rest: jax.Array) -> Any:
            return run(self._poisoned(kv, call, len(tokens)), tokens, *rest)

        return poisoned

    def _poisoned(self, kv: KVCache, call: BorrowingCall, num_tokens: int) -> KVCache:
        count = self._borrowing.pages(call, num_tokens)
        assert self._pool.boundary <= self._pool.num_pages - count, (call, num_tokens)
        self.num_calls += count > 0
        return _overwritten(kv, count)


@partial(jax.jit, static_argnums=1, donate_argnums=0)
def _overwritten(kv: KVCache, count: int) -> KVCache:
    pages = jnp.arange(kv.num_pages - count, kv.num_pages)
    return kv.with_array(kv.array.at[pages].set(jnp.nan))
