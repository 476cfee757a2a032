"""One GRPO step of Tunix with fdjax's rollouts.

Prints JSON: what the learner saw, and log-probabilities by the trained actor and by the
rollout.
"""

import json
from typing import Any

import jax
import numpy as np
import tunix_actors  # pyright: ignore[reportMissingImports]  (beside this file)
from flax import nnx
from tunix.rl import common  # pyright: ignore[reportMissingImports]
from tunix.rl.grpo.grpo_learner import (  # pyright: ignore[reportMissingImports]
    GRPOConfig,
    GRPOLearner,
)


def main() -> None:
    """Trains one step."""
    from fdjax.integrations.tunix import FdjaxRollout

    config = tunix_actors.make_config(
        temperature=1.0, top_p=1.0, max_tokens_to_generate=8, return_logprobs=False
    )
    cluster = tunix_actors.make_cluster(
        tunix_actors.make_actor("qwen3"),
        FdjaxRollout,
        rollout_config=config,
        reference=tunix_actors.make_actor("qwen3"),
    )
    seen: dict[str, Any] = {"rewards": [], "completions": []}

    def reward(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        """How many different tokens there are."""
        rewards = [float(len(set(text.split()))) for text in completions]
        seen["rewards"] += rewards
        seen["completions"] += completions
        return rewards

    # The second iteration asks the rollout for log-probabilities.
    learner = GRPOLearner(
        rl_cluster=cluster,
        algo_config=GRPOConfig(num_generations=4, num_iterations=2, beta=0.04),
        reward_fns=reward,
    )
    before = parameters(cluster)
    learner.train([{"prompts": np.array(["ab", "hello there"])}])
    after = parameters(cluster)
    moved = [float(np.max(np.abs(a - b))) for a, b in zip(before, after, strict=True)]
    random = np.random.default_rng(0)
    prompts = random.integers(3, tunix_actors.VOCAB, (2, 6), np.int32)
    completions = random.integers(3, tunix_actors.VOCAB, (2, 8), np.int32)
    graph, state = nnx.split(cluster.actor_trainer.model)
    expected = common.compute_per_token_logps(
        graph, state, prompts, completions, pad_id=0, eos_id=1
    )
    actual = cluster.rollout.get_per_token_logps(prompts, completions)
    print(
        json.dumps(
            seen
            | {
                "steps": cluster.global_steps,
                "moved": moved,
                "expected": np.asarray(expected).tolist(),
                "actual": np.asarray(actual).tolist(),
            }
        )
    )


def parameters(cluster: Any) -> list[np.ndarray]:
    """The actor's, copied."""
    state = nnx.state(cluster.actor_trainer.model, nnx.Param)
    return [np.array(leaf) for leaf in jax.tree.leaves(state)]


if __name__ == "__main__":
    main()
