"""`/v1/requests/{id}/abort`: a request ended by whoever made it."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request

from fdjax.generate.stopping import FinishReason
from fdjax.serve.http.answers import KEYED, UNKNOWN_REQUEST, Aborted
from fdjax.serve.http.errors import ApiError
from fdjax.serve.http.tenants import tenant_of
from fdjax.serve.stream import Stream


class Abortable:
    """Requests under way, by their tenants and ids."""

    def __init__(self) -> None:
        # A client may give two requests one id.
        self._streams: defaultdict[tuple[str, str], list[Sequence[Stream]]] = (
            defaultdict(list)
        )

    def add(self, tenant: str, request_id: str, streams: Sequence[Stream]) -> None:
        """Takes a request, until `remove`."""
        self._streams[tenant, request_id].append(streams)

    def remove(self, tenant: str, request_id: str, streams: Sequence[Stream]) -> None:
        """Forgets a request that was added."""
        left = self._streams[tenant, request_id]
        left[:] = [one for one in left if one is not streams]
        if not left:
            del self._streams[tenant, request_id]

    def abort(self, tenant: str, request_id: str) -> bool:
        """Ends a tenant's requests of an id; whether there was one."""
        found = self._streams.get((tenant, request_id), [])
        for streams in found:
            for stream in streams:
                stream.end(FinishReason.ABORTED)
        return bool(found)


def router(abortable: Abortable) -> APIRouter:
    """The path, over requests under way."""
    routes = APIRouter()

    @routes.post(
        "/v1/requests/{request_id}/abort",
        response_model=None,
        responses={200: {"model": Aborted}, **KEYED, **UNKNOWN_REQUEST},
    )
    async def abort(request: Request, request_id: str) -> dict[str, Any]:
        if not abortable.abort(tenant_of(request.scope).name, request_id):
            raise ApiError(
                f"no request {request_id[:200]!r} of yours is under way; use the id of "
                "its answer, or its x-request-id",
                status=404,
                code="request_not_found",
            )
        return {"id": request_id, "object": "request", "aborted": True}

    return routes
