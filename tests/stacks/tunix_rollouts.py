"""Rollouts of a Tunix cluster, by Tunix and by fdjax: `... FAMILY same|other`.

The last word says on which of two devices fdjax's are. Prints JSON: of each engine what
it made, before the weights change and afterwards.
"""

import dataclasses
import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tunix_actors  # pyright: ignore[reportMissingImports]  (beside this file)
from flax import nnx

# Two are equal, as the samples of a prompt are; padding differs.
PROMPTS = ["ab", "hello there", "x" * 13, "hello there"]


def made(cluster: Any) -> dict[str, Any]:
    """Greedy tokens, and their log-probabilities as they came and when asked for."""
    output = cluster.generate(PROMPTS)
    pad = cluster.rollout.pad_id()
    completions = np.full((len(PROMPTS), 24), pad, np.int32)
    for row, tokens in zip(completions, output.tokens, strict=True):
        row[: len(tokens)] = tokens
    scores = cluster.get_old_per_token_logps(
        jnp.asarray(output.left_padded_prompt_tokens), jnp.asarray(completions)
    )
    assert scores.shape == completions.shape, scores.shape
    return {
        "text": output.text,
        "tokens": [tokens.tolist() for tokens in output.tokens],
        "prompts": output.left_padded_prompt_tokens.tolist(),
        "logprobs": np.concatenate(output.logprobs).tolist(),
        "scores": np.asarray(scores)[completions != pad].tolist(),
    }


def ended(cluster: Any, token: int) -> list[list[int]]:
    """Greedy tokens where one of them ends an output."""
    config = tunix_actors.make_config(eos_tokens=[token], return_logprobs=False)
    output = cluster.rollout.generate(PROMPTS, config)
    assert output.logprobs is None
    return [tokens.tolist() for tokens in output.tokens]


def drawn(cluster: Any) -> dict[str, Any]:
    """Samples of one prompt, with a seed and without."""
    config = dataclasses.replace(
        tunix_actors.make_config(temperature=1.0, top_p=0.9, top_k=20), seed=7
    )
    runs = []
    for seed in (7, 7, jax.random.key(8), None, None):
        asked = dataclasses.replace(config, seed=seed)
        output = cluster.rollout.generate(["hello there"] * 3, asked)
        runs.append([tokens.tolist() for tokens in output.tokens])
    return {"runs": runs}


def changed(cluster: Any) -> None:
    """Gives the trainer other weights, and the rollout these."""
    actor = cluster.actor_trainer.model
    nnx.update(actor, tunix_actors.drawn(nnx.state(actor, nnx.Param), seed=5))
    cluster.sync_weights()


def main() -> None:
    """Runs both."""
    from fdjax.integrations.tunix import FdjaxRollout

    family: Any
    family, place = sys.argv[1:]
    device = jax.devices()[place == "other"]
    found: dict[str, Any] = {}
    for engine in ("vanilla", FdjaxRollout):
        ours = engine is FdjaxRollout
        cluster = tunix_actors.make_cluster(
            tunix_actors.make_actor(family),
            engine,
            rollout_mesh=tunix_actors.mesh_of(device) if ours else None,
        )
        rounds = [made(cluster)]
        changed(cluster)
        rounds.append(made(cluster))
        token = rounds[1]["tokens"][0][10]
        result = found["fdjax" if ours else "vanilla"] = {
            "rounds": rounds,
            "ended": ended(cluster, token),
        }
        if ours:
            result |= untraced(cluster, device) | drawn(cluster)
    print(json.dumps(found))


def untraced(cluster: Any, device: Any) -> dict[str, Any]:
    """A third change, with everything compiled: nothing is traced any more."""
    engine = cluster.rollout.engine
    mesh = cluster.r2m[tunix_actors.Role.ROLLOUT]
    before = leaves(engine)
    addresses = {leaf.unsafe_buffer_pointer() for leaf in before}
    actor = cluster.actor_trainer.model
    state = tunix_actors.drawn(nnx.state(actor, nnx.Param), seed=0)
    # The cluster is in its mesh when it samples, and is not when it brings weights.
    with jax.no_tracing(True):
        for _ in range(2):  # the second would take the actor's, if the first had them
            cluster.rollout.update_params(state, (nnx.Param,))
        with mesh:
            output = cluster.rollout.generate(PROMPTS, tunix_actors.make_config())
    after = leaves(engine)
    return {
        "again": [tokens.tolist() for tokens in output.tokens],
        "in_place": addresses == {leaf.unsafe_buffer_pointer() for leaf in after},
        "given_back": all(leaf.is_deleted() for leaf in before),
        "kept": not any(leaf.is_deleted() for leaf in jax.tree.leaves(state)),
        "placed": all(leaf.devices() == {device} for leaf in after),
    }


def leaves(engine: Any) -> list[jax.Array]:
    """The arrays of the engine's weights."""
    return jax.tree.leaves(engine.executor.programs.model)


if __name__ == "__main__":
    main()
