"""A model on the device, by its settings: the weights alone, or all that serves it."""

import pathlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fdjax.engine import buckets
from fdjax.engine.buckets import Buckets
from fdjax.engine.engine import Engine
from fdjax.engine.invariance import check_batch_invariant
from fdjax.engine.limits import QueueLimits
from fdjax.engine.widths import widths_by_rows
from fdjax.kernels.decode_attention import table
from fdjax.memory.plan import MemoryPlan
from fdjax.models.decoder import Decoder
from fdjax.models.random_init import random_weights as make_random_weights
from fdjax.models.weights import Progress, load
from fdjax.serve.grammars import Grammars
from fdjax.serve.setup import Settings, kind_of_platform
from fdjax.serve.tokenizer import Tokenizer, load_tokenizer
from fdjax.serve.waking import Spent, woken

# On an H200 a loop of 8 steps of 256 small calls took 2.79 ms a step, one step a call,
# launched ahead, 2.69. A CPU launches with the cores that compute: fewer, longer calls.
STEPS_PER_LAUNCH = {"cpu": 8, "gpu": 1}
# Clients of a slow model get tokens one by one, and none waits 50 ms for several.
MAX_LAUNCH_S = 0.04
# The launch config of attention on a GPU follows from the width of the page table; on a
# CPU only the definition of attention reads more than a row holds.
WIDTH_RATIO = {"cpu": 16, "gpu": buckets.WIDTH_RATIO}
# Pages. Of fewer than 1,024 tokens a row, attention is a small part of a step, and a
# width more is a program more.
SMALLEST_WIDTH = {"cpu": 1, "gpu": 64}


@dataclass(frozen=True)
class Loaded:
    """A model that is ready, for an `LLM` or for a server.

    Attributes:
        settings: what it was loaded by.
        tokenizer: `None` where the model's folder has none.
        grammars: of structured outputs, in its tokens.
        engine: whoever steps it is alone.
        reload: loads its weights once more.
        spent: seconds, until it was ready.
    """

    settings: Settings
    tokenizer: Tokenizer | None
    grammars: Grammars
    engine: Engine
    reload: Callable[[], Decoder]
    spent: Spent

    @property
    def folder(self) -> pathlib.Path:
        """Of the model's files."""
        return self.settings.folder

    @property
    def vocab_size(self) -> int:
        """Tokens of the model."""
        return self.settings.config.embedding.vocab_size

    @property
    def max_model_len(self) -> int:
        """Longest sequence, in tokens."""
        return self.engine.plan.max_model_len


def load_model(
    settings: Settings,
    *,
    seed: int = 0,
    random_weights: bool = False,
    prefix_caching: bool = True,
    limits: QueueLimits | None = None,
    on_progress: Progress | None = None,
    on_programs: Callable[[int, int], None] | None = None,
) -> Loaded:
    """Plans the memory, then loads the weights and allocates the KV array.

    Args:
        settings: which model, and how large everything is.
        seed: of draws of requests that bring no seed, and of random weights.
        random_weights: make the weights up, and read no file of theirs.
        prefix_caching: keys and values of earlier requests are used again.
        limits: of the queue.
        on_progress: see `load_decoder`.
        on_programs: all programs are compiled, too, those that can be while weights are
            on their way; called with programs done, and programs in all.

    Raises:
        ConfigError: `batch_invariant` is on where an operation cannot be.
        MemoryBudgetError: the model does not fit; nothing has been allocated.
        CheckpointError: the files do not hold the weights.
    """
    config = settings.config
    tokenizer = load_tokenizer(settings.folder)
    grammars = Grammars(
        tokenizer,
        vocab_size=config.embedding.vocab_size,
        eos_token_ids=config.eos_token_ids,
    )
    if config.batch_invariant:
        check_batch_invariant(config, settings.widest_layout)
    plan = settings.memory_plan()
    reload = partial(load_decoder, settings, random_weights=random_weights, seed=seed)
    make = partial(
        make_engine,
        settings,
        plan=plan,
        max_launch_s=MAX_LAUNCH_S,
        seed=seed,
        prefix_caching=prefix_caching,
        limits=limits,
    )
    if on_programs is None:
        begin_s = time.monotonic()
        model = reload(on_progress=on_progress)
        spent = Spent(weights_s=time.monotonic() - begin_s)
        engine = make(model)
    else:
        declared, told = Decoder(config, settings.dtype), (on_progress, on_programs)
        engine, spent = woken(make, declared, reload, *told)
    return Loaded(settings, tokenizer, grammars, engine, reload, spent)


def make_engine(
    settings: Settings, model: Decoder, plan: MemoryPlan, **options: Any
) -> Engine:
    """An engine with the shapes and the pace that suit the platform.

    Args:
        settings: how large everything is.
        model: loaded.
        plan: of the memory, by these settings.
        options: others of `Engine`.
    """
    steps = settings.steps_per_launch
    if steps is None:
        steps = STEPS_PER_LAUNCH[kind_of_platform()]
    return Engine(
        model,
        plan,
        buckets_of(settings, plan),
        steps_per_launch=steps,
        policy=settings.policy,
        max_beam_width=settings.max_beam_width,
        max_num_beams=settings.max_num_beams,
        **options,
    )


def load_decoder(
    settings: Settings,
    *,
    random_weights: bool = False,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> Decoder:
    """The weights alone, on the device.

    Args:
        settings: which model, and the type of its weights.
        random_weights: make them up, and read no file of theirs.
        seed: of random weights.
        on_progress: called with bytes done, bytes in all, and a parameter's name.

    Raises:
        CheckpointError: the files do not hold the weights.
    """
    config, dtype = settings.config, settings.dtype
    if random_weights:
        return make_random_weights(config, dtype=dtype, seed=seed)
    return load(settings.folder, dtype=dtype, on_progress=on_progress, config=config)


def buckets_of(settings: Settings, plan: MemoryPlan) -> Buckets:
    """The shapes of an engine's programs that suit the platform.

    Args:
        settings: how large everything is.
        plan: of the memory, by these settings.
    """
    gathering, kind = plan.page_workspace_bytes > 0, kind_of_platform()
    long = None
    if kind == "gpu" and not gathering:  # by the rule of the CUDA kernel
        long = table.PART.find().long_from
    made = Buckets.of(
        max_num_seqs=settings.max_num_seqs,
        max_model_len=settings.max_model_len,
        page_size=settings.page_size,
        max_batched_tokens=settings.max_batched_tokens,
        smallest_width=SMALLEST_WIDTH[kind],
        width_ratio=buckets.WIDTH_RATIO if gathering else WIDTH_RATIO[kind],
        alike_from=long and -(-long // settings.page_size),
        fine=kind == "gpu",
    )
    if gathering or kind != "gpu":
        return made
    return replace(made, widths_of=widths_by_rows(settings.config, plan.layout, made))
