"""The compiled programs of one model, over its flat weights."""

from functools import partial

import jax

from fdjax.generate import loop
from fdjax.generate.loop import GenerationProgress, GenerationRules
from fdjax.generate.plan import SamplingPlan
from fdjax.generate.sampling import Sampled
from fdjax.models.decoder import Decoder
from fdjax.notation import Array, Int32


class Programs:
    """`admit` and `decode_steps`, jitted with the batch's progress donated.

    Weights travel as a flat tuple: flattening 200 arrays of a module costs 0.7 ms a
    call on the host, a tuple 0.06 ms.

    Args:
        model: the decoder, loaded.
        steps_per_launch: decode steps of one call.
    """

    def __init__(self, model: Decoder, *, steps_per_launch: int) -> None:
        self.steps_per_launch = steps_per_launch
        leaves, structure = jax.tree.flatten(model)
        self._weights = tuple(leaves)

        @partial(jax.jit, donate_argnums=2, static_argnames=("plan",))
        def admit(
            weights: tuple[Array, ...],
            rules: GenerationRules,
            progress: GenerationProgress,
            rows: Int32[Array, " A"],
            tokens: Int32[Array, "A S"],
            lengths: Int32[Array, " A"],
            *,
            plan: SamplingPlan,
        ) -> tuple[GenerationProgress, Sampled]:
            model = jax.tree.unflatten(structure, weights)
            return loop.admit(model, rules, progress, rows, tokens, lengths, plan=plan)

        @partial(jax.jit, donate_argnums=2, static_argnames=("plan",))
        def decode(
            weights: tuple[Array, ...],
            rules: GenerationRules,
            progress: GenerationProgress,
            *,
            plan: SamplingPlan,
        ) -> tuple[GenerationProgress, Sampled]:
            model = jax.tree.unflatten(structure, weights)
            return loop.decode_steps(
                model, rules, progress, plan=plan, num_steps=steps_per_launch
            )

        self._admit = admit
        self._decode = decode

    def admit(
        self,
        rules: GenerationRules,
        progress: GenerationProgress,
        rows: Int32[Array, " A"],
        tokens: Int32[Array, "A S"],
        lengths: Int32[Array, " A"],
        *,
        plan: SamplingPlan,
    ) -> tuple[GenerationProgress, Sampled]:
        """See `fdjax.generate.loop.admit`; `progress` is donated."""
        return self._admit(
            self._weights, rules, progress, rows, tokens, lengths, plan=plan
        )

    def decode(
        self,
        rules: GenerationRules,
        progress: GenerationProgress,
        *,
        plan: SamplingPlan,
    ) -> tuple[GenerationProgress, Sampled]:
        """`steps_per_launch` decode steps; `progress` is donated."""
        return self._decode(self._weights, rules, progress, plan=plan)

    def lower_decode(
        self,
        rules: GenerationRules,
        progress: GenerationProgress,
        *,
        plan: SamplingPlan,
    ) -> jax.stages.Lowered:
        """The decode program before compilation, to look into."""
        return self._decode.lower(self._weights, rules, progress, plan=plan)
