"""The page table of an engine's rows, as its programs find it."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fdjax.engine.buckets import Buckets
from fdjax.engine.device_table import NUM_PLACES, DeviceTable
from fdjax.engine.engine import Engine
from fdjax.generate.row_pages import RowPages

NUM_ROWS, WIDTH = 4, 2 * NUM_PLACES
ABSENT = 16  # as many pages as the engine has
BUCKETS = Buckets(rows=(2, NUM_ROWS), prefills=(16,), widths=(64, WIDTH))


class There:
    """A table, and the progress that has it on the device."""

    def __init__(self, engine: Engine) -> None:
        self.table = DeviceTable(engine.executor.programs, BUCKETS, ABSENT)
        self.progress = dataclasses.replace(
            engine.executor.progress, table=jnp.asarray(self.table.first(NUM_ROWS))
        )

    def pages(
        self, pages: Mapping[int, list[int]], *, num_rows: int
    ) -> list[list[int]]:
        """What a call of so many rows finds."""
        self.progress, changes, counts = self.table.turn(
            self.progress, pages, num_rows=num_rows, room=NUM_ROWS
        )
        call = RowPages(jnp.asarray(changes), jnp.asarray(counts), WIDTH)
        assert call.changes.shape == (3, NUM_ROWS), "the same program, whatever changes"
        self.progress, found = self.progress.with_pages(call)
        assert len(found) == num_rows
        return [row[row < ABSENT].tolist() for row in np.asarray(found)]


@pytest.fixture
def there(engine: Engine) -> There:
    return There(engine)


def test_calls_find_what_rows_have(there: There):
    random = np.random.default_rng(0)
    pages: dict[int, list[int]] = {}
    for _ in range(24):
        row = int(random.integers(NUM_ROWS))
        if random.random() < 0.4 or row not in pages:
            pages[row] = []  # another sequence
        most = 3 if random.random() < 0.5 else WIDTH  # a token more, or a prompt
        room = min(WIDTH - len(pages[row]), most)
        pages[row] += random.integers(0, ABSENT, random.integers(room + 1)).tolist()
        called = {one: held for one, held in pages.items() if random.random() < 0.8}
        expected = [called.get(one, []) for one in range(NUM_ROWS)]
        assert there.pages(called, num_rows=NUM_ROWS) == expected
    there.pages(pages, num_rows=NUM_ROWS)
    np.testing.assert_array_equal(there.table.first(NUM_ROWS), there.progress.table)


def test_rows_behind_those_of_a_call_keep_their_pages(there: There):
    last, first = [1, 2], [3]
    there.pages({NUM_ROWS - 1: last}, num_rows=NUM_ROWS)
    assert there.pages({0: first}, num_rows=2) == [[3], []]
    expected = [[3], [], [], [1, 2]]
    assert there.pages({0: first, NUM_ROWS - 1: last}, num_rows=NUM_ROWS) == expected


def test_progress_without_a_table_is_refused(there: There):
    bare = dataclasses.replace(there.progress, table=None)
    pages = RowPages.all_of(jnp.zeros((1, 1), jnp.int32))
    with pytest.raises(ValueError, match="no table"):
        jax.eval_shape(bare.with_pages, pages)
