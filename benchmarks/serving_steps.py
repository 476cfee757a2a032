"""Steps of an engine with many rows: what the host adds, and what prompts do."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fdjax import LLM, SamplingParams
from fdjax.engine.engine import Engine
from fdjax.engine.executor import AnyAwaited
from fdjax.engine.request import Increment
from fdjax.engine.results import AwaitedTokens
from fdjax.engine.sequence import EngineSequence, PromptChunk


def prompts_of(llm: LLM, count: int, tokens: int) -> list[list[int]]:
    """Random prompts, others in every call."""
    draw = np.random.default_rng()
    size = llm.engine.config.embedding.vocab_size
    return draw.integers(size, size=(count, tokens)).tolist()


def greedy(max_tokens: int) -> SamplingParams:
    """So many tokens exactly."""
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


def mixed_step(llm: LLM, *, rows: int, inputs: int, tokens: int) -> dict[str, Any]:
    """A step of `rows` rows, of so many tokens of a prompt, and of both in one call.

    And what the host adds to the latter, where each step a new request comes.
    """
    engine, count = llm.engine, 16
    executor, scheduler = engine.executor, engine.scheduler
    for index, prompt in enumerate(prompts_of(llm, rows, inputs)):
        engine.add(engine.request(index, prompt, greedy(count * 8 + 64)))
    while len(scheduler.decoding) < rows:
        engine.step()
    (prompt,) = prompts_of(llm, 1, tokens + 1)
    sequence = engine.add(engine.request(rows, prompt, greedy(1)))
    scheduler.admit()
    chunk = PromptChunk(
        sequence, 0, tokens
    )  # the prompt never ends: it is computed again

    def ms(launch: Callable[[], AwaitedTokens]) -> float:
        launch().wait()
        begin = time.perf_counter()
        last = [launch() for _ in range(count)][-1]
        last.wait()
        return (time.perf_counter() - begin) / count * 1e3

    def call(decoding: bool, chunks: list[PromptChunk]) -> AwaitedTokens:
        sequences = scheduler.reserve(1) if decoding else []
        if not chunks:
            return executor.decode(sequences)
        (launch,) = executor.extend(sequences, chunks)
        assert isinstance(launch, AwaitedTokens)
        return launch

    decode = ms(lambda: call(True, []))
    alone = ms(lambda: call(False, [chunk]))
    both = ms(lambda: call(True, [chunk]))
    engine.abort(sequence)
    served = _ms_of_steps(llm, tokens=tokens, steps=2 * count)
    for one in [*scheduler.running]:
        engine.abort(one)
    return {
        "batch": rows,
        "input_tokens": inputs,
        "prompt_tokens": tokens,
        "ms_decode": round(decode, 3),
        "ms_prompt": round(alone, 3),
        "ms_both": round(both, 3),
        "of_the_longer": round(both / max(decode, alone), 3),
        "ms_served": round(served, 3),
        "host_share": round(1 - both / served, 4),
    }


def _ms_of_steps(llm: LLM, *, tokens: int, steps: int) -> float:
    """A step of the engine, where each brings a prompt of so many tokens."""
    engine, ahead = llm.engine, 4
    prompts = prompts_of(llm, ahead + steps, tokens)
    begin = 0.0
    for index, prompt in enumerate(prompts):
        if index == ahead:
            begin = time.perf_counter()
        engine.add(engine.request(1000 + index, prompt, greedy(1)))
        engine.step()
    return (time.perf_counter() - begin) / steps * 1e3


def host_share(llm: LLM, *, rows: int, inputs: int, steps: int) -> dict[str, Any]:
    """Of a decode step of `rows` rows that all run."""
    engine = llm.engine
    prompts = prompts_of(llm, rows, inputs)
    # Tokens that were launched and not read are the device's, not the host's time.
    params = greedy(steps * 16)
    sequences = [
        engine.add(engine.request(i, prompt, params))
        for i, prompt in enumerate(prompts)
    ]
    while any(not sequence.output for sequence in sequences):
        engine.step()
    launches = steps // engine.executor.programs.steps_per_launch
    before = _launched_only(engine, launches)
    wall, busy, made = _decode(engine, launches)
    per_step = wall * rows / made
    # Sequences grow, and steps with them: the mean is that of the steps between.
    device = (before + _launched_only(engine, launches)) / 2
    for sequence in sequences:
        engine.abort(sequence)
    return {
        "batch": rows,
        "ms_per_step": round(per_step * 1e3, 3),
        "device_ms_per_step": round(device * 1e3, 3),
        "host_share": round(1 - device / per_step, 4),
        "host_busy_ms_per_step": round(busy * rows / made * 1e3, 3),
    }


def _decode(engine: Engine, launches: int) -> tuple[float, float, int]:
    """Seconds, those in which the host was busy, and tokens."""
    for _ in range(4):
        engine.step()
    read, waited, made = engine.executor.read, 0.0, 0

    def timed_read(launch: AnyAwaited) -> list[tuple[EngineSequence, Increment]]:
        nonlocal waited
        start = time.perf_counter()
        launch.wait()
        waited += time.perf_counter() - start
        return read(launch)

    engine.executor.read = timed_read
    begin = time.perf_counter()
    for _ in range(launches):
        made += sum(len(increment.token_ids) for _, increment in engine.step())
    seconds = time.perf_counter() - begin
    engine.executor.read = read
    return seconds, seconds - waited, made


def _launched_only(engine: Engine, launches: int) -> float:
    """Seconds a step of launches ahead of everything; their tokens are lost."""
    num_steps = engine.executor.programs.steps_per_launch
    sequences = engine.scheduler.reserve(num_steps)
    launch = engine.executor.decode(sequences)
    launch.wait()
    begin = time.perf_counter()
    for _ in range(launches):
        launch = engine.executor.decode(engine.scheduler.reserve(num_steps))
    launch.wait()
    return (time.perf_counter() - begin) / launches / num_steps
