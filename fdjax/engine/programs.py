"""The compiled programs of one model, over its flat weights."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import jax
import numpy as np

from fdjax import device
from fdjax.engine.ahead import Ahead
from fdjax.engine.beam_programs import BeamFunction, BeamPrograms
from fdjax.engine.borrowing import BorrowingCall
from fdjax.engine.in_place import in_place_of
from fdjax.engine.invariance import as_config_says
from fdjax.engine.program_functions import functions_of
from fdjax.errors import ConfigError
from fdjax.generate import rows
from fdjax.generate.beam_loop import (
    begin_beams,
    begin_judged,
    end_judged,
)
from fdjax.generate.plan import SamplingPlan
from fdjax.generate.pooled_states import PooledStates
from fdjax.generate.progress import GenerationProgress
from fdjax.generate.prompt_scores import PromptScores
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

type Kept = Callable[[BorrowingCall, int], int]
"""Bytes at the KV array's end that are free while a call of so many tokens runs."""


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
            tokens runs, of which a program that is traced overwrites no more; `None`:
            nobody says.
    """

    def __init__(
        self,
        model: Decoder,
        *,
        steps_per_launch: int,
        mixed: bool = True,
        tunes_gemms: bool = True,
        kept: Kept | None = None,
    ) -> None:
        self.steps_per_launch = steps_per_launch
        self.tunes_gemms = tunes_gemms
        leaves, structure = jax.tree.flatten(model)
        self._structure = structure
        self._weights = tuple(leaves)
        self._config, self._kept = model.config, kept

        untimed = device.platform() == "gpu" and not tunes_gemms
        options = _UNTIMED if untimed else {}

        functions = functions_of(
            self.over, steps_per_launch=steps_per_launch, mixed=mixed, options=options
        )
        self.beams = BeamPrograms(
            {
                "begin": BeamFunction(begin_beams),
                "begin_judged": BeamFunction(begin_judged),
                "end_judged": BeamFunction(end_judged),
                "step": BeamFunction(functions.beams, donated=(1, 3), num_fixed=2),
                "judged_step": BeamFunction(
                    functions.judged, donated=(1, 3), num_fixed=2
                ),
            },
            options,
        )
        self.ahead = Ahead()
        self._of_weights = partial(self.ahead.of, stays=1)
        self._extend = functions.extend
        self._sample = functions.sample
        self._logits = functions.logits
        self._score = functions.score
        self._pool = functions.pool
        self._decode = functions.decode
        jit = partial(jax.jit, compiler_options=options)
        by_itself = partial(partial, self._by_itself)
        self.exchange = by_itself(jit(rows.exchange, donate_argnums=(0, 1)))
        self.allow = by_itself(jit(rows.allow, donate_argnums=0))
        self.move = by_itself(jax.jit(page_move, donate_argnums=0))
        self.place = by_itself(jit(place, donate_argnums=0))

    def over(
        self,
        function: Callable[..., Any],
        call: BorrowingCall | None = None,
        tokens: Callable[..., int] | None = None,
        **always: Any,
    ) -> Callable[..., Any]:
        """A function of flat weights, and of the other operands, to be jitted.

        Args:
            function: of the model and these.
            call: what it is, if it borrows of the KV array.
            tokens: of these operands, how many the call has.
            always: its other arguments, which stay the same.
        """
        as_said = as_config_says(self._config, function)
        structure, kept = self._structure, self._kept

        @wraps(function)
        def run(weights: tuple[Array, ...], *operands: Any, **static: Any) -> Any:
            model = jax.tree.unflatten(structure, weights)
            free = None
            if kept is not None and call is not None and tokens is not None:
                free = kept(call, tokens(*operands))
            with kept_free(free):
                return as_said(model, *operands, **always, **static)

        return run

    def _by_itself(self, function: Any, *operands: Any) -> Any:
        """Runs a function that needs no weights."""
        return self.ahead.of(function)(*operands)

    def extend(
        self, progress: GenerationProgress, call: RowTokens
    ) -> tuple[GenerationProgress, Float[Array, "R E"]]:
        """See `fdjax.generate.rows.extend_rows`; `progress` is donated.

        What some plans alone have does not come in: one program serves all of them.
        """
        bare = _bare(progress)
        after, hidden = self._of_weights(self._extend)(self._weights, bare, call)
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
        return self._of_weights(self._sample)(self._weights, *operands, plan=plan)

    def logits(self, hidden: Float[Array, "R E"], row: int) -> Float[Array, "1 V"]:
        """The logits of one row of what `extend` returns."""
        return self._logits(self._weights, hidden, jax.device_put(np.int32(row)))

    def score(self, kv: KVCache, *operands: Array) -> tuple[PromptScores, KVCache]:
        """See `fdjax.generate.prompt_scores.score_tokens`; `kv` is donated."""
        return self._of_weights(self._score)(self._weights, kv, *operands)

    def pool(self, kv: KVCache, *operands: Array) -> tuple[PooledStates, KVCache]:
        """See `fdjax.generate.pooled_states.pool_tokens`; `kv` is donated."""
        return self._of_weights(self._pool)(self._weights, kv, *operands)

    def decode(
        self,
        rules: SamplingRules,
        progress: GenerationProgress,
        pages: RowPages,
        steps: Int32[Array, " B"],
        prefixes: SharedPrefixes | None = None,
        *,
        plan: SamplingPlan,
        all_steps: bool = False,
    ) -> tuple[GenerationProgress, Sampled]:
        """`steps_per_launch` steps: see `decode_rows`; `progress` is donated."""
        operands = rules, progress, pages, steps, prefixes
        decode = self._of_weights(self._decode)
        return decode(self._weights, *operands, plan=plan, all_steps=all_steps)

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
