"""How often Python's collector looks through which objects, at a start and after it."""

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

# A step of 256 rows makes some thousands that live until their tokens are read. With
# Python's own 700 many were looked through while they did, and so counted as old, until
# all old ones were: the prompts' tokens, too. 512 conversations on 256 rows, without a
# model: 100 to 125 ms of collecting in 11 s, one of them 12 to 30; with this none.
SERVED_OBJECTS = 20_000


@contextmanager
def seldom_collected(new_objects: int = NEW_OBJECTS) -> Generator[None]:
    """Inside a `with` block: the collector waits for so many new objects.

    Whoever has it wait for more inside (`settle`) does so for longer.
    """
    before = gc.get_threshold()
    wanted = max(before[0], new_objects)
    gc.set_threshold(wanted, *before[1:])
    try:
        yield
    finally:
        if gc.get_threshold()[0] <= wanted:
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


def settle() -> None:
    """Before a process serves: what is here stays, and is looked through no more.

    New objects are looked through seldom from now on. Whatever thread that happens in,
    all others stand still, and a device waits for its next launch.
    """
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], SERVED_OBJECTS), *before[1:])
