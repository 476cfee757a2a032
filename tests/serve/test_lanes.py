"""Threads that several owners share."""

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from fdjax.serve.lanes import FairThreads


@pytest.fixture
def free() -> threading.Event:
    return threading.Event()


@pytest.fixture
def threads(free: threading.Event) -> Iterator[FairThreads]:
    """One, which is held up until it is free."""
    one = FairThreads(1, "fdjax-test")
    begun = threading.Event()
    one.submit(lambda: (begun.set(), free.wait(30)), owner="first")
    assert begun.wait(30)
    yield one
    free.set()
    one.close()


def test_least_rank_first_and_owners_in_turns(
    threads: FairThreads, free: threading.Event
):
    done: list[str] = []
    for name, rank in (("late", 2.0), ("soon", 1.0)):
        threads.submit(lambda name=name: done.append(name), owner="a", rank=rank)
    last = threads.submit(lambda: done.append("b"), owner="a", rank=3.0)
    free.set()
    last.result(30)
    assert done == ["soon", "late", "b"]


def test_results_and_errors(threads: FairThreads, free: threading.Event):
    one, other = threads.submit(lambda: 3), threads.submit(lambda: 1 // 0)
    free.set()
    assert one.result(30) == 3
    assert isinstance(other.exception(30), ZeroDivisionError)


def test_what_is_cancelled_is_not_done(threads: FairThreads, free: threading.Event):
    done: list[str] = []
    one = threads.submit(lambda: done.append("one"))
    other = threads.submit(lambda: done.append("other"))
    assert one.cancel()
    free.set()
    other.result(30)
    assert done == ["other"]


def test_closed(threads: FairThreads, free: threading.Event):
    waiting = threads.submit(lambda: None)
    threads.close()
    with pytest.raises(CancelledError):
        waiting.result(30)
    with pytest.raises(RuntimeError):
        threads.submit(lambda: None)
    free.set()
