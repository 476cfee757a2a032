"""The page: whole, from here alone, and open to those who have yet to type a key."""

import base64
import hashlib
import re

import pytest

from fdjax.serve.http.page import policy
from tests.support.http_server import served

pytestmark = pytest.mark.anyio


async def test_it_is_served_without_a_key():
    with served(api_keys=["secret"]) as server:
        response = await server.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.text.startswith("<!doctype html>")
    assert "secret" not in response.text


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
