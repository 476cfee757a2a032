"""fdjax's attention in sgl-jax's engine.

    engine = Engine(model_path=..., attention_backend="native", page_size=16)
    attach(engine)

The engine keeps its scheduler, its radix cache and its models. Of each layer the keys
and values are written and attended to by `fdjax.ops.ragged_paged_attention`, in the
cache that the engine has.
"""

from typing import Any

import jax
from jax.sharding import PartitionSpec
from sgl_jax.srt.layers.attention.flashattention_backend import (  # pyright: ignore[reportMissingImports]  (installed where this is used)
    FlashAttention,
)
from sgl_jax.srt.layers.attention.native_backend import (  # pyright: ignore[reportMissingImports]  (as above)
    NativeAttention,
)

from fdjax.errors import Unsupported
from fdjax.ops import ragged_paged_attention

__all__ = ["FdjaxAttentionBackend", "attach"]


def attach(engine: Any) -> "FdjaxAttentionBackend":
    """Lets an engine attend by fdjax; call it before its first request.

    Args:
        engine: an `Engine` of sgl-jax in one process (`enable_single_process=True`).

    Returns:
        What serves its attention from now on.

    Raises:
        Unsupported: its model or its options want something that fdjax has not.
    """
    scheduler = engine.scheduler_info.get("scheduler")
    if scheduler is None:
        raise Unsupported(
            "the engine's scheduler runs in another process; make the engine with "
            "enable_single_process=True"
        )
    worker = scheduler.tp_worker
    runner = getattr(worker, "worker", worker).model_runner
    _check(runner)
    backend = FdjaxAttentionBackend(
        runner.num_attn_heads,
        runner.num_kv_heads,
        runner.model_config.head_dim,
        page_size=runner.page_size,
        mesh=runner.mesh,
        max_pages=-(-runner.model_config.context_len // runner.page_size),
    )
    runner.attn_backend = backend
    return backend


def _check(runner: Any) -> None:
    """Refuses what another backend than plain attention serves."""
    served = type(runner.attn_backend)
    if served not in (FlashAttention, NativeAttention):
        raise Unsupported(
            f"the engine's attention is served by {served.__name__}; fdjax takes the "
            "place of FlashAttention and NativeAttention alone"
        )
    speculative = runner.server_args.speculative_algorithm
    if speculative is not None and str(speculative).upper() != "NONE":
        raise Unsupported(
            f"speculative_algorithm is {speculative}; fdjax verifies no drafts here"
        )


class FdjaxAttentionBackend(FlashAttention):  # pyright: ignore[reportUntypedBaseClass]  (as above)
    """sgl-jax's `AttentionBackend`, with the metadata of its own `FlashAttention`.

    Args:
        num_attn_heads: query heads of all devices.
        num_kv_heads: key/value heads of all devices.
        head_dim: of a head.
        page_size: tokens of a page.
        mesh: with the axes `data` and `tensor`.
        max_pages: pages that a row may have.
    """

    def __init__(
        self,
        num_attn_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        page_size: int,
        mesh: jax.sharding.Mesh,
        max_pages: int,
    ) -> None:
        super().__init__(
            num_attn_heads, num_kv_heads, head_dim, page_size=page_size, mesh=mesh
        )
        self.max_pages = max_pages

    def __call__(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        layer: Any,
        forward_batch: Any,
        token_to_kv_pool: Any,
        causal: int = 1,
        attention_sink: Any = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Attends in one layer.

        Args:
            q: of the new tokens, `[T, Hq * D]` or `[T, Hq, D]`.
            k: likewise, with `Hkv`.
            v: likewise.
            layer: a `RadixAttention`.
            forward_batch: the step's.
            token_to_kv_pool: where its keys and values are.
            causal: 1; else it is refused.
            attention_sink: of each query head.

        Returns:
            The result `[T, Hq * D]`, and the layer's cache.

        Raises:
            Unsupported: the layer wants something that fdjax has not.
        """
        metadata = self.forward_metadata
        self._refuse(layer, metadata, causal)
        tokens, heads = PartitionSpec("data", "tensor"), PartitionSpec("tensor")
        rows = PartitionSpec("data")
        cache = PartitionSpec("data", None, "tensor", None, None)
        sinks = getattr(attention_sink, "value", attention_sink)
        pages = metadata.page_indices
        if layer.sliding_window_size and metadata.swa_page_indices is not None:
            pages = metadata.swa_page_indices

        is_decoding = (
            forward_batch.forward_mode.is_decode()
            and q.shape[0] == metadata.seq_lens.shape[0]
        )

        def attend(*arrays: Any) -> tuple[jax.Array, jax.Array]:
            *operands, cu_kv_lens, sinks = arrays
            return ragged_paged_attention(
                *operands,
                sm_scale=layer.scaling or layer.head_dim**-0.5,
                sliding_window=layer.sliding_window_size or None,
                soft_cap=layer.logit_cap or None,
                sinks=sinks,
                cu_kv_lens=cu_kv_lens,
                # No row has more pages than all rows have: there are as few as can be
                # of the buckets that the engine compiles for.
                pages_per_row=min(self.max_pages, operands[5].shape[0]),
                mode="decode" if is_decoding else "mixed",
                layout="interleaved",
            )

        sharded = jax.shard_map(
            attend,
            mesh=self.mesh,
            in_specs=(
                *[tokens] * 3,
                cache,
                *[rows] * 5,
                PartitionSpec() if sinks is None else heads,
            ),
            out_specs=(tokens, cache),
            check_vma=False,
        )
        by_head = [x.reshape(x.shape[0], -1, layer.head_dim) for x in (q, k, v)]
        out, updated = sharded(
            *by_head,
            self._get_fused_kv_cache(forward_batch, token_to_kv_pool, layer.layer_id),
            metadata.seq_lens,
            pages,
            metadata.cu_q_lens,
            metadata.distribution,
            metadata.cu_kv_lens,
            sinks,
        )
        return out.reshape(out.shape[0], -1), updated

    def _refuse(self, layer: Any, metadata: Any, causal: int) -> None:
        kind = getattr(layer.attn_type, "value", layer.attn_type)
        for wants, what in (
            (not causal or kind == "encoder_only", "attention that is not causal"),
            (metadata.custom_mask is not None, "a mask of its own"),
            (layer.xai_temperature_len > 0, "a temperature by position"),
            (layer.v_head_dim != layer.head_dim, "values of another size than keys"),
        ):
            if wants:
                raise Unsupported(f"layer {layer.layer_id} wants {what}")
