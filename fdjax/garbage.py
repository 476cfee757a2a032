"""How often Python's collector looks through which objects, while a program starts."""

import gc
from collections.abc import Generator
from contextlib import contextmanager

# Importing and tracing make many objects and few cycles. With Python's own 700, a fifth
# of tracing all programs of Llama-3-8B was collecting; with this every program is still
# followed by a collection or two.
NEW_OBJECTS = 5000

# Of tracing, nearly all stays: to look through it is a twentieth of a start, in vain.
# What cycles it leaves hold no arrays (tests/test_garbage.py); a server's 124
# programs make some 250,000 objects.
TRACED_OBJECTS = 100_000


@contextmanager
def seldom_collected(new_objects: int = NEW_OBJECTS) -> Generator[None]:
    """Inside a `with` block: the collector waits for so many new objects."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], new_objects), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def old_objects_apart() -> Generator[None]:
    """Likewise for what is traced, and it looks through new objects alone.

    Tracing makes so many that it would look through all there are every few programs,
    which takes as long as to trace one.
    """
    with seldom_collected(TRACED_OBJECTS):
        if gc.get_freeze_count():  # somebody else has set them apart, for longer
            yield
            return
        gc.freeze()
        try:
            yield
        finally:
            gc.unfreeze()
