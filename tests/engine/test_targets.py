"""A target of milliseconds holds for whatever is computed beside what decodes."""

import random
from collections.abc import Callable, Sequence

import pytest

from fdjax.engine.budget import Timed
from fdjax.engine.engine import Engine
from fdjax.engine.executor import AnyAwaited
from fdjax.engine.policy import StepPolicy
from fdjax.engine.sequence import EngineSequence, PromptChunk
from fdjax.generate.any_params import AnyParams
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import SamplingParams
from fdjax.generate.pooling_params import PoolingParams
from tests.support.engines import shallow_model, tiny_engine
from tests.support.matchers import Places

LONG = [int(token) for token in random.Random(0).choices(range(3, 120), k=200)]
DECODES = SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True)
ONE = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)


def engine_of(max_itl_ms: float, *, mixed: bool = True) -> Engine:
    """Calls of up to 256 tokens, one step a launch."""
    return tiny_engine(
        shallow_model(),
        max_model_len=256,
        steps_per_launch=1,
        max_batched_tokens=256,
        prefix_caching=False,
        policy=StepPolicy(mixed=mixed, max_itl_ms=max_itl_ms),
    )


def grammar_request(engine: Engine) -> None:
    """Held every other step: its matcher waits for the token before."""
    size = shallow_model().config.embedding.vocab_size
    grammar = Places([range(3, size)] * 50, size)
    engine.add(engine.request(0, [5, 6, 7], DECODES, grammar))


def search_request(engine: Engine) -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=50, ignore_eos=True)
    engine.add(engine.request(0, [5, 6, 7], params))


def plain_request(engine: Engine) -> None:
    engine.add(engine.request(0, [5, 6, 7], DECODES))


def sizes_of(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, params: AnyParams = ONE
) -> list[int]:
    """Tokens of a long prompt, by call, that comes some steps later."""
    for _ in range(4):
        engine.step()
    sizes: list[int] = []
    extend = engine.executor.extend

    def noted(
        sequences: Sequence[EngineSequence], chunks: Sequence[PromptChunk]
    ) -> list[AnyAwaited]:
        sizes.append(sum(chunk.size for chunk in chunks))
        return extend(sequences, chunks)

    monkeypatch.setattr(engine.executor, "extend", noted)
    sequence = engine.add(engine.request(1, LONG, params))
    while not sequence.ended:
        engine.step()
    assert sum(sizes) == len(LONG)
    return sizes


def learning(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has every call count as waited for, however slow the host is."""
    read = engine.executor.budget.read

    def waited(call: Timed | None, **_: bool) -> None:
        read(call, waited=True)

    monkeypatch.setattr(engine.executor.budget, "read", waited)


def test_what_pooled_prompts_take_is_learnt_too(monkeypatch: pytest.MonkeyPatch):
    """They have calls of their own, beside the one of what decodes."""
    engine = engine_of(1e6)
    learning(engine, monkeypatch)
    plain_request(engine)
    sizes = sizes_of(engine, monkeypatch, PoolingParams(pooling="last"))
    assert max(sizes) > 31, "the smallest call has room for that many"


@pytest.mark.parametrize(
    ("ask", "mixed", "most"),
    [
        (plain_request, True, 31),
        (grammar_request, True, 31),
        (search_request, True, 16),
        (plain_request, False, 16),
        (search_request, False, 16),
    ],
)
def test_whoever_makes_tokens_waits_for_few_tokens_of_prompts(
    ask: Callable[[Engine], None],
    mixed: bool,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
):
    """No call is short enough: each has the fewest tokens that there are."""
    engine = engine_of(1e-6, mixed=mixed)
    ask(engine)
    assert max(sizes_of(engine, monkeypatch)) == most


@pytest.mark.parametrize("mixed", [True, False])
def test_nobody_waits_for_prompts_where_none_makes_tokens(
    mixed: bool, monkeypatch: pytest.MonkeyPatch
):
    engine = engine_of(1e-6, mixed=mixed)
    assert max(sizes_of(engine, monkeypatch)) > 100
