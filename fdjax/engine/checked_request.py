"""From what a caller asks for to a request that an engine can serve."""

import itertools
from collections.abc import Sequence

from fdjax.engine.beam_searches import usual_share
from fdjax.engine.matcher import Grammar
from fdjax.engine.request import Request
from fdjax.errors import RequestError
from fdjax.generate.beam_fields import MAX_BEAMS
from fdjax.generate.beam_length import longest_search
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.params import SamplingParams
from fdjax.generate.pooling_params import PoolingParams
from fdjax.memory.kv import KVLayout


def make_request(
    index: int,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    vocab_size: int,
    max_model_len: int,
    grammar: Grammar | None = None,
    beams: BeamSearchParams | None = None,
    pooling: PoolingParams | None = None,
) -> Request:
    """Checks a prompt against the model's limits.

    Raises:
        RequestError: the prompt is empty, too long, or names tokens that do not exist;
            or `params` want a form, and there is no grammar of it; or `beams` end with
            their texts, which `grammar` knows, or have scores that a search of such a
            length could not tell apart.
    """
    where = f"prompt {index}"
    if not prompt:
        raise RequestError(f"{where} is empty; give at least one token")
    if len(prompt) >= max_model_len + (pooling is not None):
        room = "" if pooling else " and must leave room for one more"
        raise RequestError(
            f"{where} has {len(prompt)} tokens, but max_model_len is {max_model_len}"
            f"{room}; shorten it or raise max_model_len"
        )
    outside = [token for token in prompt if not 0 <= token < vocab_size]
    if outside:
        raise RequestError(
            f"{where} names token {outside[0]}, but the vocabulary has {vocab_size} "
            f"tokens; use ids from 0 to {vocab_size - 1}"
        )
    params.check_vocabulary(vocab_size)
    if params.structured_outputs is not None and grammar is None:
        raise RequestError(
            "structured_outputs needs a grammar in the model's tokens, and there is "
            "none; go through an LLM, or an AsyncLLM that has grammars"
        )
    if beams is not None and beams.stop and grammar is None:
        raise RequestError(
            f"stop has {len(beams.stop)} strings, but there is no tokenizer here, and "
            "no text of a beam; use stop_token_ids"
        )
    room = max_model_len - len(prompt) + (pooling is not None)
    wanted = room if params.max_tokens is None else params.max_tokens
    limit = min(wanted, room)
    if beams is not None:
        _check_scores(beams, limit)
    return Request(index, tuple(prompt), params, limit, grammar, beams, pooling)


def check_beams(
    beams: BeamSearchParams,
    *,
    max_beam_width: int,
    max_num_seqs: int,
    max_num_beams: int,
    batch_invariant: bool,
) -> None:
    """Refuses searches that an engine cannot run.

    Raises:
        RequestError: it is wider than searches or the batch may be, or its bits are to
            be its own.
    """
    if beams.beam_width > max_beam_width:
        raise RequestError(
            f"beam_width is {beams.beam_width}, but max_beam_width is "
            f"{max_beam_width}; lower beam_width, or raise max_beam_width, to "
            f"{MAX_BEAMS} at most"
        )
    if beams.beam_width > max_num_seqs:
        raise RequestError(
            f"beam_width is {beams.beam_width}, but max_num_seqs is {max_num_seqs} and "
            "each beam counts as one; lower beam_width, or raise max_num_seqs"
        )
    if beams.beam_width > max_num_beams:
        more = _more_beams(
            beams.beam_width, max_num_beams=max_num_beams, max_num_seqs=max_num_seqs
        )
        raise RequestError(
            f"beam_width is {beams.beam_width}, but max_num_beams is {max_num_beams} "
            f"of max_num_seqs, {max_num_seqs}, so that searches leave room to other "
            f"requests; lower beam_width, or {more}"
        )
    if batch_invariant:
        raise RequestError(
            "beam_width asks for a beam search; with batch_invariant there is none: "
            "load the model without it"
        )


def _more_beams(width: int, *, max_num_beams: int, max_num_seqs: int) -> str:
    """What lets a search have so many: as many rows are there."""
    raised = f"raise max_num_beams to {width}"
    if max_num_beams != usual_share(max_num_seqs):
        return raised
    rows = next(n for n in itertools.count(width) if usual_share(n) >= width)
    return f"{raised}, or, where that is left to its default, max_num_seqs to {rows}"


def _check_scores(beams: BeamSearchParams, limit: int) -> None:
    """Refuses a length penalty with which a search would lose what it finds."""
    longest = longest_search(beams)
    if limit > longest:
        raise RequestError(
            f"length_penalty is {beams.length_penalty:g}, but outputs may have {limit} "
            "tokens, and of more than "
            f"{longest} their scores could not be told apart; lower max_tokens to "
            f"{longest}, or use a length_penalty nearer to 0"
        )


def check_pooling(
    pooling: PoolingParams, *, hidden_size: int, batch_invariant: bool
) -> None:
    """Refuses vectors that an engine cannot make.

    Raises:
        RequestError: there are not so many numbers, or its bits are to be its own.
    """
    pooling.check_width(hidden_size)
    if batch_invariant and pooling.pooling == "mean":
        raise RequestError(
            "pooling is 'mean', whose sums have other bits in other chunks, and "
            "batch_invariant forbids that; use 'last', or load the model without it"
        )


def most_pages(request: Request, layout: KVLayout) -> int:
    """Pages that a request holds at most, if it shares none with others."""
    if request.beams is None:
        return layout.pages_for(request.num_kv_tokens)
    own = layout.pages_for(request.max_tokens - 1)
    return layout.pages_for(len(request.prompt)) + request.num_rows * own


def check_pages(request: Request, layout: KVLayout, *, borrowed: int = 0) -> None:
    """Refuses what the whole KV array could not hold.

    Args:
        request: asked for.
        layout: of the KV array.
        borrowed: pages that steps overwrite in which nothing else runs.

    Raises:
        RequestError: it needs more pages than there are.
    """
    needed = most_pages(request, layout)
    if needed + borrowed > layout.num_pages:
        whose = "needs" if request.pooling else "and its output need"
        beside = f" beside {borrowed} that a step borrows" if borrowed else ""
        num_bytes = layout.page_bytes * (needed + borrowed)
        raise RequestError(
            f"prompt {request.index} {whose} {needed} pages of "
            f"{layout.page_size} tokens{beside} ({num_bytes:,} bytes), but there are "
            f"{layout.num_pages} ({layout.nbytes:,} bytes); "
            f"{_remedies(request, borrowed)}"
        )


def _remedies(request: Request, borrowed: int) -> str:
    """What makes a request need fewer pages, or a step of it borrow fewer."""
    remedies = ["shorten the prompt"]
    if request.pooling is None:
        remedies.append("lower max_tokens")
    if request.beams is not None:
        remedies.append("lower beam_width")
    if borrowed and request.params.prompt_logprobs is not None:
        remedies.append("leave out prompt_logprobs")
    return ", or ".join(remedies)
