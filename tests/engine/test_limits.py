"""How much may wait: what has no room now, and what could never have any."""

import pytest

from fdjax import QueueFullError, RequestError
from fdjax.engine.limits import Load, QueueLimits

LIMITS = QueueLimits(requests=4, samples=8, tokens=100)


@pytest.mark.parametrize(
    ("rows", "length", "limits"),
    [
        (16, 128, (1024, 4096, 4096 * 128)),
        (256, 8192, (4096, 16384, 16384 * 1024)),
        (16, 2**20, (1024, 4096, 2**24)),
    ],
)
def test_a_server_chooses_by_rows_and_length(
    rows: int, length: int, limits: tuple[int, int, int]
):
    chosen = QueueLimits.of(max_num_seqs=rows, max_model_len=length)
    assert (chosen.requests, chosen.samples, chosen.tokens) == limits
    given = QueueLimits.of(
        max_num_seqs=rows, max_model_len=length, requests=3, samples=None, tokens=None
    )
    assert str(given) == (
        "3 requests, any number of samples and any number of tokens may wait"
    )


@pytest.mark.parametrize(
    ("waiting", "error", "message"),
    [
        (Load(3, 7, 90), None, ""),
        (Load(4, 4, 4), QueueFullError, "4 requests wait, and 4 may; .* 1 more"),
        (Load(1, 8, 8), QueueFullError, "8 samples wait, and 8 may; .* 1 more"),
        (Load(1, 1, 91), QueueFullError, "91 tokens wait, and 100 may; .* 10 more"),
    ],
)
def test_what_has_no_room_may_come_later(
    waiting: Load, error: type[Exception] | None, message: str
):
    if error is None:
        LIMITS.check(waiting, Load(1, 1, 10))
    else:
        with pytest.raises(error, match=message):
            LIMITS.check(waiting, Load(1, 1, 10))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            Load(1, 9, 9),
            "n asks for 9 samples .* max_queued_samples is 8; ask for less",
        ),
        (Load(1, 1, 101), "asks for 101 tokens .* max_queued_tokens is 100; ask for"),
    ],
)
def test_what_could_never_wait_is_no_matter_of_later(more: Load, message: str):
    with pytest.raises(RequestError, match=message):
        LIMITS.check(Load(0, 0, 0), more)


def test_who_has_much_there_leaves_room_to_others():
    """Of 80, one alone has 70 and a second one 8; a first request always has room."""
    limits, one = QueueLimits(samples=80), Load(1, 1, 1)
    first, second = Load(), Load()
    for tenant, expected in (("first", 70), ("second", 8)):
        own = Load()
        while True:
            waiting = first.plus(second)
            try:
                limits.check(waiting, one, own)
            except QueueFullError as error:
                assert f"{own.samples} samples of your key wait" in str(error)
                break
            own = own.plus(one)
            first, second = (own, second) if tenant == "first" else (first, own)
        assert own.samples == expected
    limits.check(first.plus(second), Load(1, 2, 2), Load())


def test_without_tenants_the_whole_queue_is_there():
    QueueLimits(samples=80).check(Load(1, 79, 1), Load(1, 1, 1))


@pytest.mark.parametrize("name", ["requests", "samples", "tokens"])
def test_each_limit_has_shares(name: str):
    own = Load(**{name: 60})
    QueueLimits(samples=100).check(Load(), Load(1, 1, 1), Load(requests=99, tokens=99))
    with pytest.raises(QueueFullError, match=f"60 {name} of your key wait"):
        QueueLimits(**{name: 80}).check(Load(**{name: 65}), Load(10, 10, 10), own)
