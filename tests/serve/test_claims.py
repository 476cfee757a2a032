"""Room for requests on their way to the engine."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from fdjax import QueueFullError
from fdjax.engine.limits import Load, QueueLimits
from fdjax.engine.origin import Origin
from fdjax.serve.claims import Claims
from tests.support.engines import tiny_engine

FLOOD, HONEST = (Origin(tenant=name, leaves_room=True) for name in ("flood", "honest"))
ONE = Load(1, 1, 1)


@pytest.fixture
def claims() -> Claims:
    return Claims(tiny_engine(limits=QueueLimits(samples=80)))


def test_a_flood_of_one_tenant_leaves_room_to_another(claims: Claims):
    """Also while nothing of it waits yet: all of it is on its way."""
    with contextlib.ExitStack() as kept:
        with pytest.raises(QueueFullError, match="70 samples of your key wait"):
            for _ in range(100):
                kept.enter_context(claims.claim(ONE, FLOOD))
        for _ in range(8):
            kept.enter_context(claims.claim(ONE, HONEST))
        with pytest.raises(QueueFullError, match="8 samples of your key wait"):
            kept.enter_context(claims.claim(ONE, HONEST))
    assert not claims._of_tenants, "all was given back"


def test_who_is_alone_may_take_all(claims: Claims):
    alone = Origin(tenant="alone")
    with contextlib.ExitStack() as kept:
        for _ in range(80):
            kept.enter_context(claims.claim(ONE, alone))
        with pytest.raises(QueueFullError, match="80 samples wait, and 80 may"):
            kept.enter_context(claims.claim(ONE, alone))


def test_a_tenants_own_limit_counts_what_is_on_its_way(claims: Claims):
    limited = Origin(tenant="limited", max_queued=2)
    with (
        claims.claim(ONE, limited),
        claims.claim(ONE, limited),
        pytest.raises(QueueFullError, match="max_queued_samples of 'limited' is 2"),
    ):
        claims.claim(ONE, limited).__enter__()
    with claims.claim(ONE, limited):
        pass


def test_claims_of_many_threads_come_back(claims: Claims):
    def claim(_: int) -> bool:
        try:
            with claims.claim(Load(1, 20, 1), Origin()):
                return True
        except QueueFullError:
            return False

    with ThreadPoolExecutor(8) as threads:
        assert any(threads.map(claim, range(500)))
    assert (claims._together, claims._claims) == (Load(), set())
