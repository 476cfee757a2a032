"""Quotas: what a minute allows, when there is more again, and what is counted."""

from unittest.mock import MagicMock

import pytest

from fdjax.serve.http.accounts import Account, Allowance, Quotas
from fdjax.serve.http.errors import ApiError
from fdjax.serve.http.metrics import Watch
from tests.support.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def allowance(clock: Clock) -> Allowance:
    allowance = Allowance(clock)
    allowance.per_minute = 60
    return allowance


def test_a_minutes_worth_at_once_and_then_as_it_comes_back(
    allowance: Allowance, clock: Clock
):
    assert allowance.wait_s(60) == 0
    allowance.spend(60)
    assert allowance.used == 60
    assert allowance.wait_s(1) == pytest.approx(1)
    clock.now += 10
    assert allowance.used == 50
    assert allowance.wait_s(10) == 0
    assert allowance.wait_s(11) == pytest.approx(1)


def test_nothing_is_saved_up(allowance: Allowance, clock: Clock):
    allowance.spend(30)
    clock.now += 3600
    assert (allowance.used, allowance.wait_s(60)) == (0, 0)
    allowance.spend(60)
    assert allowance.wait_s(1) > 0


def test_what_goes_beyond_is_waited_for(allowance: Allowance, clock: Clock):
    """Tokens that are made cannot be known before, and hold in the long run."""
    allowance.spend(600)
    assert allowance.wait_s(1) == pytest.approx(541)
    clock.now += 541
    assert allowance.wait_s(1) == 0


def test_more_than_a_minutes_worth_wants_all_of_it(allowance: Allowance, clock: Clock):
    assert allowance.wait_s(1000) == 0
    allowance.spend(1)
    assert allowance.wait_s(1000) == pytest.approx(1)


def test_whoever_waits_as_told_is_let_in(allowance: Allowance, clock: Clock):
    for amount in range(1, 60):
        allowance.spend(61)
        clock.now += allowance.wait_s(amount)
        assert allowance.wait_s(amount) == 0


def test_other_quotas_forget_nothing(allowance: Allowance, clock: Clock):
    allowance.spend(60)
    allowance.per_minute = 30
    assert allowance.used == 60
    assert allowance.wait_s(1) == pytest.approx(62)
    allowance.per_minute = None
    assert allowance.wait_s(10**9) == 0
    allowance.spend(10**9)
    allowance.per_minute = 60
    assert allowance.used == 0


def test_a_refusal_has_both_numbers_and_when_to_come_back(clock: Clock):
    account = Account("alice", clock)
    account.limit(Quotas(requests_per_minute=2))
    for _ in range(2):
        account.request()
    with pytest.raises(ApiError) as caught:
        account.request()
    assert str(caught.value) == (
        "requests_per_minute of the key 'alice' is 2, of which 2 are used, and this "
        "request wants 1; try again in 30 s"
    )
    assert caught.value.status == 429
    assert caught.value.headers == {"Retry-After": "30"}
    assert (account.num_requests, account.num_refused["requests_per_minute"]) == (2, 1)
    clock.now += 30
    account.request()


def test_prompts_that_the_engine_refuses_cost_nothing(clock: Clock):
    account = Account("alice", clock)
    account.limit(Quotas(tokens_per_minute=10))
    with pytest.raises(KeyError), account.prompts(8):
        raise KeyError
    assert account.prompt_tokens == 0
    with account.prompts(8):
        pass
    account.made(5)
    assert (account.prompt_tokens, account.output_tokens) == (8, 5)
    with pytest.raises(ApiError, match=r"is 10, of which 13 are used, and .* wants 4"):
        account.prompts(4).__enter__()


def test_tokens_that_nobody_reads_are_charged_once():
    account = Account("alice")
    stream = MagicMock(num_unread=7, request=MagicMock(beams=None))
    watch = Watch(MagicMock(), account, stream, started=0.0)
    for _ in range(2):
        watch.end("abort")
    assert account.output_tokens == 7
