"""Rows as a tree: which of them begin with the same pages, and how far."""

from typing import Any

import numpy as np

type Table = np.ndarray[Any, np.dtype[np.int32]]


class Node:
    """Rows that begin with the same pages.

    Attributes:
        end: the first page that not all of them share.
        rows: those that share no more with any other.
        children: those of the others that share more; each of several rows.
        parent: `None` for the root.
        num_rows: of this node and those below it.
        above: ends of the nodes from the root to the parent.
    """

    def __init__(self, end: int) -> None:
        self.end = end
        self.rows: list[int] = []
        self.children: list[Node] = []
        self.parent: Node | None = None
        self.num_rows = 0
        self.above = np.zeros(0, np.int64)

    @property
    def depth(self) -> int:
        """How many nodes lie above."""
        return len(self.above)

    def add(self, child: "Node") -> None:
        """Puts a node below this one."""
        child.parent = self
        self.children.append(child)
        self.num_rows += child.num_rows

    def add_row(self, row: int) -> None:
        """Puts a row into this node."""
        self.rows.append(row)
        self.num_rows += 1


def prefix_tree(page_table: Table, whole: np.ndarray) -> list[Node]:
    """The nodes of the tree of all rows, each behind those below it, the root last.

    Rows that begin as no other does are in none. It takes about as long as sorting the
    rows, however deep the tree is: a step waits for it.

    Args:
        page_table: pages of each row, `[B, W]`.
        whole: pages of each row that others may share, at most `W`.
    """
    rows, alike = _sorted(page_table, whole)
    nodes, path = list[Node](), [Node(0)]
    for row, shared in zip(rows, alike, strict=True):
        if shared > path[-1].end:
            path.append(Node(shared))
        path[-1].add_row(row)
        while path[-1].end > shared:  # the next row shares less: these have all theirs
            nodes.append(node := path.pop())
            if path[-1].end < shared:
                path.append(Node(shared))
            path[-1].add(node)
    nodes += path  # the root alone: the last row shares nothing with a next one
    for node in reversed(nodes):
        if (parent := node.parent) is not None:
            node.above = np.append(parent.above, parent.end)
    return nodes


def _sorted(page_table: Table, whole: np.ndarray) -> tuple[list[int], list[int]]:
    """Rows that begin as others do, alike ones side by side.

    Returns:
        The rows, and how many pages each shares with the next one; 0 for the last.
    """
    candidates = np.flatnonzero(whole)
    if not len(candidates):  # a table may have no pages at all then
        return [], []
    first, counts = np.unique(page_table[candidates, 0], return_counts=True)
    often = np.isin(page_table[candidates, 0], first[counts > 1])
    # Any order will do in which those with the same beginning are neighbours.
    rows = sorted(
        candidates[often].tolist(),
        key=lambda row: page_table[row, : whole[row]].tobytes(),
    )
    if not rows:
        return [], []
    most = np.minimum(whole[rows[1:]], whole[rows[:-1]])
    pages = page_table[rows, : most.max(initial=0)]
    differ = pages[1:] != pages[:-1]
    differ |= np.arange(pages.shape[1]) >= most[:, None]
    ends = np.where(differ.any(axis=1), differ.argmax(axis=1), most)
    return rows, [*ends.tolist(), 0]
