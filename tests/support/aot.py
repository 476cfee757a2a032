"""Compiles whole programs for an H200 on a machine that has none.

Needs the jax[cuda13] wheels and no GPU: optimized HLO, buffer assignment and ptxas all
run on the host. Set `JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1` and `JAX_PLATFORMS=cpu`.
"""

import importlib.metadata
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

TARGET = pathlib.Path(__file__).parents[1] / "aot" / "h200.txtpb"


def compile_for_h200(
    function: Callable[..., Any],
    *operands: Any,
    donate_argnums: tuple[int, ...] = (),
    compiler_options: Mapping[str, Any] | None = None,
) -> jax.stages.Compiled:
    """Compiles `function` of operands given as trees of `jax.ShapeDtypeStruct`."""
    description = topologies.get_topology_desc(
        platform="cuda", target_config=TARGET.read_text(), topology="1x1x1"
    )
    mesh = topologies.make_mesh(topo=description, mesh_shape=(1,), axis_names=("x",))
    sharding = NamedSharding(mesh, PartitionSpec())

    def place(shape: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

    placed = jax.tree.map(place, operands)
    with jax.set_mesh(mesh):  # also tells kernels which device they are compiled for
        jitted = jax.jit(function, donate_argnums=donate_argnums)
        options = dict(compiler_options or {})
        return jitted.lower(*placed).compile(compiler_options=options)


def wheels_missing() -> str | None:
    """Why nothing can be compiled for a GPU here, or `None`."""
    try:
        importlib.metadata.version("jax-cuda13-plugin")
    except importlib.metadata.PackageNotFoundError:
        return "needs the jax[cuda13] wheels (dependency group aot)"
    return None
