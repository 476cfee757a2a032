"""The engine under many requests: requests a second, room for tokens, the host's share.

All requests are handed over at once, as `fdjax bench throughput` does.

Requests whose output must fit a grammar run beside others that must not: how much
longer the others take is what they cost.

The host works while the device does. Its share of a decode step is what it adds to the
step: the time with the engine, beyond that of launches whose tokens nobody reads. How
long the engine's thread is busy in a step is measured too; for the rest it waits.
"""

import argparse
import pathlib
import time
from typing import Any

import numpy as np

from benchmarks import needs, results
from benchmarks.serving_steps import greedy, host_share, mixed_step, prompts_of
from fdjax import LLM, device
from fdjax.generate.masks import num_words
from fdjax.generate.stopping import FinishReason

LEAST_ROWS = 65
"""Sequences at once that are measured at least: 64, and a prompt beside them."""
PROMPT_TOKENS = 512
"""Of the prompt."""
MEASURED_STEPS = 512
"""Tokens that a sequence may get while steps are measured."""


def throughput(llm: LLM, *, requests: int, inputs: int, outputs: int) -> dict[str, Any]:
    """Seconds of one run, and rates."""
    prompts = prompts_of(llm, requests, inputs)
    preempted = llm.engine.scheduler.num_preemptions
    start = time.perf_counter()
    made = llm.generate(prompts, greedy(outputs))
    seconds = time.perf_counter() - start
    tokens = sum(len(output.token_ids) for output in made)
    assert tokens == requests * outputs, tokens
    return {
        "requests": requests,
        "input_tokens": inputs,
        "output_tokens": outputs,
        "seconds": round(seconds, 3),
        "requests_per_s": round(requests / seconds, 2),
        "output_tokens_per_s": round(tokens / seconds, 1),
        "preemptions": llm.engine.scheduler.num_preemptions - preempted,
    }


class Anything:
    """A grammar that allows every token, and so costs what grammars cost the engine."""

    def __init__(self, vocab_size: int) -> None:
        self._mask = np.full(num_words(vocab_size), 2**32 - 1, np.uint32)
        self.is_ready = True
        self.finish_reason = FinishReason.RUNNING

    def matcher(self) -> "Anything":
        """It keeps nothing of an output."""
        return self

    def mask(self) -> np.ndarray:
        """All tokens."""
        return self._mask

    def advance(self, token_id: int) -> None:
        """Any may follow."""

    def fork(self) -> "Anything":
        """For any output."""
        return self


def constrained(
    llm: LLM, *, rows: int, formed: int, inputs: int, steps: int
) -> dict[str, Any]:
    """Time of a token of `rows` requests, alone and beside `formed` with a grammar."""
    engine = llm.engine
    grammar = Anything(engine.config.embedding.vocab_size)

    def per_token(formed: int) -> float:
        prompts = prompts_of(llm, rows + formed, inputs)
        free = [
            engine.add(engine.request(i, prompt, greedy(steps * 4)))
            for i, prompt in enumerate(prompts[:rows])
        ]
        bound = [
            engine.add(engine.request(rows + i, prompt, greedy(steps * 4), grammar))
            for i, prompt in enumerate(prompts[rows:])
        ]
        while any(not sequence.output for sequence in [*free, *bound]):
            engine.step()
        for _ in range(4):
            engine.step()
        begin, before = time.perf_counter(), len(free[0].tokens)
        while len(free[0].tokens) < before + steps:
            engine.step()
        seconds = time.perf_counter() - begin
        for sequence in [*free, *bound]:
            engine.abort(sequence)
        return seconds / (len(free[0].tokens) - before)

    per_token(formed)  # compiles
    alone, beside = per_token(0), per_token(formed)
    return {
        "batch": rows,
        "constrained": formed,
        "ms_per_token": round(alone * 1e3, 3),
        "ms_per_token_beside_constrained": round(beside * 1e3, 3),
        "slowdown": round(beside / alone - 1, 4),
    }


def main() -> None:
    """Measures and writes `serving.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="configs/models/llama3-8b.json")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--memory-fraction", type=float, default=0.9)
    parser.add_argument("--max-num-batched-tokens", type=int)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--inputs", type=int, default=1024)
    parser.add_argument("--outputs", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.max_num_seqs < LEAST_ROWS:
        parser.error(f"--max-num-seqs {arguments.max_num_seqs}: {LEAST_ROWS} or more")
    if arguments.max_model_len < (least := arguments.inputs + MEASURED_STEPS):
        parser.error(
            f"--max-model-len {arguments.max_model_len}: {least} or more, for prompts "
            f"of {arguments.inputs} tokens and the steps that are measured behind them"
        )
    least = LEAST_ROWS - 1 + PROMPT_TOKENS
    if (arguments.max_num_batched_tokens or least) < least:
        parser.error(
            f"--max-num-batched-tokens {arguments.max_num_batched_tokens}: {least} or "
            "more, for the step that is measured with a prompt beside others"
        )
    device.claim_memory(arguments.memory_fraction)
    needs.gpu_for(arguments.model)
    start = time.perf_counter()
    llm = LLM(
        arguments.model,
        random_weights=True,
        max_model_len=arguments.max_model_len,
        max_num_seqs=arguments.max_num_seqs,
        memory_fraction=arguments.memory_fraction,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
    )
    # Who asks for the device's name starts JAX, with the memory that was claimed.
    out = arguments.out or results.RESULTS / results.device_slug() / "serving.json"
    layout = llm.engine.plan.layout
    common = {
        "model": pathlib.Path(arguments.model).stem,
        "max_num_seqs": arguments.max_num_seqs,
        "max_model_len": arguments.max_model_len,
        "memory_fraction": arguments.memory_fraction,
        "max_num_batched_tokens": llm.loaded.settings.max_batched_tokens,
        "load_s": round(time.perf_counter() - start, 1),
        "kv_tokens": layout.num_pages * layout.page_size,
        **results.provenance(),
    }
    rows: list[dict[str, Any]] = []
    sizes = {"inputs": arguments.inputs, "outputs": arguments.outputs}
    for _ in range(arguments.repeats + 1):  # the first compiles
        rows.append(throughput(llm, requests=arguments.requests, **sizes) | common)
        print(rows[-1], flush=True)
    share = host_share(
        llm, rows=arguments.max_num_seqs, inputs=arguments.inputs, steps=64
    )
    grammars = constrained(llm, rows=56, formed=8, inputs=arguments.inputs, steps=64)
    both = mixed_step(llm, rows=64, inputs=arguments.inputs, tokens=PROMPT_TOKENS)
    rows = [*rows[1:], share | common, grammars | common, both | common]
    print(*rows[-3:], sep="\n", flush=True)
    results.write(out, rows)


if __name__ == "__main__":
    main()
