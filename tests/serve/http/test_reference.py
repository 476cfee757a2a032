"""`/docs`: every path and field, from here alone, and without scripts."""

import base64

import pytest

from tests.support.http_server import served

pytestmark = pytest.mark.anyio


async def test_all_paths_fields_and_statuses():
    with served() as server:
        page = await server.get("/docs")
        document = (await server.get("/openapi.json")).json()
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for path in document["paths"]:
        assert path in page.text
    for field in ("max_completion_tokens", "encoding_format", "instructions"):
        assert f"<code>{field}</code>" in page.text
    assert "<code>messages</code> (required)" in page.text
    assert "The queue is full" in page.text
    assert "`" not in page.text and "to <code>/v1/completions</code>." in page.text


async def test_nothing_runs_and_nothing_comes_from_elsewhere():
    with served() as server:
        page = await server.get("/docs")
    assert "<script" not in page.text and "http" not in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src ;" in policy


async def test_a_key_as_password_opens_it():
    password = base64.b64encode(b":secret").decode()
    with served(api_keys=["secret"]) as server:
        refused = await server.get("/docs")
        headers = {"authorization": f"Basic {password}"}
        opened = await server.get("/docs", headers=headers)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Basic")
    assert opened.status_code == 200
