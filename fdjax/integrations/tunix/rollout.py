"""`FdjaxRollout`: fdjax's engine makes Tunix's samples and their log-probabilities."""

import contextlib
import threading
from collections.abc import Generator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import SingleDeviceSharding
from tunix.rl.rollout.base_rollout import (  # pyright: ignore[reportMissingImports]  (installed where this is used)
    BaseRollout,
    RolloutConfig,
    RolloutOutput,
)

from fdjax.engine.engine import Engine
from fdjax.engine.runs import Runs
from fdjax.errors import ConfigError, RequestError, Unsupported
from fdjax.generate.params import SamplingParams
from fdjax.integrations.tunix.outputs import run
from fdjax.integrations.tunix.prompts import Prompts
from fdjax.integrations.tunix.sampling import check_config, sampling_params
from fdjax.integrations.tunix.settings import budgeted, settings_for
from fdjax.integrations.tunix.weights import WeightMap, check_plain, variables_of
from fdjax.serve.loading import make_engine

__all__ = ["FdjaxRollout"]

_SCORE = SamplingParams(
    temperature=0.0, max_tokens=1, ignore_eos=True, prompt_logprobs=0
)


class FdjaxRollout(BaseRollout):  # pyright: ignore[reportUntypedBaseClass]  (as above)
    """A `BaseRollout` on fdjax's engine; `functools.partial` gives the last options.

    The engine has weights of its own, in its own layout. `update_params` makes them
    anew from the trainer's, on the device, in the memory of those before. Several
    threads may call; one is served at a time.

    Args:
        rollout_actor: the model, of Tunix's classes Llama3, Qwen2 or Qwen3.
        tokenizer: Tunix's adapter of one.
        mesh: has the one device that serves.
        rollout_config: `kv_cache_size` is the longest sequence, in tokens;
            `data_type`, if any, that of weights and keys.
        max_num_seqs: sequences that are continued together; 16 on a CPU and 256 on a
            GPU by default.
        max_num_batched_tokens: of one call with prompts.
        memory_fraction: of the device's memory that weights, keys and temporaries of
            the rollout may have together; they take no more than is of use.
        page_size: tokens of a page of keys.
        steps_per_launch: decode steps of one call. The host works between calls, and
            nobody watches tokens come. More of them cost what a sequence wastes that
            ends by a token in the middle: the rest of that call and the next one, which
            has begun by then; only after these does its row take the next prompt. 1:
            nearly nothing is wasted, and small models wait for the host.
        seed: of the draws where `rollout_config.seed` is `None`.

    Raises:
        Unsupported: the actor or the configuration wants what fdjax has not.
        MemoryBudgetError: the fraction is too small; nothing has been allocated.
    """

    def __init__(
        self,
        *,
        rollout_actor: nnx.Module,
        tokenizer: Any,
        mesh: jax.sharding.Mesh,
        rollout_config: RolloutConfig,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        memory_fraction: float = 0.4,
        page_size: int = 16,
        steps_per_launch: int = 16,
        seed: int = 0,
    ) -> None:
        if mesh.devices.size != 1:
            raise Unsupported(
                f"the rollout's mesh has {mesh.devices.size} devices; fdjax serves "
                "from one: give Role.ROLLOUT a mesh of one"
            )
        check_config(rollout_config)
        check_plain(variables_of(nnx.state(rollout_actor)))
        settings = settings_for(
            rollout_actor,
            rollout_config,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            memory_fraction=memory_fraction,
            page_size=page_size,
            steps_per_launch=steps_per_launch,
        )
        plan = budgeted(settings)
        self._tokenizer = tokenizer
        self._prompts = Prompts(tokenizer, rollout_config.kv_cache_size)
        self._device = mesh.devices.flat[0]
        self._lock = threading.Lock()
        place = SingleDeviceSharding(self._device)
        self._weights = WeightMap(settings.config, settings.dtype, place)
        with self._alone():
            model = self._weights.decoder(nnx.state(rollout_actor, nnx.Param))
            self._engine = make_engine(settings, model, plan, seed=seed)
        self._runs = Runs(self._engine)

    @property
    def engine(self) -> Engine:
        """What makes the tokens; nothing else may step it."""
        return self._engine

    def generate(
        self, prompts: list[str], rollout_config: RolloutConfig, **kwargs: Any
    ) -> RolloutOutput:
        """Continues prompts.

        As of Tunix's own rollout, the token that ends an output is not part of it, and
        tokens of a prompt that are the tokenizer's padding are not seen.

        Args:
            prompts: texts; equal ones share the keys and values of their tokens.
            rollout_config: how to continue them.
            kwargs: there are none.

        Raises:
            Unsupported: it wants what fdjax has not.
            ConfigError: a prompt and its output are longer than `kv_cache_size`.
            RequestError: a number is out of range, or a prompt has no tokens.
            FloatingPointError: logits are not finite.
        """
        if kwargs:
            raise Unsupported(f"generate was given {', '.join(kwargs)}; fdjax has none")
        check_config(rollout_config)
        params = sampling_params(
            rollout_config, eos_id=self.eos_id(), num_prompts=len(prompts)
        )
        tokens = [self._prompts.tokens(prompt) for prompt in prompts]
        seen = [self._prompts.seen(each) for each in tokens]
        self._prompts.check(seen, rollout_config.max_tokens_to_generate)
        with self._alone():
            outputs = run(self._engine, self._runs, seen, params)
        for output, each in zip(outputs, params, strict=True):
            output.strip(each.stop_token_ids)
        made = [np.asarray(output.tokens, np.int32) for output in outputs]
        logprobs = None
        if rollout_config.return_logprobs:
            logprobs = [np.asarray(output.logprobs, np.float32) for output in outputs]
        return RolloutOutput(
            text=[self._tokenizer.decode(each.tolist()) for each in made],
            logits=[],
            tokens=made,
            left_padded_prompt_tokens=self._prompts.padded(
                tokens, rollout_config.max_prompt_length
            ),
            logprobs=logprobs,
        )

    def get_per_token_logps(
        self, prompt_tokens: jax.Array, completion_tokens: jax.Array
    ) -> jax.Array:
        """Log-probabilities of completions by the weights that made them.

        Args:
            prompt_tokens: `[B, P]`, padded on the left.
            completion_tokens: `[B, C]`, padded on the right.

        Returns:
            `[B, C]`, float32; of padding 0.

        Raises:
            ConfigError: a prompt and its completion are longer than `kv_cache_size`.
            RequestError: a prompt has no tokens, or completions are more or fewer.
        """
        prompts, completions = np.asarray(prompt_tokens), np.asarray(completion_tokens)
        as_many = prompts.shape[:1] == completions.shape[:1]
        if not as_many or prompts.ndim != 2 or completions.ndim != 2:
            raise RequestError(
                f"prompt_tokens are {prompts.shape} and completion_tokens "
                f"{completions.shape}; give [B, P] and [B, C]"
            )
        shown = [self._prompts.seen(row) for row in prompts]
        self._prompts.check(shown, 0)
        scored = [
            each + self._prompts.seen(row)
            for each, row in zip(shown, completions, strict=True)
        ]
        self._prompts.check(scored, 0)
        with self._alone():
            outputs = run(self._engine, self._runs, scored, [_SCORE] * len(scored))
        logps = np.zeros(completions.shape, np.float32)
        for row, output in enumerate(outputs):
            # The first token of all has no log-probability.
            of_completion = output.prompt_logprobs[len(shown[row]) - 1 :]
            logps[row, completions[row] != self.pad_id()] = of_completion
        return jnp.asarray(logps)

    def update_params(
        self, params: Any, filter_types: tuple[Any, ...] | None = None
    ) -> None:
        """Takes other weights; from device to device, and without compiling.

        Keys and values that the old ones have made are not used any more.

        Args:
            params: `nnx.State` with all parameters of the actor.
            filter_types: what the trainer took them by; all are needed anyway.

        Raises:
            ConfigError: they are not those of the actor, are integers, or deleted.
            Unsupported: they are adapters, quantised, or in the host's memory.
        """
        del filter_types
        with self._alone():
            if self._engine.has_work:
                raise ConfigError("weights change between calls, and one has not ended")
            self._engine.update_weights(self._weights.decoder(params))

    def pad_id(self) -> int:
        """The tokenizer's padding."""
        return self._tokenizer.pad_id()

    def eos_id(self) -> int:
        """The tokenizer's end of a sequence."""
        return self._tokenizer.eos_id()

    def model(self) -> None:
        """None in Tunix's form: a learner that found its own here would never sync."""
        return

    @contextlib.contextmanager
    def _alone(self) -> Generator[None]:
        """One thread at a time, and what has no place yet goes to the rollout's."""
        with self._lock, jax.default_device(self._device):
            yield
