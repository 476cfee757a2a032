"""`/v1/embeddings`: vectors of texts."""

import base64
import contextlib
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Request, Response

from fdjax.generate.pooling_params import PoolingParams
from fdjax.serve.http.answers import ABORTED, REFUSING, EmbeddingsAnswer
from fdjax.serve.http.asked import cut
from fdjax.serve.http.encoding import encoded
from fdjax.serve.http.errors import ApiError, refusals
from fdjax.serve.http.fields import Inputs
from fdjax.serve.http.json_aside import AsideRoute
from fdjax.serve.http.schemas import AskingBody
from fdjax.serve.http.server import Server
from fdjax.serve.http.taken import Taken, take
from fdjax.serve.http.whole import in_pieces

type Encoding = Literal["float", "base64"]


class EmbeddingsBody(AskingBody):
    """A request to `/v1/embeddings`."""

    input: Inputs
    encoding_format: Encoding | None = None
    dimensions: int | None = None
    pooling: Literal["last", "mean"] | None = None
    normalize: bool | None = None
    truncate_prompt_tokens: int | None = None

    def params(self) -> PoolingParams:
        """In the engine's words.

        Raises:
            RequestError: a value is out of range.
        """
        return PoolingParams(
            pooling=self.pooling or "last",
            normalize=self.normalize is not False,
            dimensions=self.dimensions,
        )


def router(server: Server) -> APIRouter:
    """The path, over a server."""
    routes = APIRouter(route_class=AsideRoute)

    @routes.post(
        "/v1/embeddings",
        response_model=None,
        responses={200: {"model": EmbeddingsAnswer}, **REFUSING, **ABORTED},
    )
    async def embeddings(request: Request, body: EmbeddingsBody) -> Response:
        server.check_model(body.model)
        with refusals(EmbeddingsBody.model_fields, prompt="input"):
            params = body.params()
            taken = await take(
                request,
                server,
                body,
                prompts=cut(server, body.input, body.truncate_prompt_tokens, params),
                params=params,
                id_prefix="embd",
                field="input",
            )
        encoding = body.encoding_format or "float"
        return await taken.answered(request, _answer(taken, encoding))

    return routes


async def _answer(taken: Taken, encoding: Encoding) -> Response:
    """The JSON of each vector is made when it comes: see `whole`."""
    found: dict[int, bytes] = {}
    async with contextlib.aclosing(taken.chunks()) as chunks:
        async for index, chunk in chunks:
            if chunk.finish_reason == "abort":
                raise ApiError(
                    "the request was aborted before it had all vectors",
                    status=409,
                    code="aborted",
                )
            if chunk.finish_reason is not None and chunk.embedding is not None:
                found[index] = _entry(index, chunk.embedding, encoding)
    count = taken.num_prompt_tokens
    rest: dict[str, Any] = {
        "model": taken.server.model.names[0],
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }
    parts = [b'{"object":"list","data":[']
    for index in range(len(taken.streams)):
        parts += [b","] * (index > 0) + [found[index]]
    return in_pieces([*parts, b"]," + encoded(rest)[1:]])


def _entry(index: int, vector: np.ndarray, encoding: Encoding) -> bytes:
    written = vector.tolist()
    if encoding == "base64":
        written = base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return encoded({"object": "embedding", "index": index, "embedding": written})
