"""Who takes turns with others: keys, or without them the addresses of clients."""

from typing import Any

import pytest

from fdjax.serve.http.tenants import Tenant, origin_of, owner_of


def scope(name: str, host: str | None) -> dict[str, Any]:
    client = None if host is None else (host, 4711)
    return {"client": client, "state": {"tenant": Tenant(name)}}


@pytest.mark.parametrize(
    ("name", "host", "owner"),
    [
        ("team", "10.0.0.1", "team"),
        ("", "10.0.0.1", "10.0.0.1"),
        ("", "2001:db8::1", "2001:db8::/64"),
        ("", None, ""),
    ],
)
def test_the_key_or_the_address(name: str, host: str | None, owner: str):
    asked = scope(name, host)
    assert owner_of(asked) == owner
    assert origin_of(asked, None, None).owner == owner
    assert origin_of(asked, None, None).tenant == name, "of accounts and shares"
