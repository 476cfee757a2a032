"""The application: every path over one `AsyncLLM`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.middleware.cors import CORSMiddleware

from fdjax.serve.async_llm import AsyncLLM
from fdjax.serve.http import (
    aborts,
    answers,
    chat,
    completions,
    embeddings,
    errors,
    hosts,
    page,
    records,
    reference,
    responses,
    tokens,
    traces,
    underway,
)
from fdjax.serve.http.body import BodyLimit
from fdjax.serve.http.keyring import Keyring
from fdjax.serve.http.keys import ApiKeys
from fdjax.serve.http.limits import Limits
from fdjax.serve.http.logprobs import TokenTexts
from fdjax.serve.http.metrics import PREFIX
from fdjax.serve.http.scrapes import Scrapes
from fdjax.serve.http.server import STALL_SECONDS, ServedModel, Server
from fdjax.version import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider


def create_app(
    llm: AsyncLLM,
    model: ServedModel,
    *,
    keyring: Keyring | None = None,
    allowed_hosts: Sequence[str] = (hosts.ANY,),
    limits: Limits | None = None,
    allowed_origins: Sequence[str] = (),
    metrics_prefix: str = PREFIX,
    stall_seconds: float = STALL_SECONDS,
    tracer_provider: "TracerProvider | None" = None,
) -> FastAPI:
    """An application that serves a model.

    Args:
        llm: serves the requests; whoever made it closes it.
        model: what the API says of it.
        keyring: one of its keys is required on every path but those of `/health` and
            `/metrics`; by default none is.
        allowed_hosts: names that it answers to; see `Hosts`.
        limits: of one request.
        allowed_origins: sites whose scripts may send requests from a browser (CORS),
            `*` for any; by default none.
        metrics_prefix: of the names of metrics; `vllm` suits dashboards made for that.
        stall_seconds: that a step of the engine may take; then the server is neither
            alive nor ready. Steps that compile do not count.
        tracer_provider: of OpenTelemetry; the process's own by default.

    Returns:
        The application; its `state.server` is the `Server`.
    """
    server = Server(
        llm,
        model,
        limits or Limits(),
        keyring or Keyring(),
        stall_seconds=stall_seconds,
        metrics_prefix=metrics_prefix,
    )
    # FastAPI's pages load scripts from elsewhere, and write the document each time.
    app = FastAPI(title="fdjax", version=__version__, openapi_url=None)
    app.state.server = server
    errors.install(app)
    texts = TokenTexts(llm.tokenizer)
    for router in (
        completions.router(server, texts),
        chat.router(server, texts),
        responses.router(server),
        embeddings.router(server),
        tokens.router(server),
        page.router(),
        aborts.router(server.abortable),
        _watching(server),
    ):
        app.include_router(router)
    app.include_router(reference.router(app))
    answers.without_422(app)
    app.add_middleware(
        BodyLimit,
        max_bytes=server.limits.body_bytes,
        max_bytes_underway=server.limits.body_bytes * server.limits.bodies,
        seconds=server.limits.body_seconds,
    )
    # Comes before those that were added before: nothing of a stranger's body is read.
    app.add_middleware(ApiKeys, keyring=server.keyring)
    if allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=allowed_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id"],
        )
    app.add_middleware(hosts.Hosts, allowed=allowed_hosts)
    app.add_middleware(underway.EndedWithWords, underway=server.underway)
    spans = traces.observer(tracer_provider)
    observers = [records.log, spans] if spans else [records.log]
    app.add_middleware(records.Records, observers=observers)
    return app


def _watching(server: Server) -> APIRouter:
    routes, scrapes = APIRouter(), Scrapes(server.metrics.render, server.llm.look)

    @routes.get(
        "/v1/models",
        response_model=None,
        responses={200: {"model": answers.Models}, **answers.KEYED},
    )
    async def models() -> dict[str, Any]:
        data = [described(name) for name in server.model.names]
        return {"object": "list", "data": data}

    @routes.get(
        "/v1/models/{model:path}",
        response_model=None,
        responses={
            200: {"model": answers.Model},
            **answers.KEYED,
            **answers.UNKNOWN_MODEL,
        },
    )
    async def model(model: str) -> dict[str, Any]:
        server.check_model(model)
        return described(model)

    def described(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": server.created,
            "owned_by": "fdjax",
            "max_model_len": server.model.max_model_len,
        }

    @routes.get(
        "/version",
        response_model=None,
        responses={200: {"model": answers.Version}, **answers.KEYED},
    )
    async def version() -> dict[str, str]:
        return {"version": __version__}

    dead = "The engine has failed, or does not end its step."

    @routes.get(
        "/health",
        response_model=None,
        responses={503: {"description": f"{dead} Or the server drains."}},
    )
    @routes.get(
        "/ping",
        response_model=None,
        responses={503: {"description": f"{dead} Or the server drains."}},
    )
    @routes.get(
        "/health/ready",
        response_model=None,
        responses={503: {"description": f"{dead} Or the server drains."}},
    )
    async def ready() -> Response:
        return JSONResponse({}, 200 if server.is_ready else 503)

    @routes.get(
        "/health/live", response_model=None, responses={503: {"description": dead}}
    )
    async def live() -> Response:
        return JSONResponse({}, 200 if server.is_alive else 503)

    @routes.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(await scrapes.text(), media_type=CONTENT_TYPE_LATEST)

    return routes
