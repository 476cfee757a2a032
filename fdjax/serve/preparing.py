"""Beam searches whose programs are compiled before the engine takes them."""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Sequence

from fdjax.engine.origin import Origin
from fdjax.engine.request import Request
from fdjax.generate.beam_params import BeamSearchParams
from fdjax.serve.lanes import Lanes, finished
from fdjax.serve.serving_engine import ServingEngine
from fdjax.serve.tickets import Submission

_LOGGER = logging.getLogger(__name__)


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

    async def submissions(
        self, submissions: Sequence[Submission], origin: Origin
    ) -> list[Submission]:
        """The same, with the programs of those that are beam searches.

        Args:
            submissions: of one request.
            origin: on whose behalf it is.

        Raises:
            RequestError: the engine would refuse it.
            EngineDeadError: this was closed.
        """
        return [await self._prepared(submission, origin) for submission in submissions]

    def close(self) -> None:
        """Begins nothing more."""
        self._lanes.close()

    async def _prepared(self, submission: Submission, origin: Origin) -> Submission:
        params = submission.params
        if not isinstance(params, BeamSearchParams):
            return submission
        owner = origin.owner
        kept = functools.partial(self._request, submission, origin, only_kept=True)
        request = await finished(self._lanes.quick, kept, owner=owner)
        if request is None:
            compiling = functools.partial(
                self._request, submission, origin, only_kept=False
            )
            request = await finished(self._lanes.slow, compiling, owner=owner)
        if request is None:
            return submission
        self._prepare_batches(request, owner)
        return dataclasses.replace(submission, programs=request.programs)

    def _prepare_batches(self, request: Request, owner: str) -> None:
        """Compiles behind, what lets the search take steps with those like it."""

        def compile_some() -> None:
            try:
                has_compiled = self._engine.prepare_batches(request)
            except Exception:
                _LOGGER.exception("beam searches that are alike take their steps alone")
            else:
                if has_compiled:  # others have their turn before there is more
                    self._prepare_batches(request, owner)

        with contextlib.suppress(RuntimeError):  # closed: nobody needs them
            self._lanes.slow.submit(compile_some, owner=owner)

    def _request(
        self, submission: Submission, origin: Origin, *, only_kept: bool
    ) -> Request | None:
        request = self._engine.request(
            submission.index, submission.prompt, submission.params, submission.grammar
        )
        origin.check_rows(request.num_rows)
        return self._engine.prepare(request, only_kept=only_kept)
