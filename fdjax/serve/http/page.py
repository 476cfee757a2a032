"""`/`: a page to try and watch the server with, one file without outside assets."""

import base64
import hashlib
import importlib.resources
import re

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse


def router() -> APIRouter:
    """The path."""
    folder = importlib.resources.files("fdjax").joinpath("serve", "http")
    text = folder.joinpath("page.html").read_text("utf-8")
    headers = {
        "Content-Security-Policy": policy(text),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }
    routes = APIRouter()

    @routes.get("/", response_model=None, include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(text, headers=headers)

    return routes


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
