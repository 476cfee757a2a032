"""From what a caller asks for to a request that an engine can serve."""

import dataclasses
from collections.abc import Sequence

from fdjax.engine.executor import Executor
from fdjax.engine.matcher import Grammar
from fdjax.engine.request import (
    Request,
    check_beams,
    check_pages,
    check_pooling,
    make_request,
)
from fdjax.engine.room import Room
from fdjax.generate.any_params import AnyParams
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.generate.pooling_params import PoolingParams
from fdjax.memory.plan import MemoryPlan
from fdjax.models.config import ModelConfig


def checked_request(
    index: int,
    prompt: Sequence[int],
    params: AnyParams,
    grammar: Grammar | None,
    *,
    config: ModelConfig,
    plan: MemoryPlan,
    max_num_seqs: int,
    room: Room,
) -> Request:
    """A request, of whatever kind its parameters are; see `Engine.request`.

    Raises:
        RequestError: the prompt or the parameters cannot be served, or the whole KV
            array could not hold it beside what a step of it borrows.
    """
    beams = pooling = None
    if isinstance(params, PoolingParams):
        pooling, params = params, params.sampling
        check_pooling(
            pooling,
            hidden_size=config.hidden_size,
            batch_invariant=config.batch_invariant,
        )
    if isinstance(params, BeamSearchParams):
        beams, params = params, params.sampling
        check_beams(
            beams,
            max_num_seqs=max_num_seqs,
            batch_invariant=config.batch_invariant,
        )
    request = make_request(
        index,
        prompt,
        params,
        vocab_size=config.embedding.vocab_size,
        max_model_len=plan.max_model_len,
        grammar=grammar,
        beams=beams,
        pooling=pooling,
    )
    check_pages(request, plan.layout, borrowed=room.least(request))
    return request


def prepared_request(
    executor: Executor, request: Request, *, only_kept: bool
) -> Request | None:
    """See `Engine.prepare`."""
    if request.beams is None:
        return request
    programs = executor.beams.prepared(request, executor.kv, only_kept=only_kept)
    if programs is None:
        return None
    return dataclasses.replace(request, programs=programs)
