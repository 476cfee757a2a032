"""Page tables of rows that come and go, as a call reads them."""

import jax.numpy as jnp
import numpy as np

from fdjax.generate.row_pages import RowPages, place

TABLE = jnp.asarray([[0, 1, 2], [3, 4, 5], [6, 7, 8]], jnp.int32)
NOTHING = jnp.zeros((3, 0), jnp.int32)


def test_pages_behind_a_rows_own_are_absent():
    counts = jnp.asarray([2, 0], jnp.int32)
    wide = RowPages(NOTHING, counts, 3).page_table(TABLE, absent=9)
    narrow = RowPages(NOTHING, counts, 1).page_table(TABLE, absent=9)
    assert wide.tolist() == [[0, 1, 9], [9, 9, 9]]
    assert narrow.tolist() == [[0], [9]]


def test_all_pages_of_a_whole_table_count():
    pages = RowPages.all_of(TABLE)
    np.testing.assert_array_equal(pages.page_table(TABLE, absent=9), TABLE)
    np.testing.assert_array_equal(place(TABLE, pages.changes), TABLE)


def test_changes_of_rows_that_do_not_exist_are_dropped():
    changes = jnp.asarray([[1, 3, 0], [2, 0, 0], [4, 5, 6]], jnp.int32)
    expected = np.array(TABLE)
    expected[1, 2], expected[0, 0] = 4, 6
    np.testing.assert_array_equal(place(TABLE, changes), expected)
