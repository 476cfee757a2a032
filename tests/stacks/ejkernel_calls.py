"""ejkernel's kernel and fdjax's, through ejkernel's own registry.

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


def windowed_chunk(cache: np.ndarray, window: int) -> np.ndarray:
    """What the chunk's queries find in the cache, one query and head at a time."""
    given = arguments()
    queries = np.asarray(given["queries"])[2:]
    length = int(given["kv_lens"][2])
    pages = np.asarray(given["block_tables"]).reshape(4, -1)[2]
    tokens = cache[pages].reshape(-1, *cache.shape[2:])[:length, :, 0]
    keys, values = tokens[:, 0::2], tokens[:, 1::2]
    out = np.zeros_like(queries)
    for index, query in enumerate(queries):
        end = length - len(queries) + index + 1
        seen = slice(max(end - window, 0), end)
        for head, one in enumerate(query):
            scores = keys[seen, head // 2] @ one * given["softmax_scale"]
            weights = np.exp(scores - scores.max())
            out[index, head] = weights @ values[seen, head // 2] / weights.sum()
    return out


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
        if "sliding_window" in mask:
            chunk = windowed_chunk(np.asarray(actual[1]), mask["sliding_window"])
            differences["windowed chunk"] = float(np.abs(actual[0][2:] - chunk).max())
        differences[name] = [
            float(jnp.max(jnp.abs(expected[0][queries] - actual[0][queries]))),
            float(jnp.max(jnp.abs(expected[1] - actual[1]))),
        ]
    try:
        served(**given, k_scale=2.0)
    except EjkernelRuntimeError as error:
        differences["refused"] = str(error)
    try:
        ours.register(priority="hi")  # pyright: ignore[reportArgumentType]  (a mistake)
    except TypeError as error:
        ours.register()  # and nothing is in its way
        differences["unordered"] = str(error)
    print(json.dumps(differences))


if __name__ == "__main__":
    main()
