"""What `FdjaxRollout` refuses. Prints JSON: the error of each case, by its name."""

import functools
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tunix_actors  # pyright: ignore[reportMissingImports]  (beside this file)
from flax import nnx


class Other(tunix_actors.MODULES["llama"][0].Llama3):  # pyright: ignore[reportUntypedBaseClass]
    """Might compute anything."""


def other() -> nnx.Module:
    plain: Any = tunix_actors.make_actor("llama")
    return Other(plain.config, rngs=nnx.Rngs(0))


def adapted() -> nnx.Module:
    actor: Any = tunix_actors.make_actor("llama")
    actor.layers[0].attn.lora = nnx.LoRAParam(jnp.zeros((2, 2)))
    return actor


def mixture() -> nnx.Module:
    sizes = {"num_experts": 4, "num_experts_per_tok": 2}
    return tunix_actors.make_actor("qwen3", **sizes)


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def main() -> None:
    """Tries all."""
    from fdjax.integrations.tunix import FdjaxRollout

    make, config = tunix_actors.make_cluster, tunix_actors.make_config
    actor = tunix_actors.make_actor("llama")
    wide = tunix_actors.mesh_of(*jax.devices())
    rows = functools.partial(FdjaxRollout, max_num_seqs=0)
    steps = functools.partial(FdjaxRollout, steps_per_launch=0)
    little = functools.partial(FdjaxRollout, memory_fraction=1e-9)
    whole = functools.partial(FdjaxRollout, memory_fraction=float("nan"))
    made = {
        "subclass": lambda: make(other(), FdjaxRollout),
        "adapter": lambda: make(adapted(), FdjaxRollout),
        "mixture": lambda: make(mixture(), FdjaxRollout),
        "devices": lambda: make(actor, FdjaxRollout, rollout_mesh=wide),
        "offload": lambda: make(
            tunix_actors.make_actor("llama"), FdjaxRollout, offload_to_cpu=True
        ),
        "parallel": lambda: make(
            actor, FdjaxRollout, rollout_config=config(tensor_parallel_size=2)
        ),
        "mapping": lambda: make(
            actor, FdjaxRollout, rollout_config=config(rollout_mapping_config={})
        ),
        "dtype": lambda: make(
            actor, FdjaxRollout, rollout_config=config(data_type=jnp.int8)
        ),
        "rows": lambda: make(actor, rows),
        "steps": lambda: make(actor, steps),
        "memory": lambda: make(actor, little),
        "fraction": lambda: make(actor, whole),
    }
    rollout = make(actor, FdjaxRollout).rollout
    state = nnx.state(tunix_actors.make_actor("llama"), nnx.Param)
    wider = nnx.state(tunix_actors.make_actor("llama", hidden_dim=64), nnx.Param)
    deeper = nnx.state(tunix_actors.make_actor("llama", num_layers=3), nnx.Param)
    pads = jnp.zeros((1, 4), jnp.int32)
    hosted = jax.tree.map(np.asarray, state)
    integers = jax.tree.map(lambda x: x.astype(jnp.int32), state)
    deleted = jax.tree.map(jnp.copy, state)
    jax.tree.leaves(deleted)[-1].delete()

    def asked(prompt: Any = "ab", **changes: Any) -> Callable[[], Any]:
        return lambda: rollout.generate([prompt], config(**changes))

    made |= {
        "ambiguous": asked(temperature=0.9),
        "tempered": asked(temperature=0.9, top_p=1.0),
        "long": asked("x" * 60),
        "not text": asked([1, 2]),
        "top_p": asked(temperature=1.0, top_p=2.0),
        "words": lambda: rollout.generate(["ab"], config(), images=1),
        "no prompt": lambda: rollout.get_per_token_logps(pads, pads + 5),
        "scored": lambda: rollout.get_per_token_logps(
            jnp.ones((1, 40), jnp.int32), jnp.ones((1, 30), jnp.int32)
        ),
        "wider": lambda: rollout.update_params(wider),
        "deeper": lambda: rollout.update_params(deeper),
        "mapping of arrays": lambda: rollout.update_params(nnx.to_pure_dict(state)),
        "hosted": lambda: rollout.update_params(hosted),
        "integers": lambda: rollout.update_params(integers),
        "deleted": lambda: rollout.update_params(deleted),
        "seed": asked(temperature=1.0, top_p=1.0, seed=-3),
        "temperature": asked(temperature=None),
        "fewer completions": lambda: rollout.get_per_token_logps(
            jnp.ones((2, 4), jnp.int32), jnp.ones((1, 4), jnp.int32)
        ),
    }
    errors = {name: error_of(call) for name, call in made.items()}
    rollout.update_params(state)  # nothing is lost by what was refused
    errors["after"] = rollout.generate(["ab"], config()).text[0]
    print(json.dumps(errors))


if __name__ == "__main__":
    main()
