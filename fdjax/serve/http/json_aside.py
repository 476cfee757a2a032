"""Bodies of requests, read and checked aside, where they do not have too many values.

Whoever reads JSON holds up all threads of Python until it is read. But between two
bodies, and while one is checked, all else has its turn, however many have come.
"""

import json
from collections.abc import Callable, Coroutine
from typing import Any, override

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from fdjax.serve.http.json_size import refuse_many
from fdjax.serve.http.tenants import owner_of
from fdjax.serve.lanes import FairThreads, finished

# Shorter ones are read at once, in a millisecond or two.
_SHORT_BYTES = 2**16
_READER = FairThreads(1, "fdjax-json")

type _Check = Callable[[Any], Any]


class _AsideRequest(Request):
    check: _Check
    _value: Any = None
    _is_read = False

    @override
    async def json(self) -> Any:
        """What the body says; of a long one, the checked model, which remains."""
        if not self._is_read:
            body, check = await self.body(), self.check
            if len(body) > _SHORT_BYTES:

                def read() -> Any:
                    refuse_many(body)
                    return check(json.loads(body))

                self._value = await finished(
                    _READER,
                    read,
                    owner=owner_of(self.scope),
                    size=len(body),
                )
            else:
                self._value = json.loads(body)
            self._is_read = True
        return self._value


class AsideRoute(APIRoute):
    """A route whose long bodies are read and checked in a thread, one by one.

    Keys take turns there, and the shorter bodies of one go first.
    """

    @override
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute`."""
        handle = super().get_route_handler()

        async def handle_aside(request: Request) -> Response:
            aside = _AsideRequest(request.scope, request.receive)
            aside.check = self._checked
            return await handle(aside)

        return handle_aside

    def _checked(self, value: Any) -> Any:
        if self.body_field is None:
            return value
        checked, errors = self.body_field.validate(value, loc=("body",))
        if errors:
            raise RequestValidationError(errors)
        return checked
