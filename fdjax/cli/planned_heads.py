"""Whether the kernels that go by a plan take a model's heads, before one is shown."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from fdjax.cli.planned_device import planning_for
from fdjax.config import Attention
from fdjax.errors import ConfigError
from fdjax.kernels import decode_attention, ffi, prefill_attention
from fdjax.kernels.cases import struct
from fdjax.kernels.decode_attention import DecodeAttention, cuda
from fdjax.kernels.op import REFERENCE, Op
from fdjax.kernels.paged import KVCache, KVLayer, PageView, ScoreSpec
from fdjax.kernels.prefill_attention import PrefillAttention, handler
from fdjax.kernels.prefill_attention.handler import CUDA_LIMITS


def check_decoding(attention: Attention, *, page_size: int) -> None:
    """Makes sure that the kernel of rows that decode takes the heads.

    Args:
        attention: of a layer.
        page_size: tokens of a page.

    Raises:
        ConfigError: no kernel that goes by a plan takes such heads, or such pages.
    """
    most = ffi.limit("decode_attention", "max_page_size")
    if not 0 < page_size <= most:
        raise ConfigError(
            f"--page-size {page_size}: the kernel has pages of 1 to {most} tokens"
        )
    call = DecodeAttention(*_parts(attention, page_size), unified=None)
    _check(decode_attention.OP, call, cuda.refuse_arguments(call))


def check_prompts(attention: Attention) -> None:
    """Makes sure that the kernel of rows with several new tokens takes the heads.

    Args:
        attention: of a layer.

    Raises:
        ConfigError: no kernel that goes by a plan takes such heads.
    """
    call = PrefillAttention(*_parts(attention, page_size=16))
    _check(prefill_attention.OP, call, handler.refuse_arguments(call, CUDA_LIMITS))


def _check[C, R](op: Op[C, R], call: C, reason: str | None) -> None:
    """Refuses to show a plan that nothing would go by.

    Args:
        op: the attention.
        call: with the model's heads.
        reason: why its CUDA kernel does not take it, or `None`.

    Raises:
        ConfigError: there is a reason.
    """
    if reason is None or not ffi.limits("decode_attention", "head_dims"):
        return  # without the extension nobody knows what its kernels take
    with planning_for("h200"):
        name = op.choice(call)
    serves = "the reference" if name == REFERENCE else f"the kernel in {name.title()}"
    raise ConfigError(
        f"--plan: no CUDA kernel of an H200 takes these heads in {op.name}: {reason}. "
        f"There {serves} serves them, which goes by no plan; leave --plan out"
    )


class _Parts(NamedTuple):
    """What a call of any attention begins with."""

    q: Any
    kv: KVLayer
    pages: PageView
    scores: ScoreSpec


def _parts(attention: Attention, page_size: int) -> _Parts:
    """A row of one page; of a type that all kernels take, since heads are asked for."""
    heads, head_dim = attention.num_kv_heads, attention.head_dim
    page = struct(1, 1, 2, page_size, heads, head_dim, dtype=jnp.bfloat16)
    row = struct(1, dtype=jnp.int32)
    return _Parts(
        struct(1, attention.num_heads, head_dim, dtype=jnp.bfloat16),
        KVCache.page_major(page).layer(0),
        PageView(struct(1, 1, dtype=jnp.int32), row, starts=row),
        ScoreSpec(None, attention.scale, attention.soft_cap, attention.window),
    )
