"""The operations under `jax.shard_map`: each device has some of the heads, or rows."""

import os

# Beside those with which the other tests compile.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
)
os.environ["JAX_PLATFORMS"] = "cpu"

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from fdjax import ops

ALL, HEADS = PartitionSpec(), PartitionSpec(None, "tensor")
FIRST = PartitionSpec("tensor")
TABLE = jnp.arange(12, dtype=jnp.int32).reshape(2, 6)
LENGTHS = jnp.asarray([13, 6], jnp.int32)
DECODING = ops.PageView.decoding(TABLE, LENGTHS)
CHUNKS = ops.PageView.packed(TABLE, LENGTHS, LENGTHS - jnp.asarray([1, 5]))
RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(RANDOM.normal(size=shape), jnp.float32)


class Call(NamedTuple):
    """A function, its arrays with how they are divided, and how its results are."""

    function: Callable[..., Any]
    given: tuple[tuple[Any, PartitionSpec], ...]
    out: Any


def rotated(
    q: jax.Array, k: jax.Array, v: jax.Array, pages: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Each device joins its own heads of queries, keys and values."""
    out, cache = ops.rope_and_write(
        jnp.concatenate([q, k, v], axis=1),
        ops.KVCache.page_major(pages).layer(0),
        CHUNKS.positions(6),
        CHUNKS.slots(6, page_size=4),
        100.0 ** -(jnp.arange(4) / 4),
    )
    return out, cache.array


def attended(view: ops.PageView) -> Callable[[jax.Array, jax.Array], jax.Array]:
    def run(q: jax.Array, pages: jax.Array) -> jax.Array:
        return ops.attention(q, ops.KVCache.page_major(pages).layer(0), view, scale=0.3)

    return run


def found(q: jax.Array, pages: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Of two parts of the keys, joined."""
    kv = ops.KVCache.page_major(pages).layer(0)
    zeros, middle = jnp.zeros_like(LENGTHS), jnp.full_like(LENGTHS, 3)
    parts = [
        ops.attention_states(q, kv, DECODING, scale=0.3, keys=ops.KeyRange(*ends))
        for ends in ((zeros, middle), (middle, LENGTHS))
    ]
    whole = ops.merge_states(parts)
    return whole.output, whole.log_sum


def ragged(*arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
    return ops.ragged_paged_attention(*arrays, sm_scale=0.3)


def calls() -> Iterator[tuple[str, Call]]:
    """Of each operation, by name."""
    q, k, v = (normal(6, heads, 8) for heads in (4, 2, 2))
    own, theirs = normal(12, 1, 2, 4, 2, 8), normal(12, 4, 2, 2, 128)
    own_heads = PartitionSpec(None, None, None, None, "tensor")
    their_heads = PartitionSpec(None, None, "tensor")
    by_head = ((q, HEADS), (k, HEADS), (v, HEADS))
    for name, view, count in (("decoding", DECODING, 2), ("chunks", CHUNKS, 6)):
        given = ((q[:count], HEADS), (own, own_heads))
        yield f"attention of {name}", Call(attended(view), given, HEADS)
    given = ((q[:2], HEADS), (own, own_heads))
    yield "attention_states, merge_states", Call(found, given, (HEADS, HEADS))
    given = (*by_head, (own, own_heads))
    yield "rope_and_write", Call(rotated, given, (HEADS, own_heads))
    starts, counts = jnp.asarray([0, 1, 6]), jnp.asarray([1, 1, 2])
    rows = ((LENGTHS, ALL), (TABLE, ALL), (starts, ALL), (counts, ALL))
    given = (*by_head, (theirs, their_heads), *rows)
    yield "ragged_paged_attention", Call(ragged, given, (HEADS, their_heads))
    given = ((normal(3, 16), ALL), (normal(6, 16), FIRST), (normal(6), FIRST))
    yield "flat_gemm", Call(ops.flat_gemm, given, HEADS)
    given = ((normal(4, 16), FIRST), (normal(16), ALL))
    yield "rms_norm", Call(ops.rms_norm, given, FIRST)
    keys = jnp.arange(8, dtype=jnp.uint32).reshape(4, 2)
    drawn = (normal(4, 50), keys, jnp.arange(4), jnp.ones(4))
    yield "sample", Call(ops.sample, tuple((x, FIRST) for x in drawn), FIRST)


def squares(function: Callable[..., Any]) -> Callable[..., jax.Array]:
    """A number of all that a function gives, whose gradient is told of everything."""

    def total(*arrays: Any) -> jax.Array:
        return sum(
            (jnp.sum(one**2) for one in jax.tree.leaves(function(*arrays))),
            jnp.zeros(()),
        )

    return total


def compare(name: str, call: Call, mesh: Mesh, *, check: bool) -> None:
    """Results over a mesh and without one, and gradients of what is differentiable.

    Under `jax.jit`; attention also as JAX runs it outside of one, call by call.
    """
    arrays, specs = zip(*call.given, strict=True)
    sharded = jax.shard_map(
        call.function, mesh=mesh, in_specs=specs, out_specs=call.out, check_vma=check
    )
    functions: list[tuple[Callable[..., Any], ...]] = [(sharded, call.function)]
    if name != "sample":
        over = tuple(
            i for i, x in enumerate(arrays) if jnp.issubdtype(x.dtype, jnp.floating)
        )
        both = map(squares, functions[0])
        functions.append(tuple(jax.grad(one, argnums=over) for one in both))
    run: list[tuple[Callable[..., Any], ...]] = [
        tuple(map(jax.jit, pair)) for pair in functions
    ]
    if check and name.startswith("attention of"):
        run.append((sharded, call.function))
    for pair in run:
        results = (jax.tree.leaves(one(*arrays)) for one in pair)
        for one, other in zip(*results, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4, err_msg=name)


def refuses_to_be_replicated(mesh: Mesh) -> None:
    """What differs by device is known to, whoever computed it."""
    _, call = next(calls())
    arrays, specs = zip(*call.given, strict=True)
    alike = jax.shard_map(call.function, mesh=mesh, in_specs=specs, out_specs=ALL)
    try:
        jax.jit(alike)(*arrays)
    except ValueError as error:
        assert "require replication" in str(error), error
    else:
        raise AssertionError("results of other heads are taken for the same")


def takes_numbers_that_are_arrays(mesh: Mesh) -> None:
    """More than once: what is static must not be compared there."""
    _, call = next(calls())
    arrays, specs = zip(*call.given, strict=True)
    results: list[jax.Array] = []
    for scale in (jnp.float32(0.3), jnp.float32(0.3), 0.3):

        def scaled(q: jax.Array, pages: jax.Array, scale: Any = scale) -> jax.Array:
            kv = ops.KVCache.page_major(pages).layer(0)
            return ops.attention(q, kv, DECODING, scale=scale)

        run = jax.shard_map(scaled, mesh=mesh, in_specs=specs, out_specs=call.out)
        results.append(jax.jit(run)(*arrays))
    for one in results[1:]:
        np.testing.assert_allclose(one, results[0], rtol=1e-6)


def main() -> None:
    """Prints what is equal both ways, or fails."""
    mesh = Mesh(np.array(jax.devices()), ("tensor",))
    for name, call in calls():
        for check in (True, False):
            compare(name, call, mesh, check=check)
        print(f"{name}: equal on {len(mesh.devices)} devices")
    refuses_to_be_replicated(mesh)
    takes_numbers_that_are_arrays(mesh)


if __name__ == "__main__":
    main()
