"""Engines that compute the longest prompt of a budget in one call.

Two ways of FlashDecoding++Next's Fig. 19. "separate": layers run one by one, and XLA
has room for their results beside the KV array. "arena": all layers are one call, which
has what it needs at the array's end; keys and values of the outputs lie there later.
And between them "apart": a prompt as long as the separate one's in one call of all
layers, which has what it needs beside the array. Separate results are planned as if
each had memory of its own; XLA shares some of it, and so needs less.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.memory_plans import arena_prompt, longest, separate_prompt
from fdjax.engine.buckets import SMALLEST_PREFILL, Buckets, ladder
from fdjax.engine.engine import Engine
from fdjax.engine.executor import AnyAwaited
from fdjax.engine.sequence import EngineSequence, PromptChunk
from fdjax.engine.workspace import separate_bytes, state_bytes
from fdjax.memory.plan import MemoryPlan
from fdjax.models.decoder import Decoder
from fdjax.models.program import OP as LAYER_PROGRAM
from fdjax.serve.loading import STEPS_PER_LAUNCH
from fdjax.serve.setup import Settings, kind_of_platform

type OneCallWay = Literal["separate", "apart", "arena"]

# Left to outputs, and to what calls of rows that decode need beside the prompt's.
SPARE_PAGES = 8


@dataclass(frozen=True)
class OneCall:
    """A prompt of one call.

    Attributes:
        way: where its activations lie.
        plan: of the memory.
        num_prompt: tokens.
    """

    way: OneCallWay
    plan: MemoryPlan
    num_prompt: int

    def engine(self, model: Decoder) -> Engine:
        """An engine whose calls have a few tokens, or all of the prompt's."""
        layout, length = self.plan.layout, self.plan.max_model_len
        widest = layout.pages_for(length)
        buckets = Buckets(
            rows=(1,),
            prefills=(SMALLEST_PREFILL, self.num_prompt),
            widths=ladder(1, widest, widest),
        )
        steps = STEPS_PER_LAUNCH[kind_of_platform()]
        # Before `running`: nothing is timed, which a GEMM of so many rows has no room
        # for.
        return Engine(
            model, self.plan, buckets, steps_per_launch=steps, prefix_caching=False
        )

    @contextmanager
    def running(self, engine: Engine) -> Generator[None]:
        """Inside a `with` block: prompts go in one call, or an error is raised."""
        extend = engine.executor.extend

        def whole(
            sequences: Sequence[EngineSequence], chunks: Sequence[PromptChunk]
        ) -> list[AnyAwaited]:
            sizes = [chunk.size for chunk in chunks]
            if sizes != [self.num_prompt]:
                raise RuntimeError(
                    f"a call takes {sizes} tokens of a prompt of {self.num_prompt}; "
                    "there is no room for all of it"
                )
            return extend(sequences, chunks)

        alone = self.way == "separate"
        layers = LAYER_PROGRAM.using("reference") if alone else nullcontext()
        engine.executor.extend = whole
        try:
            with layers:
                yield
        finally:
            engine.executor.extend = extend


def one_call(settings: Settings, way: OneCallWay, budget_bytes: int | None) -> OneCall:
    """The longest prompt, but for some pages.

    Args:
        settings: of `settings_of`.
        way: where activations lie.
        budget_bytes: `None`: what the device offers.
    """
    plan = longest(settings, budget_bytes)
    page_size = settings.page_size
    if way == "arena":
        pages = arena_prompt(settings, plan) // page_size - SPARE_PAGES
        return OneCall(way, plan, pages * page_size)
    most = separate_prompt(settings, plan.budget_bytes)
    tokens = most - SPARE_PAGES * page_size
    activations = separate_bytes(
        settings.config, dtype=settings.dtype, num_tokens=tokens
    )
    layout = replace(plan.layout, lent=False).with_pages(most // page_size)
    workspace = activations + state_bytes(settings.config, num_rows=1)
    apart = replace(
        plan,
        layout=layout,
        workspace_bytes=workspace,
        page_workspace_bytes=0,
        max_model_len=most,
        step_pages=0,
        least_step_pages=0,
    )
    return OneCall(way, apart, tokens)
