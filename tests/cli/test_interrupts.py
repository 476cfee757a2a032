"""A Ctrl-C that something swallows ends a start all the same."""

import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from fdjax.cli import interrupts


@pytest.fixture(autouse=True)
def pythons_own() -> Iterator[None]:
    """Its handler, also where whoever runs the tests has Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_what_was_swallowed_is_raised_at_the_end():
    reached = False
    with pytest.raises(KeyboardInterrupt), interrupts.kept():
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        reached = True
    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_became_another_error_is_an_interrupt():
    with pytest.raises(KeyboardInterrupt), interrupts.kept():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            raise ImportError("while an extension is initialised") from error


def test_it_comes_at_once_and_other_errors_are_themselves():
    with pytest.raises(KeyboardInterrupt), interrupts.kept():
        signal.raise_signal(signal.SIGINT)
        pytest.fail("not reached")
    with pytest.raises(ImportError), interrupts.kept():
        raise ImportError
    with interrupts.kept():
        pass


def test_who_ignores_it_goes_on():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts.kept():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
