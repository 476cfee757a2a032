"""What `batch_invariant` costs on a CPU: `python -m benchmarks.invariance`.

The small model, with the option and without, in seconds of all cores together: what
else runs on the machine is not in them. The least of several runs each.
"""

import argparse
import dataclasses
import random
import time

from fdjax import LLM, SamplingParams

INPUT_LEN, OUTPUT_LEN = 256, 65
FIRST = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
ALL = dataclasses.replace(FIRST, max_tokens=OUTPUT_LEN)
KINDS = {
    "prefill": FIRST,
    "prefill, decoding": ALL,
    "the same, drawn": dataclasses.replace(ALL, temperature=1.0, seed=3),
    "the same, log-probabilities": dataclasses.replace(ALL, logprobs=1),
}
PROMPTS = (1, 16)


def measured(llm: LLM, params: SamplingParams, prompts: int, *, repeats: int) -> float:
    """The least CPU seconds of a run that finds no prefix."""
    draw = random.Random(0)
    tokens = [draw.choices(range(5, 4000), k=INPUT_LEN) for _ in range(prompts)]
    seconds: list[float] = []
    for _ in range(repeats + 1):  # the first one compiles
        llm.engine.scheduler.pool.forget()
        start = time.process_time()
        llm.generate(tokens, params)
        seconds.append(time.process_time() - start)
    return min(seconds[1:])


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    times: dict[bool, dict[tuple[str, int], float]] = {}
    for wanted in (False, True):
        llm = LLM(max_model_len=512, max_num_seqs=16, batch_invariant=wanted)
        times[wanted] = {
            (name, count): measured(llm, params, count, repeats=repeats)
            for name, params in KINDS.items()
            for count in PROMPTS
        }
    print("| what | prompts | without, s | with, s | ratio |\n|---|---|---|---|---|")
    for (name, count), without in times[False].items():
        given = times[True][name, count]
        numbers = f"{without:.3f} | {given:.3f} | {given / without:.2f}"
        print(f"| {name} | {count} | {numbers} |")


if __name__ == "__main__":
    main()
