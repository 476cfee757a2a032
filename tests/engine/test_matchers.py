"""Requests with grammars: one token at a time, and nobody else waits for them."""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Sequence

import jax
import pytest

from fdjax import RequestError, SamplingParams, StructuredOutputs
from fdjax.engine.engine import Engine
from fdjax.engine.results import AwaitedTokens
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.stopping import FinishReason
from tests.support.engines import GREEDY, shallow_model, tiny_engine
from tests.support.host_reads import no_host_reads
from tests.support.matchers import Places

PROMPTS = ([5], [1, 9, 33], [3, 100])
ALLOWED = [range(10 * place, 10 * place + 10) for place in range(1, 12)]

each_speed = pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])


@pytest.fixture(scope="module")
def engine() -> Engine:
    """Two rows, and pages for less than two of the longest sequences; warm."""
    engine = tiny_engine(
        shallow_model(),
        max_num_seqs=2,
        max_model_len=16,
        page_size=4,
        num_pages=6,
        steps_per_launch=2,
    )
    engine.warm_up([GREEDY])
    return engine


def places(engine: Engine, *, slow: bool = False) -> Places:
    return Places(ALLOWED, engine.config.embedding.vocab_size, slow=slow)


def add(
    engine: Engine,
    prompt: Sequence[int],
    params: SamplingParams = GREEDY,
    grammar: Places | None = None,
) -> EngineSequence:
    return engine.add(engine.request(0, prompt, params, grammar))


def finish(
    engine: Engine,
) -> tuple[dict[EngineSequence, list[int]], dict[EngineSequence, FinishReason]]:
    """Steps until nothing is left to do; tokens and ends of each sequence."""
    outputs: defaultdict[EngineSequence, list[int]] = defaultdict(list)
    ends: dict[EngineSequence, FinishReason] = {}
    while engine.has_work:
        for sequence, increment in engine.step():
            outputs[sequence] += increment.token_ids
            if increment.finish_reason is not None:
                assert sequence not in ends
                ends[sequence] = increment.finish_reason
    pool = engine.scheduler.pool
    assert pool.num_free == pool.num_pages
    return outputs, ends


def alone(
    engine: Engine,
    prompt: Sequence[int],
    params: SamplingParams = GREEDY,
    grammar: Places | None = None,
) -> list[int]:
    sequence = add(engine, prompt, params, grammar)
    return finish(engine)[0][sequence]


@each_speed
def test_every_token_is_allowed(engine: Engine, slow: bool):
    sequence = add(engine, PROMPTS[1], GREEDY, places(engine, slow=slow))
    outputs, ends = finish(engine)
    assert [token // 10 for token in outputs[sequence]] == list(range(1, 12))
    assert ends[sequence] == FinishReason.STOP
    assert outputs[sequence] != alone(engine, PROMPTS[1])[: len(ALLOWED)]


@each_speed
def test_neighbours_change_nothing(engine: Engine, slow: bool):
    """Neither in the tokens of a request nor in the launches it takes part in."""
    grammar = places(engine, slow=slow)
    forms = [alone(engine, prompt, GREEDY, grammar) for prompt in PROMPTS]
    free = [alone(engine, prompt) for prompt in PROMPTS[:2]]
    sequences = [add(engine, prompt) for prompt in PROMPTS[:2]]
    sequences += [add(engine, prompt, GREEDY, grammar) for prompt in PROMPTS]
    outputs, _ = finish(engine)
    assert [outputs[sequence] for sequence in sequences] == [*free, *forms]


@pytest.fixture
def launches(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> list[set[EngineSequence]]:
    """The sequences of each decode call there will be."""
    decode, sequences_of = engine.executor.decode, list[set[EngineSequence]]()

    def watched(sequences: Sequence[EngineSequence]) -> AwaitedTokens:
        sequences_of.append(set(sequences))
        return decode(sequences)

    monkeypatch.setattr(engine.executor, "decode", watched)
    return sequences_of


def test_it_misses_every_second_launch_and_its_neighbour_none(
    engine: Engine, launches: list[set[EngineSequence]]
):
    without = add(engine, PROMPTS[0])
    finish(engine)
    assert launches == [{without}] * 6  # 11 tokens after the first, two at a time
    del launches[:]
    beside = add(engine, PROMPTS[0])
    form = add(engine, PROMPTS[1], GREEDY, places(engine))
    finish(engine)
    assert [beside in sequences for sequences in launches[:6]] == [True] * 6
    taken = [place for place, sequences in enumerate(launches) if form in sequences]
    assert len(taken) == len(ALLOWED) - 1
    assert {after - before for before, after in itertools.pairwise(taken[:3])} == {2}


def test_alone_it_takes_every_launch(
    engine: Engine, launches: list[set[EngineSequence]]
):
    sequence = add(engine, PROMPTS[1], GREEDY, places(engine))
    finish(engine)
    assert launches == [{sequence}] * (len(ALLOWED) - 1)


def test_one_that_is_never_ready_holds_up_itself_alone(
    engine: Engine, launches: list[set[EngineSequence]]
):
    """Until there is nothing else to do; then it is waited for."""
    form = add(engine, PROMPTS[1], GREEDY, places(engine, slow=True))
    other = add(engine, PROMPTS[0])
    ended: list[EngineSequence] = []
    while engine.has_work:
        ended += [sequence for sequence, more in engine.step() if more.finish_reason]
    assert ended == [other, form]
    assert sum(other in sequences for sequences in launches) == 6


@each_speed
def test_what_was_put_back_resumes_where_it_was(engine: Engine, slow: bool):
    expected = alone(engine, PROMPTS[1], GREEDY, places(engine))
    free = alone(engine, PROMPTS[2])
    before = engine.scheduler.num_preemptions
    form = places(engine, slow=slow)
    sequences = [add(engine, PROMPTS[1], GREEDY, form) for _ in range(2)]
    sequences.append(add(engine, PROMPTS[2]))
    outputs, _ = finish(engine)
    assert [outputs[sequence] for sequence in sequences] == [expected, expected, free]
    assert engine.scheduler.num_preemptions > before


def test_an_aborted_one_leaves_the_others_alone(engine: Engine):
    expected = alone(engine, PROMPTS[0])
    other = add(engine, PROMPTS[0])
    sequence = add(engine, PROMPTS[1], GREEDY, places(engine))
    outputs = list(engine.step())
    assert sequence.held
    engine.abort(sequence)
    got = [t for one, more in outputs if one is other for t in more.token_ids]
    assert got + finish(engine)[0][other] == expected


def test_the_length_may_end_it_first(engine: Engine):
    params = dataclasses.replace(GREEDY, max_tokens=3)
    sequence = add(engine, PROMPTS[1], params, places(engine))
    outputs, ends = finish(engine)
    assert (len(outputs[sequence]), ends[sequence]) == (3, FinishReason.LENGTH)


def test_a_grammar_given_up_ends_like_a_text_too_long(engine: Engine):
    grammar = dataclasses.replace(places(engine), end=FinishReason.LENGTH)
    sequence = add(engine, PROMPTS[1], GREEDY, grammar)
    assert finish(engine)[1][sequence] == FinishReason.LENGTH


def test_a_stop_token_ends_it(engine: Engine):
    tokens = alone(engine, PROMPTS[1], GREEDY, places(engine))
    params = dataclasses.replace(GREEDY, stop_token_ids=[tokens[2]])
    assert alone(engine, PROMPTS[1], params, places(engine)) == tokens[:3]


def test_a_form_without_a_grammar_is_refused(engine: Engine):
    params = SamplingParams(structured_outputs=StructuredOutputs(regex="a"))
    with pytest.raises(RequestError, match="structured_outputs needs a grammar"):
        engine.request(0, PROMPTS[0], params)


def test_nothing_is_traced_or_sent_unasked(engine: Engine):
    with jax.no_tracing(True), no_host_reads():
        for count in range(1, 4):
            for _ in range(count):
                add(engine, PROMPTS[0], GREEDY, places(engine))
            add(engine, PROMPTS[1], dataclasses.replace(GREEDY, max_tokens=4))
            finish(engine)
