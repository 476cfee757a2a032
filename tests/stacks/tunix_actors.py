"""Tiny models of Tunix with random weights, and a cluster around one."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tunix.models.llama3 import model as llama3  # pyright: ignore[reportMissingImports]
from tunix.models.qwen2 import model as qwen2  # pyright: ignore[reportMissingImports]
from tunix.models.qwen3 import model as qwen3  # pyright: ignore[reportMissingImports]
from tunix.rl import rl_cluster  # pyright: ignore[reportMissingImports]
from tunix.rl.rl_cluster import Role  # pyright: ignore[reportMissingImports]
from tunix.rl.rollout.base_rollout import (  # pyright: ignore[reportMissingImports]
    RolloutConfig,
)

type Family = Literal["llama", "qwen2", "qwen3"]

MODULES: dict[Family, tuple[Any, str]] = {
    "llama": (llama3, "Llama3"),
    "qwen2": (qwen2, "Qwen2"),
    "qwen3": (qwen3, "Qwen3"),
}
VOCAB = 128
# Whatever it says, two of the three rotate by a million.
THETA = 10_000


class Tokenizer:
    """A character is a token."""

    def encode(self, text: str) -> list[int]:
        return [3 + ord(character) % (VOCAB - 3) for character in text]

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))

    def bos_id(self) -> int:
        return 2

    def eos_id(self) -> int:
        return 1

    def pad_id(self) -> int:
        return 0


def make_actor(family: Family, *, seed: int = 0, **changes: Any) -> nnx.Module:
    """A model with two layers; equal seeds give equal weights."""
    module, name = MODULES[family]
    sizes = {
        "num_layers": 2,
        "vocab_size": VOCAB,
        "embed_dim": 32,
        "hidden_dim": 48,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "rope_theta": THETA,
        "norm_eps": 1e-5,
    }
    config = module.ModelConfig(**sizes | changes)
    actor = getattr(module, name)(config, rngs=nnx.Rngs(0))
    nnx.update(actor, drawn(nnx.state(actor, nnx.Param), seed))
    return actor


def drawn(state: Any, seed: int) -> Any:
    """Other weights of the same shapes: matrices by their width, norms about one."""
    random = np.random.default_rng(seed)

    def draw(old: jax.Array) -> jax.Array:
        if old.ndim == 1:
            values = random.normal(1.0, 0.2, old.shape)
        else:
            values = random.normal(0.0, 0.3, old.shape)
        return jax.device_put(jnp.asarray(values, old.dtype), old.sharding)

    return jax.tree.map(draw, state)


def mesh_of(*devices: Any) -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(devices).reshape(-1, 1), ("fsdp", "tp"))


def make_config(**changes: Any) -> Any:
    """Greedy, with log-probabilities."""
    wanted = {
        "max_tokens_to_generate": 24,
        "max_prompt_length": 16,
        "kv_cache_size": 64,
        "temperature": 0.0,
        "top_p": None,
        "return_logprobs": True,
    }
    return RolloutConfig(**wanted | changes)


def make_cluster(
    actor: nnx.Module,
    engine: Any,
    *,
    rollout_config: Any = None,
    rollout_mesh: jax.sharding.Mesh | None = None,
    reference: nnx.Module | None = None,
    offload_to_cpu: bool = False,
) -> Any:
    """A real cluster whose actor is on the first device."""
    mesh = mesh_of(jax.devices()[0])
    training = rl_cluster.RLTrainingConfig(
        actor_optimizer=optax.sgd(0.05),
        eval_every_n_steps=1000,
        max_steps=1,
        mini_batch_size=2,
        train_micro_batch_size=2,
    )
    return rl_cluster.RLCluster(
        actor=actor,
        reference=reference,
        tokenizer=Tokenizer(),
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh={
                Role.ACTOR: mesh,
                Role.REFERENCE: mesh,
                Role.ROLLOUT: rollout_mesh or mesh,
            },
            rollout_engine=engine,
            offload_to_cpu=offload_to_cpu,
            training_config=training,
            rollout_config=rollout_config or make_config(),
        ),
    )
