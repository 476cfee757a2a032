"""Who is served, who waits, and who gives way to whom."""

from collections import Counter
from dataclasses import dataclass, field

import pytest

from fdjax.serve.http.addresses import address_of
from fdjax.serve.http.crowd import RESERVE, ConnectionLimits, Crowd, Reason
from fdjax.serve.http.errors import ApiError

TOTAL = 4


@dataclass(eq=False)
class Client:
    address: str = "1.2.3.4"
    dropped: list[Reason] = field(default_factory=list[Reason])

    def drop(self, reason: Reason) -> None:
        self.dropped.append(reason)


def crowd_of(
    count: int, *, by_address: int | None = None
) -> tuple[Crowd, list[Client], Counter[Reason]]:
    """A crowd, in which so many wait, and why connections were dropped."""
    reasons: Counter[Reason] = Counter()
    limits = ConnectionLimits(total=TOTAL, by_address=by_address)
    crowd = Crowd(limits, lambda reason: reasons.update([reason]))
    clients = [Client() for _ in range(count)]
    for client in clients:
        crowd.enter(client)
    return crowd, clients, reasons


def test_who_has_waited_longest_gives_way():
    crowd, clients, reasons = crowd_of(TOTAL + RESERVE)
    crowd.begin(clients[0], "/")
    crowd.begin(clients[1], "/")
    crowd.end(clients[1])
    for _ in range(3):
        crowd.enter(Client())
    assert [bool(client.dropped) for client in clients[:6]] == [
        *(False, False),  # one is served, and one has been
        *(True, True, True),
        False,
    ]
    assert reasons == {"crowded": 3}
    assert len(crowd) == TOTAL + RESERVE


def test_newcomers_have_a_part_of_the_places():
    """However many keep connections that they have used."""
    crowd, clients, _ = crowd_of(TOTAL + RESERVE)
    for client in clients:
        crowd.begin(client, "/health")
        crowd.end(client)
    newcomers = [Client() for _ in range(RESERVE)]
    for newcomer in newcomers:
        crowd.enter(newcomer)
    assert [len(client.dropped) for client in clients] == [1] * RESERVE + [0] * TOTAL
    assert not any(newcomer.dropped for newcomer in newcomers)
    crowd.enter(Client())
    assert newcomers[0].dropped


def test_who_is_served_stays_however_many_come():
    crowd, clients, _ = crowd_of(TOTAL)
    for client in clients:
        crowd.begin(client, "/")
    for _ in range(10 * RESERVE):
        crowd.enter(Client())
    assert not any(client.dropped for client in clients)
    assert len(crowd) == TOTAL + RESERVE


def test_beyond_the_limit_only_what_watches_is_answered():
    crowd, clients, reasons = crowd_of(TOTAL + 2)
    for client in clients[:TOTAL]:
        crowd.begin(client, "/v1/completions")
    with pytest.raises(ApiError, match=r"5 connections.*4 may be") as raised:
        crowd.begin(clients[TOTAL], "/v1/completions")
    assert raised.value.status == 503
    crowd.begin(clients[TOTAL + 1], "/health")
    for client in clients:
        crowd.end(client)
    crowd.begin(clients[TOTAL], "/v1/completions")
    assert reasons == {"crowded": 1}


def test_an_address_has_a_limit_of_its_own():
    crowd, clients, _ = crowd_of(2, by_address=2)
    other = Client("5.6.7.8")
    crowd.enter(other)
    for client in clients:
        crowd.begin(client, "/")
    silent, newcomer = Client(), Client()
    crowd.enter(silent)
    crowd.enter(newcomer)
    assert silent.dropped and not newcomer.dropped
    with pytest.raises(ApiError, match=r"your address.*2 may be") as raised:
        crowd.begin(newcomer, "/")
    assert raised.value.status == 429
    crowd.begin(other, "/")
    assert not other.dropped


def test_nothing_is_kept_of_who_has_left():
    crowd, clients, _ = crowd_of(TOTAL)
    crowd.begin(clients[0], "/")
    crowd.begin(clients[0], "/")  # pipelined
    for client in clients:
        crowd.leave(client)
        crowd.leave(client)
    crowd.end(clients[0])
    assert len(crowd) == 0
    assert not crowd._here and not crowd._served_here


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("1.2.3.4", "1.2.3.4"),
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("", ""),
    ],
)
def test_addresses(host: str, address: str):
    assert address_of(host) == address
