"""The page: whole, from here alone, and for those who know a key."""

import base64
import hashlib
import html
import re

import pytest

from fdjax.serve.http.page import policy
from tests.support.http_server import served

pytestmark = pytest.mark.anyio


def basic(password: str, *, name: str = "") -> dict[str, str]:
    """What a browser sends of what was typed."""
    typed = base64.b64encode(f"{name}:{password}".encode()).decode()
    return {"authorization": f"Basic {typed}"}


async def test_without_keys_anybody_gets_it():
    with served() as server:
        response = await server.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.text.startswith("<!doctype html>")
    assert response.text.count('<input id="key" value=""') == 1


@pytest.mark.parametrize("key", ["first", 'a:b&<">'])
async def test_a_key_as_password_opens_it_and_fills_its_field(key: str):
    with served(api_keys=["first", 'a:b&<">']) as server:
        response = await server.get("/", headers=basic(key, name="anybody"))
    assert response.status_code == 200
    assert f'<input id="key" value="{html.escape(key)}"' in response.text
    assert response.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "headers", [{}, basic("other"), {"authorization": "Basic first"}], ids=str
)
async def test_a_browser_is_asked_for_a_key(headers: dict[str, str]):
    with served(api_keys=["first"]) as server:
        response = await server.get("/", headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Basic realm=")
    assert "first" not in response.text


async def test_a_password_opens_nothing_else():
    # Browsers send it unasked, on behalf of any site.
    with served(api_keys=["first"]) as server:
        response = await server.get("/v1/models", headers=basic("first"))
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"


async def test_a_browser_runs_its_own_script_and_asks_nobody_else():
    with served() as server:
        response = await server.get("/")
    given = response.headers["content-security-policy"].split("; ")
    rules = dict(rule.split(" ", 1) for rule in given)
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == "'self'"
    for tag in ("script", "style"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", response.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[f"{tag}-src"] == f"'sha256-{digest}'"
    assert not re.search(
        r"<(script|link|img)[^>]+(src|href)=\"(?!data:)", response.text
    )
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", response.text)
    assert "innerHTML" not in response.text, "what the model says is text"


def test_every_script_of_a_page_is_known():
    rules = policy("<style>a</style><script>b</script><script>c</script>")
    assert rules.count("'sha256-") == 3
