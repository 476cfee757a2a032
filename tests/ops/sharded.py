"""Ragged paged attention under `jax.shard_map`: each device has some of the heads."""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["JAX_PLATFORMS"] = "cpu"

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from fdjax import ops


def main() -> None:
    """Prints that both ways are equal, or fails."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(random.normal(size=shape), jnp.float32)

    run = functools.partial(ops.ragged_paged_attention, sm_scale=0.3)
    arguments = (
        normal(6, 4, 8),
        normal(6, 2, 8),
        normal(6, 2, 8),
        normal(12, 4, 2, 2, 128),
        jnp.asarray([13, 6], jnp.int32),
        jnp.arange(12, dtype=jnp.int32).reshape(2, 6),
        jnp.asarray([0, 1, 6], jnp.int32),
        jnp.asarray([1, 1, 2], jnp.int32),
    )
    heads = PartitionSpec(None, "tensor")
    pages = PartitionSpec(None, None, "tensor")
    sharded = jax.shard_map(
        run,
        mesh=Mesh(np.array(jax.devices()), ("tensor",)),
        in_specs=(heads, heads, heads, pages, *[PartitionSpec()] * 4),
        out_specs=(heads, pages),
        check_vma=False,
    )
    for one, other in zip(jax.jit(sharded)(*arguments), run(*arguments), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    print(f"equal on {len(jax.devices())} devices")


if __name__ == "__main__":
    main()
