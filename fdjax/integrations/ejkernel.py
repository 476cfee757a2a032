"""fdjax's ragged paged attention among the kernels of ejkernel, which EasyDeL calls.

register()
"""

from typing import Literal

from ejkernel.errors import EjkernelRuntimeError  # pyright: ignore[reportMissingImports]  (installed where this is used)
from ejkernel.kernels import kernel_registry  # pyright: ignore[reportMissingImports]  (as above)

from fdjax.kernels.paged.integers import whole_number
from fdjax.notation import Array, Float, Int32
from fdjax.ops import ragged_paged_attention

__all__ = ["ALGORITHM", "ragged_page_attention_v3", "register"]

ALGORITHM = "ragged_page_attention_v3"


def register(
    *,
    platform: Literal["cuda", "xla"] = "cuda",
    backend: Literal["gpu", "any"] = "gpu",
    priority: int = 100,
) -> None:
    """Registers fdjax's kernel; of those that fit a call, the highest priority serves.

    Args:
        platform: ejkernel's word for how a kernel is made; callers ask for one.
        backend: what it runs on.
        priority: ejkernel's own kernels have 0.

    Raises:
        TypeError: `priority` is no whole number; the registry would keep it first, and
            then could sort no more.
    """
    priority = whole_number("register", "priority", priority)
    kernel_registry.register(ALGORITHM, platform, backend, priority=priority)(
        ragged_page_attention_v3
    )


def ragged_page_attention_v3(
    queries: Float[Array, "T Hq D"],
    keys: Float[Array, "T Hkv D"],
    values: Float[Array, "T Hkv D"],
    kv_cache: Float[Array, "P Z ..."],
    kv_lens: Int32[Array, " B"],
    block_tables: Int32[Array, " N"],
    query_start_loc: Int32[Array, " C"],
    distribution: Int32[Array, " 3"],
    softmax_aux: Float[Array, " Hq"] | None = None,
    *,
    softmax_scale: float | None = 1.0,
    sliding_window: int | None = None,
    logits_soft_cap: float | None = None,
    q_scale: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    chunk_prefill_size: int | None = None,
    num_kv_pages_per_block: int | None = None,
    num_queries_per_block: int | None = None,
    vmem_limit_bytes: int | None = None,
) -> tuple[Float[Array, "T Hq D"], Float[Array, "P Z ..."]]:
    """Serves ejkernel's signature by `fdjax.ops.ragged_paged_attention`.

    `softmax_aux` are sinks. Numbers that tune a kernel are not asked for.

    Raises:
        EjkernelRuntimeError: scales of quantised caches are given.
    """
    scales = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
    for name, scale in scales.items():
        if scale is not None:
            raise EjkernelRuntimeError(
                f"{ALGORITHM}: {name} is {scale!r}, and fdjax has no quantised caches: "
                "leave it None"
            )
    return ragged_paged_attention(
        queries,
        keys,
        values,
        kv_cache,
        kv_lens,
        block_tables,
        query_start_loc,
        distribution,
        sm_scale=queries.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale,
        sliding_window=sliding_window,
        soft_cap=logits_soft_cap,
        sinks=softmax_aux,
    )
