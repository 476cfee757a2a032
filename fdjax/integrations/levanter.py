"""fdjax's attention in Levanter's models, for its paged decoding.

    model = with_fdjax(model)
    engine = InferenceEngine.from_model_with_config(model, tokenizer, config)

Levanter keeps its engine, its page table and its cache. Of each layer the keys and
values are written and attended to by `fdjax.ops.ragged_paged_attention`, in the cache
that the engine has.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from haliax import NamedArray  # pyright: ignore[reportMissingImports]  (installed where this is used)
from haliax.jax_utils import (  # pyright: ignore[reportMissingImports]  (as above)
    maybe_rng_split,
)
from haliax.partitioning import (  # pyright: ignore[reportMissingImports]  (as above)
    physical_axis_name,
    pspec_for_axis,
    shard_map,
)
from jax.sharding import PartitionSpec
from levanter.layers.attention import (  # pyright: ignore[reportMissingImports]  (as above)
    Attention,
)

from fdjax.errors import Unsupported
from fdjax.ops import ragged_paged_attention

__all__ = ["FdjaxAttention", "with_fdjax"]

# The axes that devices may divide among themselves: each attends with its own heads.
HEADS = ("kv_head", "q_heads_per_group")
QUERIES = ("position", *HEADS, "head_size")


def with_fdjax[M](model: M) -> M:
    """The same model, which decodes over pages by fdjax; its arrays are not copied.

    What it computes without pages, as in training, is as before.

    Args:
        model: of Levanter, with `decode` and `initial_cache`, as its `InferenceEngine`
            wants them: Llama, Qwen 3 or Apertus.

    Raises:
        Unsupported: the model has no paged decoding, or attention that is not
            Levanter's `Attention` itself, or that is in a window.
    """
    name = type(model).__name__
    if not (hasattr(model, "decode") and hasattr(model, "initial_cache")):
        raise Unsupported(f"{name} has no paged decoding in Levanter")
    leaves, structure = jax.tree_util.tree_flatten_with_path(model, is_leaf=_attends)
    layers = [leaf for _, leaf in leaves if _attends(leaf)]
    if not layers:
        raise Unsupported(f"{name} has no layer that is an Attention of Levanter")
    for path, leaf in leaves:
        if _attends(leaf):
            _refuse(f"{name}{jax.tree_util.keystr(path)}", leaf)
    return structure.unflatten(
        FdjaxAttention(**_fields(leaf)) if _attends(leaf) else leaf
        for _, leaf in leaves
    )


def _attends(module: Any) -> bool:
    return hasattr(module, "paged_decode")


def _fields(module: Any) -> dict[str, Any]:
    return {at.name: getattr(module, at.name) for at in dataclasses.fields(module)}


def _refuse(name: str, module: Any) -> None:
    """Refuses what `FdjaxAttention` would compute otherwise than it is meant."""
    if type(module) not in (Attention, FdjaxAttention):
        raise Unsupported(
            f"{name} is a {type(module).__name__}; fdjax takes the place of Levanter's "
            "Attention itself alone"
        )
    window = module.config.sliding_window
    if window is not None:
        raise Unsupported(
            f"{name} attends in a window of {window} tokens, which Levanter's paged "
            "decoding ignores; make the model without sliding_window"
        )


class FdjaxAttention(Attention):  # pyright: ignore[reportUntypedBaseClass]  (as above)
    """Levanter's `Attention`, which decodes over pages by fdjax."""

    def paged_decode(
        self,
        x: NamedArray,
        kv_cache: Any,
        batch_info: Any,
        *,
        pos_ids: NamedArray,
        key: Any = None,
    ) -> tuple[NamedArray, Any]:
        """Attends in one layer, of tokens that are new in their rows.

        Args:
            x: of the new tokens, `[position, embed]`; each row's are side by side.
            kv_cache: a `KvPageCache`, `[page, slot, 2 kv_head, head_size]`.
            batch_info: a `PageBatchInfo`.
            pos_ids: of the new tokens, for RoPE.
            key: for the projections.

        Returns:
            The result `[position, embed]`, and the layer's cache.

        Raises:
            Unsupported: queries and the cache have different types.
        """
        key_qkv, key_out = maybe_rng_split(key, 2)
        q, k, v = self._compute_qkv(x, key=key_qkv, pos_ids=pos_ids)
        held = kv_cache.kv_pages
        if q.dtype != held.dtype:
            raise Unsupported(
                f"queries are {q.dtype}, the cache {held.dtype}; give "
                f"InferenceEngineConfig compute_dtype={q.dtype}, or cast the model"
            )
        scale, soft_cap = self.config.scaling_factor, self.config.logits_soft_cap
        out, pages = _attend(
            q.rearrange(QUERIES),
            k.rearrange(("position", "kv_head", "head_size")),
            v.rearrange(("position", "kv_head", "head_size")),
            held,
            batch_info,
            sm_scale=self.config.head_size**-0.5 if scale is None else scale,
            soft_cap=soft_cap,
        )
        mixed = out.flatten_axes(HEADS, "heads").astype(x.dtype)
        updated = dataclasses.replace(kv_cache, kv_pages=pages)
        return self.o_proj(mixed, key=key_out), updated


def _attend(
    q: NamedArray,
    k: NamedArray,
    v: NamedArray,
    held: NamedArray,
    batch: Any,
    *,
    sm_scale: float,
    soft_cap: float | None,
) -> tuple[NamedArray, NamedArray]:
    """Each device with the heads that Levanter's axis mapping gives it."""

    def attend(q: jax.Array, *others: jax.Array) -> tuple[jax.Array, jax.Array]:
        by_head = q.reshape(q.shape[0], -1, q.shape[-1])
        out, pages = ragged_paged_attention(
            by_head, *others, sm_scale=sm_scale, soft_cap=soft_cap
        )
        return out.reshape(q.shape), pages

    mapping = {
        name: where for name in HEADS if (where := physical_axis_name(name)) is not None
    }
    if mapping:
        heads = [pspec_for_axis(array.axes, mapping) for array in (q, k, v, held)]
        attend = shard_map(
            attend,
            in_specs=(*heads, *[PartitionSpec()] * 4),
            out_specs=(heads[0], heads[3]),
        )
    count = jnp.asarray(batch.num_seqs, jnp.int32).reshape(())
    out, pages = attend(
        *(array.array for array in (q, k, v, held)),
        batch.seq_lens.array,
        batch.page_indices.array,
        batch.cu_q_lens.array,
        jnp.stack([jnp.zeros_like(count)] * 2 + [count]),
    )
    return NamedArray(out, q.axes), NamedArray(pages, held.axes)
