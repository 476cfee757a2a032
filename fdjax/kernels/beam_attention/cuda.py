"""`beam_attention` in CUDA: what beams have of their own, and what their prompts add.

Keys stay where they are when beams are reordered, so a beam's tokens lie in pages of
several beams: `decode_attention` reads them by slot. A prompt is read once for all
beams of its group, by the kernels of `shared_prefix`, which add what they find; where
nothing is planned for that, each beam reads it, by slot too.
"""

import jax

from fdjax.kernels import ffi
from fdjax.kernels.beam_attention.arguments import BeamAttention
from fdjax.kernels.decode_attention import DecodeAttention
from fdjax.kernels.decode_attention import cuda as decode_cuda
from fdjax.kernels.decode_attention import handler as decode_handler
from fdjax.kernels.op import Impl
from fdjax.kernels.paged import PageView
from fdjax.kernels.shared_prefix.cuda import LEAST_SHARED_PAGE
from fdjax.kernels.shared_prefix.cuda import NAME as PREFIXES
from fdjax.notation import Array, Float


def run(call: BeamAttention) -> Float[Array, "B Hq D"]:
    """See `fdjax.kernels.beam_attention.beam_attention`."""
    prefixes = call.beams.prefixes
    if prefixes is None:
        return decode_cuda.attend(all_tokens(call))[0]
    prompts = call.beams.prompts(call.q.shape[0])
    return decode_cuda.attend_sharing(own_tokens(call), prompts, prefixes)[0]


def own_tokens(call: BeamAttention) -> DecodeAttention:
    """Attention of each beam over its tokens after the prompt."""
    return _attention(call, call.beams.own(call.pages, call.kv.cache))


def all_tokens(call: BeamAttention) -> DecodeAttention:
    """Attention of each beam over its prompt and the tokens after it."""
    return _attention(call, call.beams.whole(call.pages, call.kv.cache))


def _attention(call: BeamAttention, pages: PageView) -> DecodeAttention:
    return DecodeAttention(call.q, call.kv, pages, call.scores, unified=None)


def refuse_arguments(call: BeamAttention) -> str | None:
    """Why the kernels take none of these arrays on any GPU, or `None`."""
    if call.beams.prefixes is None:
        return decode_cuda.refuse_arguments(jax.eval_shape(all_tokens, call))
    if call.scores.window is not None or call.scores.slopes is not None:
        return "positions matter: there is a window, or ALiBi"
    if call.scores.scale <= 0:
        return f"scale is {call.scores.scale}; prompts are read once with one above 0"
    if call.kv.cache.page_size < LEAST_SHARED_PAGE:
        return "prompts lie in pages of one token"
    return decode_cuda.refuse_arguments(jax.eval_shape(own_tokens, call))


def refuse(call: BeamAttention) -> str | None:
    """Why the kernels cannot serve this call, or `None`."""
    name = decode_handler.NAME if call.beams.prefixes is None else PREFIXES
    return ffi.refuse(name, platform="gpu") or refuse_arguments(call)


IMPL = Impl(run, refuse)
