"""The compiled programs of one model, over its flat weights."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from fdjax import device
from fdjax.engine.ahead import Ahead
from fdjax.engine.beam_programs import BeamFunction, BeamPrograms
from fdjax.engine.borrowing import BorrowingCall
from fdjax.engine.in_place import in_place_of
from fdjax.engine.invariance import as_config_says
from fdjax.errors import ConfigError
from fdjax.generate import rows
from fdjax.generate.beam_loop import (
    beam_steps,
    begin_beams,
    begin_judged,
    end_judged,
    judged_step,
)
from fdjax.generate.beam_run import BeamPages, BeamRun, BeamStep
from fdjax.generate.beam_state import BeamRules
from fdjax.generate.packed import Packed
from fdjax.generate.plan import SamplingPlan
from fdjax.generate.pooled_states import PooledStates, pool_tokens
from fdjax.generate.progress import GenerationProgress
from fdjax.generate.prompt_scores import PromptScores, score_tokens
from fdjax.generate.row_pages import RowPages, place
from fdjax.generate.rows import Arrivals, RowTokens
from fdjax.generate.sampling import Sampled
from fdjax.generate.sampling_state import SamplingRules
from fdjax.kernels.page_move import page_move
from fdjax.kernels.paged import KVCache, SharedPrefixes
from fdjax.models.decoder import Decoder
from fdjax.models.program import kept_free
from fdjax.notation import Array, Bool, Float, Int32

# Where no GEMM is XLA's own, what it times are two ways of adding up a few numbers, and
# to compile both takes half of all compiling (1.3 to 0.7 s of a call with prompts).
_UNTIMED = {"xla_gpu_autotune_level": 0}


class Programs:
    """Prompts, decoding, and what goes on between them, jitted.

    All donate the progress of rows, or the KV array in it, so that it is updated in
    place. Weights travel as a flat tuple: flattening 200 arrays of a module
    costs 0.7 ms a call on the host, a tuple 0.06 ms.

    Args:
        model: the decoder, loaded; or not yet: programs are compiled all the same, and
            run once `update` has brought weights.
        steps_per_launch: decode steps of one call.
        mixed: calls with prompts may have rows that decode.
        tunes_gemms: calls have GEMMs of XLA, which it times: see `timed_gemms`.
        kept: bytes at the end of the KV array that are free while a call of so many
            tokens runs; `None`: nobody says.
    """

    def __init__(
        self,
        model: Decoder,
        *,
        steps_per_launch: int,
        mixed: bool = True,
        tunes_gemms: bool = True,
        kept: Callable[[BorrowingCall, int], int] | None = None,
    ) -> None:
        self._kept = kept
        self.steps_per_launch = steps_per_launch
        self.tunes_gemms = tunes_gemms
        decode_rows = as_config_says(model.config, rows.decode_rows)
        extend = as_config_says(model.config, rows.extend_rows)
        sample = as_config_says(model.config, rows.sample_rows)
        score = as_config_says(model.config, score_tokens)
        pool = as_config_says(model.config, pool_tokens)
        leaves, structure = jax.tree.flatten(model)
        self._structure = structure
        self._weights = tuple(leaves)

        untimed = device.platform() == "gpu" and not tunes_gemms
        options = _UNTIMED if untimed else {}

        jit = partial(jax.jit, compiler_options=options)

        @partial(jit, donate_argnums=1)
        def run_extend(
            weights: tuple[Array, ...], progress: GenerationProgress, call: RowTokens
        ) -> tuple[GenerationProgress, Float[Array, "R E"]]:
            model = jax.tree.unflatten(structure, weights)
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
            return score(model, kv, *operands)

        @partial(jit, donate_argnums=1)
        def run_pool(
            weights: tuple[Array, ...], kv: KVCache, *operands: Array
        ) -> tuple[PooledStates, KVCache]:
            model = jax.tree.unflatten(structure, weights)
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
            return decode_rows(
                model,
                rules,
                progress,
                pages,
                steps,
                prefixes,
                plan=plan,
                num_steps=steps_per_launch,
            )

        def run_beams(
            weights: tuple[Array, ...],
            kv: KVCache,
            rules: tuple[Packed[BeamRules], ...],
            runs: tuple[Packed[BeamRun], ...],
            pages: BeamPages,
        ) -> tuple[KVCache, tuple[Packed[BeamRun], ...], Packed[BeamStep]]:
            model = jax.tree.unflatten(structure, weights)
            return beam_steps(model, kv, rules, runs, pages)

        def run_judged(
            weights: tuple[Array, ...], kv: KVCache, *operands: Any
        ) -> tuple[KVCache, Packed[BeamRun], Packed[BeamStep]]:
            model = jax.tree.unflatten(structure, weights)
            return judged_step(model, kv, *operands)

        self.beams = BeamPrograms(
            {
                "begin": BeamFunction(begin_beams),
                "begin_judged": BeamFunction(begin_judged),
                "end_judged": BeamFunction(end_judged),
                "step": BeamFunction(run_beams, donated=(1, 3), num_fixed=2),
                "judged_step": BeamFunction(run_judged, donated=(1, 3), num_fixed=2),
            },
            options,
        )
        self.ahead = Ahead()
        self._extend = run_extend
        self._sample = run_sample
        self._logits = run_logits
        self._score = run_score
        self._pool = run_pool
        self._decode = run_decode
        by_itself = partial(partial, self.ahead.run)
        self.exchange = by_itself(jit(rows.exchange, donate_argnums=(0, 1)), ())
        self.allow = by_itself(jit(rows.allow, donate_argnums=0), ())
        self.move = by_itself(jax.jit(page_move, donate_argnums=0), ())
        self.place = by_itself(jit(place, donate_argnums=0), ())

    def extend(
        self, progress: GenerationProgress, call: RowTokens
    ) -> tuple[GenerationProgress, Float[Array, "R E"]]:
        """See `fdjax.generate.rows.extend_rows`; `progress` is donated.

        What some plans alone have does not come in: one program serves all of them.
        """
        bare = _bare(progress)
        after, hidden = self._run("extend", call.tokens, self._extend, bare, call)
        sampling = replace(
            progress.sampling,
            finished=after.sampling.finished,
            generated=after.sampling.generated,
        )
        return replace(after, sampling=sampling), hidden

    def sample(
        self,
        hidden: Float[Array, "R E"],
        decodes: Bool[Array, " R"],
        arrivals: Arrivals,
        rules: SamplingRules,
        progress: GenerationProgress,
        *,
        plan: SamplingPlan,
    ) -> tuple[SamplingRules, GenerationProgress, Sampled]:
        """See `fdjax.generate.rows.sample_rows`; rules and progress are donated."""
        operands = hidden, decodes, arrivals, rules, progress
        return self.ahead.run(self._sample, (self._weights,), *operands, plan=plan)

    def logits(self, hidden: Float[Array, "R E"], row: int) -> Float[Array, "1 V"]:
        """The logits of one row of what `extend` returns."""
        return self._logits(self._weights, hidden, jax.device_put(np.int32(row)))

    def score(self, kv: KVCache, *operands: Array) -> tuple[PromptScores, KVCache]:
        """See `fdjax.generate.prompt_scores.score_tokens`; `kv` is donated."""
        return self._run("score", operands[0], self._score, kv, *operands)

    def pool(self, kv: KVCache, *operands: Array) -> tuple[PooledStates, KVCache]:
        """See `fdjax.generate.pooled_states.pool_tokens`; `kv` is donated."""
        return self._run("pool", operands[0], self._pool, kv, *operands)

    def decode(
        self,
        rules: SamplingRules,
        progress: GenerationProgress,
        pages: RowPages,
        steps: Int32[Array, " B"],
        prefixes: SharedPrefixes | None = None,
        *,
        plan: SamplingPlan,
    ) -> tuple[GenerationProgress, Sampled]:
        """`steps_per_launch` steps: see `decode_rows`; `progress` is donated."""
        operands = rules, progress, pages, steps, prefixes
        return self._run("decode", steps, self._decode, *operands, plan=plan)

    def _run(
        self,
        kind: BorrowingCall,
        tokens: Array,
        function: Callable[..., Any],
        *operands: Any,
        **static: Any,
    ) -> Any:
        """Runs a program that is traced to overwrite no more than is kept free for it.

        Args:
            kind: of the call.
            tokens: as many as it has.
            function: the program.
            operands: of it, behind the weights.
            static: of it.
        """
        kept = self._kept and self._kept(kind, tokens.shape[0])
        with kept_free(kept):
            return self.ahead.run(function, (self._weights,), *operands, **static)

    @property
    def model(self) -> Decoder:
        """What has the weights."""
        return jax.tree.unflatten(self._structure, self._weights)

    def beside[T](self, arrays: T) -> T:
        """Arrays for programs to donate, where the weights are if these have a place.

        What calls give back has it: arrays without one would be compiled for, too.
        """
        if not self.has_weights or not self._weights[0].committed:
            return arrays
        return jax.device_put(arrays, self._weights[0].sharding)

    def update(self, model: Decoder) -> None:
        """Takes other weights, of the same shapes: nothing is compiled.

        Raises:
            ConfigError: the model is another one, or a weight of it has another shape
                or dtype.
        """
        found, structure = jax.tree_util.tree_flatten_with_path(model)
        if structure != self._structure:
            raise ConfigError(
                "the weights are of a model with another configuration; the programs "
                "are compiled for this one: make an engine for the other"
            )
        for (path, new), old in zip(found, self._weights, strict=True):
            if (new.shape, new.dtype) != (old.shape, old.dtype):
                raise ConfigError(
                    f"weight {jax.tree_util.keystr(path)} is {new.dtype}{new.shape}, "
                    f"and {old.dtype}{old.shape} is what programs are compiled for; "
                    "cast or reshape it"
                )
        self._weights = tuple(
            in_place_of(old, new)
            for (_, new), old in zip(found, self._weights, strict=True)
        )

    @property
    def has_weights(self) -> bool:
        """They are loaded, and not only declared."""
        return isinstance(self._weights[0], jax.Array)

    @property
    def weights(self) -> tuple[Array, ...]:
        """Of the model, as the programs take them."""
        return self._weights

    def lower_decode(self, *operands: Any, plan: SamplingPlan) -> jax.stages.Lowered:
        """The program of `decode`, of arrays or their shapes, to look into."""
        return self._decode.lower(self._weights, *operands, plan=plan)

    def lower_extend(
        self, progress: GenerationProgress, call: RowTokens
    ) -> jax.stages.Lowered:
        """The program of `extend`, of arrays or their shapes, to look into."""
        return self._extend.lower(self._weights, jax.eval_shape(_bare, progress), call)


def _bare(progress: GenerationProgress) -> GenerationProgress:
    """The progress without what only some plans of sampling have."""
    sampling = replace(progress.sampling, output_counts=None, recent=None)
    return replace(progress, sampling=sampling)
