"""Rollouts by fdjax with calls of one step and of several.

Prints JSON: of each number of steps its outputs, where a token ends some of them early
and there are fewer rows than prompts.
"""

import functools
import json
from typing import Any

import tunix_actors  # pyright: ignore[reportMissingImports]  (beside this file)

PROMPTS = ["ab", "hello there", "x" * 13, "hello there"]


def made(token: int | None = None, **options: Any) -> dict[str, Any]:
    """What such a rollout makes.

    Args:
        token: ends an output; by default the tokenizer's, which never comes here.
        options: of the rollout.
    """
    from fdjax.integrations.tunix import FdjaxRollout

    rollout = tunix_actors.make_cluster(
        tunix_actors.make_actor("llama"),
        functools.partial(FdjaxRollout, max_num_seqs=2, **options),
    ).rollout
    ends = None if token is None else [token]
    output = rollout.generate(PROMPTS, tunix_actors.make_config(eos_tokens=ends))
    return {
        "tokens": [tokens.tolist() for tokens in output.tokens],
        "logprobs": [float(one) for each in output.logprobs for one in each],
        "steps": rollout.engine.executor.programs.steps_per_launch,
    }


def main() -> None:
    """Runs all."""
    token = made(steps_per_launch=1)["tokens"][0][10]
    found = {"default": made(token)}
    found |= {str(n): made(token, steps_per_launch=n) for n in (1, 7)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
