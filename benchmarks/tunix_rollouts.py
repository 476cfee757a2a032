"""Rollouts of a Tunix cluster, by Tunix and by fdjax, in a process each.

Runs where Tunix is, at the versions in tests/stacks/tunix.txt, and fdjax as `uv pip
install --no-deps -e .` puts it there:

    .venv-tunix/bin/python -m benchmarks.tunix_rollouts --out build/tunix.json

Of each engine: tokens a second of a greedy call of all prompts, the first of which
compiles and is counted apart; the time of `sync_weights`; and the most bytes that the
device had in use, as JAX counts them. On a CPU JAX does not: there it is the process's
largest resident set, with what compiling took. Weights are random, and so are prompts.
"""

import argparse
import functools
import itertools
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from benchmarks import needs, results
from fdjax.notation import Array

ENGINES = ("vanilla", "fdjax")


class Tokenizer:
    """A character is a token."""

    def encode(self, text: str) -> list[int]:
        """The code points."""
        return [ord(character) for character in text]

    def decode(self, ids: list[int]) -> str:
        """Of no use here."""
        return f"{len(ids)} tokens"

    def bos_id(self) -> int:
        """None: it is added where it is not 0."""
        return 0

    def eos_id(self) -> int:
        """One of thousands: random outputs hardly ever end by it."""
        return 1

    def pad_id(self) -> int:
        """Beside the text's."""
        return 0


def make_actor(sizes: str, dtype: jnp.dtype) -> Any:
    """Llama 3's layers with random weights, of published sizes or of tiny ones."""
    from tunix.models.llama3 import (  # pyright: ignore[reportMissingImports]  (installed where this runs)
        model as llama3,
    )

    if sizes == "tiny":
        config = llama3.ModelConfig(
            num_layers=4,
            vocab_size=4096,
            embed_dim=256,
            hidden_dim=768,
            num_heads=8,
            num_kv_heads=2,
            head_dim=32,
            rope_theta=500_000,
            norm_eps=1e-5,
        )
    else:
        config = getattr(llama3.ModelConfig, sizes)()

    shape = nnx.eval_shape(lambda: llama3.Llama3(config, rngs=nnx.Rngs(0)))
    keys = map(jax.random.key, itertools.count())
    weights = jax.tree.map(
        lambda leaf: _weight(next(keys), leaf.shape, dtype),
        nnx.state(shape, nnx.Param),
    )
    return nnx.merge(nnx.graphdef(shape), weights)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _weight(key: Array, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """Noise, or the scales of a norm; one for all weights of a shape.

    A program that makes all of an 8B compiles for minutes.
    """
    if len(shape) == 1:
        return jnp.ones(shape, dtype)
    return 0.02 * jax.random.normal(key, shape, dtype)


def make_cluster(engine: str, options: argparse.Namespace) -> Any:
    """A cluster on one device."""
    from tunix.rl import rl_cluster  # pyright: ignore[reportMissingImports]  (as above)
    from tunix.rl.rollout.base_rollout import (  # pyright: ignore[reportMissingImports]  (as above)
        RolloutConfig,
    )

    rollout: Any = engine
    if engine == "fdjax":
        from fdjax.integrations.tunix import FdjaxRollout

        steps = options.steps_per_launch
        rollout = functools.partial(
            FdjaxRollout,
            max_num_seqs=options.prompts,
            memory_fraction=options.memory_fraction,
            **({} if steps is None else {"steps_per_launch": steps}),
        )
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    roles = (rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT)
    return rl_cluster.RLCluster(
        actor=make_actor(options.model, jnp.dtype(options.dtype)),
        tokenizer=Tokenizer(),
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh=dict.fromkeys(roles, mesh),
            rollout_engine=rollout,
            training_config=rl_cluster.RLTrainingConfig(
                actor_optimizer=optax.sgd(0.1), eval_every_n_steps=1000, max_steps=1
            ),
            rollout_config=RolloutConfig(
                max_tokens_to_generate=options.new_tokens,
                max_prompt_length=options.prompt_tokens,
                kv_cache_size=options.prompt_tokens + options.new_tokens,
                temperature=0.0,
                top_p=None,
                eos_tokens=[1],
            ),
        ),
    )


def prompts_of(options: argparse.Namespace, seed: int) -> list[str]:
    """Random ones, others for every seed: no prefix is found."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(32, 127, (options.prompts, options.prompt_tokens))
    return ["".join(map(chr, row)) for row in ids]


def measure(engine: str, options: argparse.Namespace) -> dict[str, Any]:
    """One engine's numbers."""
    start = time.perf_counter()
    cluster = make_cluster(engine, options)
    tell(f"{options.model} by {engine}: made in {time.perf_counter() - start:.1f} s")
    calls: list[tuple[float, int]] = []
    syncs: list[float] = []
    for repeat in range(options.repeats + 1):
        prompts = prompts_of(options, repeat)
        start = time.perf_counter()
        output = cluster.generate(prompts)
        seconds = time.perf_counter() - start
        calls.append((seconds, sum(map(len, output.tokens))))
        start = time.perf_counter()
        cluster.sync_weights()
        jax.block_until_ready(jax.live_arrays())
        syncs.append(time.perf_counter() - start)
        tell(f"call {repeat}: {seconds:.2f} s, then {syncs[-1]:.2f} s to sync")
    rates = [tokens / seconds for seconds, tokens in calls[1:]]
    return {
        "engine": engine,
        "device": jax.devices()[0].device_kind,
        "model": options.model,
        "dtype": options.dtype,
        "prompts": options.prompts,
        "prompt_tokens": options.prompt_tokens,
        "new_tokens": options.new_tokens,
        "steps_per_launch": steps_per_launch(cluster),
        "tokens": calls[-1][1],
        "tokens_per_s": round(statistics.median(rates), 1),
        "tokens_per_s_from_to": [round(min(rates), 1), round(max(rates), 1)],
        "first_call_s": round(calls[0][0], 2),
        "sync_ms": round(1e3 * statistics.median(syncs[1:]), 2),
        "peak_mib": round(peak_bytes() / 2**20, 1),
        **results.provenance(),
    }


def tell(progress: str) -> None:
    """Beside the results."""
    print(progress, file=sys.stderr, flush=True)


def steps_per_launch(cluster: Any) -> int | None:
    """Decode steps of one call of fdjax's; `None` of Tunix's own rollout."""
    engine = getattr(cluster.rollout, "engine", None)
    return engine and engine.executor.programs.steps_per_launch


def peak_bytes() -> int:
    """Of the device, or of the process where JAX does not count."""
    counted = jax.devices()[0].memory_stats()
    if counted and "peak_bytes_in_use" in counted:
        return int(counted["peak_bytes_in_use"])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def parse() -> argparse.Namespace:
    on_gpu = jax.default_backend() == "gpu"
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--model",
        default="llama3p1_8b" if on_gpu else "tiny",
        help='"tiny", or a constructor of Tunix\'s Llama 3 ModelConfig; several, by '
        "commas, are measured one after the other",
    )
    parser.add_argument("--dtype", default="bfloat16" if on_gpu else "float32")
    parser.add_argument("--prompts", type=int, default=64 if on_gpu else 8)
    parser.add_argument("--prompt-tokens", type=int, default=128 if on_gpu else 16)
    parser.add_argument("--new-tokens", type=int, default=512 if on_gpu else 64)
    parser.add_argument("--memory-fraction", type=float, default=0.6, help="fdjax's")
    parser.add_argument(
        "--steps-per-launch", type=int, help="fdjax's, if not its default"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--engine", choices=ENGINES, help="this one alone, as JSON")
    return parser.parse_args()


def main() -> None:
    options = parse()
    needs.packages("tunix")
    if options.engine is not None:
        print(json.dumps(measure(options.engine, options)))
        return
    rows: list[Any] = []
    # A process each: a peak of memory is never forgotten.
    for model, engine in itertools.product(options.model.split(","), ENGINES):
        command = [sys.executable, "-m", "benchmarks.tunix_rollouts", *sys.argv[1:]]
        done = subprocess.run(
            [*command, "--model", model, "--engine", engine],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(json.dumps(rows[-1]), flush=True)
        if options.out is not None:
            results.write(options.out, rows)


if __name__ == "__main__":
    main()
