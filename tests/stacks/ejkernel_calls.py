"""ejkernel's kernel and fdjax's, through ejkernel's own registry and operation.

Prints JSON: by mask, the largest differences of outputs and of caches.
"""

import json
import os

os.environ["JAX_PLATFORMS"] = "cpu"

from typing import Any

import jax.numpy as jnp
import numpy as np

MASKS: dict[str, dict[str, Any]] = {
    "causal": {},
    "window": {"sliding_window": 5},
    "soft cap": {"logits_soft_cap": 4.0},
    "sinks": {"softmax_aux": jnp.asarray([0.5, -1.0, 2.0, 0.0])},
}


def arguments() -> dict[str, Any]:
    """Two rows that decode, a chunk behind a prefix, and a place for a fourth row."""
    random = np.random.default_rng(0)
    lengths, counts, page_size, width = (17, 5, 9), (1, 1, 6), 4, 5
    tokens, heads, kv_heads, head_dim = sum(counts), 4, 2, 128

    def normal(*shape: int) -> Any:
        return jnp.asarray(random.normal(size=shape), jnp.float32)

    pages = random.permutation(20).astype(np.int32)
    starts = np.cumsum([0, *counts, 0]).astype(np.int32)
    return {
        "queries": normal(tokens, heads, head_dim),
        "keys": normal(tokens, kv_heads, head_dim),
        "values": normal(tokens, kv_heads, head_dim),
        "kv_cache": normal(20, page_size, 2 * kv_heads, 1, head_dim),
        "kv_lens": jnp.asarray([*lengths, 0], jnp.int32),
        "block_tables": jnp.asarray(pages[: 4 * width]),
        "query_start_loc": jnp.asarray(starts),
        "distribution": jnp.asarray([2, 2, 3], jnp.int32),
        "softmax_scale": head_dim**-0.5,
    }


def main() -> None:
    """Compares, and shows who serves and what is refused."""
    from ejkernel.errors import (  # pyright: ignore[reportMissingImports]
        EjkernelRuntimeError,
    )
    from ejkernel.kernels import (  # pyright: ignore[reportMissingImports]
        kernel_registry,
    )

    from fdjax.integrations import ejkernel as ours

    given = arguments()
    theirs = kernel_registry.get(ours.ALGORITHM, platform="xla")
    ours.register(platform="xla", backend="any")
    served = kernel_registry.get(ours.ALGORITHM, platform="xla")
    differences = {"serves": served.__module__}
    for name, mask in MASKS.items():
        expected = theirs(**arguments(), **mask)  # it donates the cache
        actual = served(**given, **mask)
        # Of a chunk's first queries, ejkernel 0.0.80.3 leaves out keys that are in
        # their windows: it counts these from the end of the row.
        queries = slice(2 if "sliding_window" in mask else None)
        differences[name] = [
            float(jnp.max(jnp.abs(expected[0][queries] - actual[0][queries]))),
            float(jnp.max(jnp.abs(expected[1] - actual[1]))),
        ]
    try:
        served(**given, k_scale=2.0)
    except EjkernelRuntimeError as error:
        differences["refused"] = str(error)
    print(json.dumps(differences))


if __name__ == "__main__":
    main()
