"""`kept_free`: what programs that are traced may overwrite of a lent KV array."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_KEPT: ContextVar[int | None] = ContextVar("fdjax_kept_free", default=None)


@contextmanager
def kept_free(num_bytes: int | None) -> Generator[None]:
    """Inside a `with` block: a program that is traced and overwrites more is refused.

    Who owns the KV array keeps so much of its end free while the program runs. Should
    the two ever be worked out unlike, a start fails, and no sequence is overwritten.

    Args:
        num_bytes: at the array's end; `None`: nobody says, and nothing is refused.
    """
    before = _KEPT.set(num_bytes)
    try:
        yield
    finally:
        _KEPT.reset(before)


def check_kept(needed: int, *, num_tokens: int) -> None:
    """Refuses a call that needs more of the array's end than is kept.

    Raises:
        ValueError: it does.
    """
    kept = _KEPT.get()
    if kept is not None and needed > kept:
        raise ValueError(
            f"a call of {num_tokens} tokens overwrites {needed} bytes at the KV "
            f"array's end, and the engine keeps {kept} free: an error of fdjax; please "
            "report the model and the options"
        )
