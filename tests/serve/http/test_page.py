"""The page: whole, from here alone, and for those who know a key."""

import base64
import hashlib
import html
import pathlib
import re

import pytest

import fdjax
from fdjax.serve.http.page import policy
from tests.support.http_server import served

pytestmark = pytest.mark.anyio

PAGE = pathlib.Path(fdjax.__file__).parent / "assets" / "page"
OWN = ("page.html", "page.css", "plots.js", "markdown.js", "chat.js")


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
    for tag, count in (("script", 3), ("style", 1)):
        contents = re.findall(f"<{tag}>(.*?)</{tag}>", response.text, re.DOTALL)
        assert len(contents) == count
        digests = [hashlib.sha256(content.encode()).digest() for content in contents]
        hashes = [f"'sha256-{base64.b64encode(one).decode()}'" for one in digests]
        assert rules[f"{tag}-src"].split() == hashes
    assert not re.search(
        r"<(script|link|img)[^>]+(src|href)=\"(?!data:)", response.text
    )
    own = "".join((PAGE / name).read_text() for name in OWN)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", own)
    assert "innerHTML" not in own, "what the model says is text"
    assert "sourceMappingURL" not in response.text, "maps are not here"


def test_scripts_of_others_are_as_they_were_published():
    folder = PAGE / "vendor"
    sums = (folder / "SHA256SUMS").read_text().splitlines()
    told = {name: wanted for wanted, name in (line.split() for line in sums)}
    assert {*told} == {path.name for path in folder.glob("*.js")}
    for name, wanted in told.items():
        content = (folder / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == wanted
        # It stands within a page: these would end it, or keep its end from being one.
        assert b"</script" not in content
        assert not re.search(rb"<!--(?:(?!-->).)*<script", content, re.DOTALL)
        licence = folder / name.replace(".min.js", ".LICENSE")
        assert "Copyright" in licence.read_text("utf-8")


def test_every_script_of_a_page_is_known():
    rules = policy("<style>a</style><script>b</script><script>c</script>")
    assert rules.count("'sha256-") == 3
