"""The compiled programs of one model, over its flat weights."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import jax

from fdjax.errors import ConfigError
from fdjax.generate import rows
from fdjax.generate.beam_loop import (
    BeamPages,
    BeamRun,
    BeamStep,
    beam_step,
    begin_beams,
)
from fdjax.generate.beam_state import BeamRules
from fdjax.generate.loop import GenerationProgress
from fdjax.generate.plan import SamplingPlan
from fdjax.generate.prompt_scores import PromptScores, score_tokens
from fdjax.generate.sampling import Sampled
from fdjax.generate.sampling_state import SamplingRules
from fdjax.generate.steps import extend
from fdjax.kernels import op
from fdjax.kernels.paged import KVCache
from fdjax.models.config import ModelConfig
from fdjax.models.decoder import Decoder
from fdjax.notation import Array, Float, Int32


class Programs:
    """Prefill, decoding, and what goes on between them, jitted.

    `prefill` donates the KV array and the others all of the progress, so that both are
    updated in place. Weights travel as a flat tuple: flattening 200 arrays of a module
    costs 0.7 ms a call on the host, a tuple 0.06 ms.

    Args:
        model: the decoder, loaded.
        steps_per_launch: decode steps of one call.
    """

    def __init__(self, model: Decoder, *, steps_per_launch: int) -> None:
        self.steps_per_launch = steps_per_launch
        decode_rows = _as_config_says(model.config, rows.decode_rows)
        seat = _as_config_says(model.config, rows.seat)
        prefill = _as_config_says(model.config, extend)
        score = _as_config_says(model.config, score_tokens)
        leaves, structure = jax.tree.flatten(model)
        self._structure = structure
        self._weights = tuple(leaves)

        @partial(jax.jit, donate_argnums=1)
        def run_prefill(
            weights: tuple[Array, ...],
            kv: KVCache,
            tokens: Int32[Array, " T"],
            lengths: Int32[Array, " A"],
            page_table: Int32[Array, "A W"],
            starts: Int32[Array, " A"],
        ) -> tuple[Float[Array, "A V"], KVCache]:
            model = jax.tree.unflatten(structure, weights)
            return prefill(model, kv, tokens, lengths, page_table, starts)

        @partial(jax.jit, donate_argnums=1)
        def run_score(
            weights: tuple[Array, ...], kv: KVCache, *operands: Array
        ) -> tuple[PromptScores, KVCache]:
            model = jax.tree.unflatten(structure, weights)
            return score(model, kv, *operands)

        @partial(jax.jit, donate_argnums=2, static_argnames=("plan",))
        def run_decode(
            weights: tuple[Array, ...],
            rules: SamplingRules,
            progress: GenerationProgress,
            page_table: Int32[Array, "B W"],
            steps: Int32[Array, " B"],
            *,
            plan: SamplingPlan,
        ) -> tuple[GenerationProgress, Sampled]:
            model = jax.tree.unflatten(structure, weights)
            return decode_rows(
                model,
                rules,
                progress,
                page_table,
                steps,
                plan=plan,
                num_steps=steps_per_launch,
            )

        @partial(jax.jit, donate_argnums=(1, 3))
        def run_beams(
            weights: tuple[Array, ...],
            kv: KVCache,
            rules: BeamRules,
            run: BeamRun,
            pages: BeamPages,
        ) -> tuple[KVCache, BeamRun, BeamStep]:
            model = jax.tree.unflatten(structure, weights)
            return beam_step(model, kv, rules, run, pages)

        self._beams = run_beams
        self.begin_beams = jax.jit(begin_beams, donate_argnums=3)
        self._prefill = run_prefill
        self._score = run_score
        self._decode = run_decode
        self.seat = jax.jit(seat, donate_argnums=5, static_argnames=("plan",))
        self.exchange = jax.jit(rows.exchange, donate_argnums=1)
        self.allow = jax.jit(rows.allow, donate_argnums=0)

    def prefill(
        self,
        kv: KVCache,
        tokens: Int32[Array, " T"],
        lengths: Int32[Array, " A"],
        page_table: Int32[Array, "A W"],
        starts: Int32[Array, " A"],
    ) -> tuple[Float[Array, "A V"], KVCache]:
        """See `fdjax.generate.steps.extend`; `kv` is donated."""
        return self._prefill(self._weights, kv, tokens, lengths, page_table, starts)

    def score(self, kv: KVCache, *operands: Array) -> tuple[PromptScores, KVCache]:
        """See `fdjax.generate.prompt_scores.score_tokens`; `kv` is donated."""
        return self._score(self._weights, kv, *operands)

    def decode(
        self,
        rules: SamplingRules,
        progress: GenerationProgress,
        page_table: Int32[Array, "B W"],
        steps: Int32[Array, " B"],
        *,
        plan: SamplingPlan,
    ) -> tuple[GenerationProgress, Sampled]:
        """`steps_per_launch` steps: see `decode_rows`; `progress` is donated."""
        return self._decode(
            self._weights, rules, progress, page_table, steps, plan=plan
        )

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
        # An array that is put somewhere is no more what jit has seen, if it was there.
        self._weights = tuple(
            new if new.sharding == old.sharding else jax.device_put(new, old.sharding)
            for (_, new), old in zip(found, self._weights, strict=True)
        )

    def beam_step(
        self, kv: KVCache, rules: BeamRules, run: BeamRun, pages: BeamPages
    ) -> tuple[KVCache, BeamRun, BeamStep]:
        """See `fdjax.generate.beam_loop.beam_step`; `kv` and `run` are donated."""
        return self._beams(self._weights, kv, rules, run, pages)

    def lower_decode(self, *operands: Any, plan: SamplingPlan) -> jax.stages.Lowered:
        """The program of `decode`, of arrays or their shapes, to look into."""
        return self._decode.lower(self._weights, *operands, plan=plan)

    def lower_prefill(self, *operands: Any) -> jax.stages.Lowered:
        """The program of `prefill`, of arrays or their shapes, to look into."""
        return self._prefill.lower(self._weights, *operands)


def _as_config_says[**P, R](
    config: ModelConfig, function: Callable[P, R]
) -> Callable[P, R]:
    """A function to trace where only batch-invariant implementations serve, or itself.

    What jit has compiled of a function itself it finds again for another model.
    """
    if not config.batch_invariant:
        return function

    @wraps(function)
    def restricted(*args: P.args, **kwargs: P.kwargs) -> R:
        with op.batch_invariant():
            return function(*args, **kwargs)

    return restricted
