"""The application: every path over one `AsyncLLM`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from fdjax.serve.async_llm import AsyncLLM
from fdjax.serve.http import (
    answers,
    chat,
    completions,
    errors,
    page,
    records,
    tokens,
    traces,
)
from fdjax.serve.http.body import BodyLimit
from fdjax.serve.http.keys import ApiKeys
from fdjax.serve.http.logprobs import TokenTexts
from fdjax.serve.http.server import Limits, ServedModel, Server
from fdjax.version import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider


def create_app(
    llm: AsyncLLM,
    model: ServedModel,
    *,
    api_keys: Sequence[str] = (),
    limits: Limits | None = None,
    tracer_provider: "TracerProvider | None" = None,
) -> FastAPI:
    """An application that serves a model.

    Args:
        llm: serves the requests; whoever made it closes it.
        model: what the API says of it.
        api_keys: one of them is required on every path but `/health` and
            `/metrics`; none is if there are none.
        limits: of one request.
        tracer_provider: of OpenTelemetry; the process's own by default.

    Returns:
        The application; its `state.server` is the `Server`.
    """
    server = Server(llm, model, limits or Limits())
    # The pages of docs load scripts from elsewhere; the document itself is served.
    app = FastAPI(title="fdjax", version=__version__, docs_url=None, redoc_url=None)
    app.state.server = server
    errors.install(app)
    texts = TokenTexts(llm.tokenizer)
    for router in (
        completions.router(server, texts),
        chat.router(server, texts),
        tokens.router(server),
        page.router(),
        _watching(server),
    ):
        app.include_router(router)
    answers.without_422(app)
    app.add_middleware(
        BodyLimit,
        max_bytes=server.limits.body_bytes,
        seconds=server.limits.body_seconds,
    )
    # Comes before those that were added before: nothing of a stranger's body is read.
    app.add_middleware(ApiKeys, keys=api_keys)
    spans = traces.observer(tracer_provider)
    observers = [records.log, spans] if spans else [records.log]
    app.add_middleware(records.Records, observers=observers)
    return app


def _watching(server: Server) -> APIRouter:
    routes = APIRouter()

    @routes.get(
        "/v1/models",
        response_model=None,
        responses={200: {"model": answers.Models}, **answers.KEYED},
    )
    async def models() -> dict[str, Any]:
        return {
            "object": "list",
            "data": [
                {
                    "id": name,
                    "object": "model",
                    "created": server.created,
                    "owned_by": "fdjax",
                    "max_model_len": server.model.max_model_len,
                }
                for name in server.model.names
            ],
        }

    @routes.get(
        "/health",
        response_model=None,
        responses={
            503: {"description": "The engine has failed, or the server drains."}
        },
    )
    async def health() -> Response:
        return JSONResponse({}, 200 if server.is_ready else 503)

    @routes.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(server.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return routes
