"""`/`: a page to try and watch the server with, one file without outside assets."""

import base64
import hashlib
import html
import importlib.resources
import re

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

_FIELD = '<input id="key"'
_INCLUDED = re.compile(r"\{\{([\w./-]+)\}\}")
_SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*$", re.MULTILINE)


def router() -> APIRouter:
    """The path."""
    text = whole_page()
    before, after = (part.encode() for part in text.split(_FIELD))
    headers = {
        "Content-Security-Policy": policy(text),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }
    routes = APIRouter()

    @routes.get("/", response_model=None, include_in_schema=False)
    async def page(request: Request) -> Response:
        # Who opened it with a key need not type it again.
        key = html.escape(getattr(request.state, "api_key", ""))
        field = f'{_FIELD} value="{key}"'.encode()
        return HTMLResponse(before + field + after, headers=headers)

    return routes


def whole_page() -> str:
    """The page with its style and scripts, those of others among them, inside."""
    folder = importlib.resources.files("fdjax").joinpath("assets", "page")

    def included(found: re.Match[str]) -> str:
        text = folder.joinpath(found[1]).read_text("utf-8")
        return _SOURCE_MAP.sub("", text)  # maps that are not here

    return _INCLUDED.sub(included, folder.joinpath("page.html").read_text("utf-8"))


def policy(page: str) -> str:
    """A page's Content-Security-Policy: its own script and style, and this server."""
    sources = {
        "default-src": "'none'",
        "script-src": _hashes(page, "script"),
        "style-src": _hashes(page, "style"),
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {source}" for name, source in sources.items())


def _hashes(page: str, tag: str) -> str:
    contents = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    digests = (hashlib.sha256(content.encode()).digest() for content in contents)
    return " ".join(f"'sha256-{base64.b64encode(d).decode()}'" for d in digests)
