"""The OpenAPI document: as JSON, and as a page of plain HTML without scripts."""

import asyncio
import html
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import HTMLResponse

from fdjax.serve.http.page import policy

DOCUMENT, PATH = "/openapi.json", "/docs"

_CODE = re.compile("`([^`]+)`")
_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
td, th { border-bottom: 1px solid #8884; padding: .3rem .6rem; text-align: left;
         vertical-align: top; overflow-wrap: anywhere; }
code { font-size: .95em; }
h2 { margin-top: 2.5rem; overflow-wrap: anywhere; }
"""


@dataclass(frozen=True)
class _Written:
    """The document and the page, and the page's policy."""

    document: bytes
    page: bytes
    policy: str


class _Reference:
    """An application's document and page, written once: it takes half a second."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._lock = asyncio.Lock()
        self._written: _Written | None = None

    async def written(self) -> _Written:
        """Both, which a thread writes when somebody wants one of them first."""
        async with self._lock:
            if self._written is None:
                self._written = await asyncio.to_thread(self._write)
            return self._written

    def _write(self) -> _Written:
        document = self._app.openapi()
        page = rendered(document)
        text = json.dumps(document, ensure_ascii=False)
        return _Written(text.encode(), page.encode(), policy(page))


def router(app: FastAPI) -> APIRouter:
    """The paths, over an application that has all others when they are asked for."""
    routes, reference = APIRouter(), _Reference(app)

    @routes.get(DOCUMENT, response_model=None, include_in_schema=False)
    async def openapi() -> Response:
        written = await reference.written()
        return Response(written.document, media_type="application/json")

    @routes.get(PATH, response_model=None, include_in_schema=False)
    async def docs() -> Response:
        written = await reference.written()
        headers = {
            "Content-Security-Policy": written.policy,
            "X-Content-Type-Options": "nosniff",
        }
        return HTMLResponse(written.page, headers=headers)

    return routes


def rendered(document: Mapping[str, Any]) -> str:
    """The page."""
    parts = "\n".join(
        line
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        for line in _operation(document, path, method, operation)
    )
    title = html.escape(f"{document['info']['title']} {document['info']['version']}")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>"
        "<p>All paths, the fields that they take and the statuses that they answer "
        'with. Programs read the same at <a href="/openapi.json">/openapi.json</a>.'
        f"</p>\n{parts}\n</body></html>"
    )


def _operation(
    document: Mapping[str, Any], path: str, method: str, operation: Mapping[str, Any]
) -> Iterator[str]:
    yield f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>"
    content = operation.get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema")
    if schema is not None:
        body = _found(document, schema)
        if said := body.get("description"):
            yield f"<p>{_CODE.sub(r'<code>\1</code>', html.escape(said))}</p>"
        required = {*body.get("required", ())}
        yield "<table><tr><th>field</th><th>what it may be</th></tr>"
        for name, field in body.get("properties", {}).items():
            needed = " (required)" if name in required else ""
            kind = html.escape(_kind(document, field))
            yield f"<tr><td><code>{name}</code>{needed}</td><td>{kind}</td></tr>"
        yield "</table>"
    yield "<table><tr><th>status</th><th>when</th></tr>"
    for status, answer in operation["responses"].items():
        said = html.escape(answer["description"])
        yield f"<tr><td>{status}</td><td>{said}</td></tr>"
    yield "</table>"


def _found(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a reference within the document leads to."""
    if "$ref" not in schema:
        return schema
    return document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]]


def _kind(document: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """A type in a few words."""
    schema = _found(document, schema)
    if "anyOf" in schema:
        kinds = (_kind(document, one) for one in schema["anyOf"])
        return " or ".join(dict.fromkeys(kinds))
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ", ".join("null" if one is None else repr(one) for one in values)
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array" and "items" in schema:
        return f"array of {_kind(document, schema['items'])}"
    return kind
