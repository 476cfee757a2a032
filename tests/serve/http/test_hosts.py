"""Names by which a server may be asked, where a visited site could let it be asked."""

import pytest

from fdjax.serve.http.hosts import ANY, names_of
from tests.support.http_server import served

pytestmark = pytest.mark.anyio

PRIVATE = names_of("127.0.0.7", private=True)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("LOCALHOST.", 200),
        ("127.0.0.1:8000", 200),
        ("127.0.0.7", 200),
        ("[::1]:8000", 200),
        ("evil.example:8000", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("[::2]", 421),
        ("", 421),
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/metrics"])
async def test_where_only_this_machine_reaches_it(host: str, status: int, path: str):
    with served(allowed_hosts=PRIVATE) as server:
        response = await server.get(path, headers={"host": host})
    assert response.status_code == status
    if status != 200:
        error = response.json()["error"]
        assert error["code"] == "unknown_host"
        assert "--allowed-hosts" in error["message"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("example.com", 200),
        ("a.models.example.com:80", 200),
        ("models.example.com", 421),
        ("example.com.evil", 421),
        ("aexample.com", 421),
    ],
)
async def test_names_that_were_given(host: str, status: int):
    names = ["Example.com", "*.models.example.com"]
    with served(allowed_hosts=names) as server:
        response = await server.get("/health", headers={"host": host})
    assert response.status_code == status


async def test_what_others_reach_is_called_anything():
    assert names_of("0.0.0.0", private=False) == (ANY,)
    with served() as server:
        response = await server.get("/health", headers={"host": "evil.example"})
    assert response.status_code == 200
