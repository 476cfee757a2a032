"""How often Python's collector looks through which objects, while a program starts."""

import gc
from collections.abc import Generator
from contextlib import contextmanager

# Importing and tracing make many objects and few cycles. With Python's own 700, a fifth
# of tracing all programs of Llama-3-8B was collecting; with this every program is still
# followed by a collection or two.
NEW_OBJECTS = 5000


@contextmanager
def seldom_collected() -> Generator[None]:
    """Inside a `with` block: the collector waits for more new objects."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], NEW_OBJECTS), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def old_objects_apart() -> Generator[None]:
    """Likewise, and it looks through new objects alone.

    Tracing makes so many that it would look through all there are every few programs,
    which takes as long as to trace one. It goes on, as what a call leaves behind may
    hold the device's memory.
    """
    with seldom_collected():
        if gc.get_freeze_count():  # somebody else has set them apart, for longer
            yield
            return
        gc.freeze()
        try:
            yield
        finally:
            gc.unfreeze()
