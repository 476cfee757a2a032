"""Beam searches whose programs are compiled before the engine takes them."""

import dataclasses
import functools
from collections.abc import Sequence

from fdjax.engine.request import Request
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.serve.lanes import Lanes, finished
from fdjax.serve.serving_engine import ServingEngine
from fdjax.serve.tickets import Call


class Preparing:
    """Compiles beside all else: a step that does so would hold up everybody.

    One kind of search is compiled after the other, and next is the key whose searches
    have used least. Those whose programs are there do not wait for it.

    Args:
        engine: that has the programs.
    """

    def __init__(self, engine: ServingEngine) -> None:
        self._engine = engine
        self._lanes = Lanes("fdjax-searches", quick=1, slow=1)

    async def calls(self, calls: Sequence[Call], owner: str = "") -> list[Call]:
        """The same, with the programs of those that are beam searches.

        Args:
            calls: of one request.
            owner: whose it is.

        Raises:
            RequestError: the engine would refuse it.
            EngineDeadError: this was closed.
        """
        return [await self._prepared(call, owner) for call in calls]

    def close(self) -> None:
        """Begins nothing more."""
        self._lanes.close()

    async def _prepared(self, call: Call, owner: str) -> Call:
        (params, *_) = call.samples
        if not isinstance(params, BeamSearchParams):
            return call
        kept = functools.partial(self._request, call, only_kept=True)
        request = await finished(self._lanes.quick, kept, owner=owner)
        if request is None:
            compiling = functools.partial(self._request, call, only_kept=False)
            request = await finished(self._lanes.slow, compiling, owner=owner)
        return dataclasses.replace(call, programs=request and request.programs)

    def _request(self, call: Call, *, only_kept: bool) -> Request | None:
        (params, *_) = call.samples
        request = self._engine.request(call.index, call.prompt, params, call.grammar)
        return self._engine.prepare(request, only_kept=only_kept)
