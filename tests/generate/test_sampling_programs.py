"""The programs `sample` compiles to: what they contain, when they are made."""

import jax

from fdjax.generate.params import SamplingParams
from fdjax.generate.plan import plan_of
from fdjax.generate.sampling import Sampled, sample
from fdjax.generate.sampling_state import (
    SamplingProgress,
    SamplingRules,
    SamplingState,
)
from fdjax.generate.stopping import FinishReason
from tests.support.sampling import jitted_sample, normal_logits, state_of

VOCAB = 16
# Of a sort, of a choice of the largest, of a draw and of its integer arithmetic.
EXPENSIVE = ("top_k", "random", "xor")


def test_greedy_program_is_an_argmax():
    params = [SamplingParams(temperature=0)]
    state, plan = state_of(params, vocab_size=VOCAB), plan_of(params)
    traced = jitted_sample.trace(normal_logits(1, VOCAB), state, plan=plan)
    hlo = traced.lower().compile().as_text() or ""
    assert "f32" in hlo
    for word in ("sort", *EXPENSIVE):
        assert word not in f"{traced.jaxpr} {hlo}".lower()


def test_words_of_the_test_above_are_those_of_other_programs():
    params = [SamplingParams(logprobs=5)]
    state, plan = state_of(params, vocab_size=VOCAB), plan_of(params)
    traced = jitted_sample.trace(normal_logits(1, VOCAB), state, plan=plan)
    hlo = traced.lower().compile().as_text() or ""
    for word in EXPENSIVE:
        assert word in f"{traced.jaxpr} {hlo}".lower()


def test_one_plan_is_one_program():
    logits = normal_logits(4, VOCAB)
    first = [SamplingParams(top_k=3, stop_token_ids=[1], seed=1), SamplingParams()]
    plan = plan_of(first)
    other = [SamplingParams(temperature=0.3, top_k=9, stop_token_ids=range(4))] * 3
    assert plan_of(other) == plan
    state = state_of(first, vocab_size=VOCAB, num_rows=4)
    jitted_sample(logits, state, plan=plan)
    with jax.no_tracing(True):
        _, state = jitted_sample(logits, state, plan=plan)
        state = state_of(other, vocab_size=VOCAB, num_rows=4)
        jitted_sample(logits, state, plan=plan)


def test_donated_progress_is_updated_in_place():
    params = [SamplingParams(presence_penalty=1)]
    plan, state = plan_of(params), state_of(params, vocab_size=VOCAB)

    def step(
        logits: jax.Array, rules: SamplingRules, progress: SamplingProgress
    ) -> tuple[Sampled, SamplingProgress]:
        sampled, after = sample(logits, SamplingState(rules, progress), plan=plan)
        return sampled, after.progress

    compiled = (
        jax.jit(step, donate_argnums=2)
        .lower(normal_logits(1, VOCAB), state.rules, state.progress)
        .compile()
    )
    donated = sum(leaf.nbytes for leaf in jax.tree.leaves(state.progress))
    analysis = compiled.memory_analysis()
    assert analysis is not None
    assert analysis.alias_size_in_bytes == donated
    sampled, progress = compiled(normal_logits(1, VOCAB), state.rules, state.progress)
    compiled(normal_logits(1, VOCAB), state.rules, progress)
    assert sampled.finished.tolist() == [FinishReason.RUNNING]
