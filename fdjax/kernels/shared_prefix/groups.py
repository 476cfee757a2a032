"""Which rows share which pages (FlashInfer, section 3.1.2: composable formats)."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fdjax.kernels.shared_prefix import table
from fdjax.kernels.shared_prefix.prefix_tree import Node, Table, prefix_tree
from fdjax.kernels.shared_prefix.table import Worth

MAX_LEVELS = 2
"""Groups that a row may belong to, one within the other: an outer and an inner one."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Rows with the same pages at the same places.

    Attributes:
        rows: of the batch; those of a group within this one follow one another.
        begin: the first token that they share; what is before is an outer group's.
        end: the token behind the last.
        level: how many groups this one lies within.
    """

    rows: tuple[int, ...]
    begin: int
    end: int
    level: int

    @property
    def saved(self) -> int:
        """Tokens that are not read because one row's read serves all."""
        return (len(self.rows) - 1) * (self.end - self.begin)


def find_groups(
    page_table: Table,
    lengths: Sequence[int],
    *,
    page_size: int,
    worth: Worth | None = None,
) -> tuple[Group, ...]:
    """The groups by which the most reads are saved; none where too few would be.

    A row's last token never belongs to a prefix: its page is the row's own.

    Args:
        page_table: pages of each row, `[B, W]`; rows of length 0 are in no group.
        lengths: of each row, this step's token included.
        page_size: `Z`.
        worth: what must be saved; `None`: what was measured of the device.

    Raises:
        ValueError: a row is longer than its pages.
    """
    width = page_table.shape[1]
    if (longest := max(lengths, default=0)) > width * page_size:
        raise ValueError(
            f"row {[*lengths].index(longest)} has {longest} tokens, and its {width} "
            f"pages of {page_size} have room for {width * page_size}; give it more"
        )
    whole = np.maximum(np.asarray(lengths, np.int64) - 1, 0) // page_size
    worth = table.PART.find() if worth is None else worth
    nodes = prefix_tree(page_table, whole)
    choice = _Choice(nodes, page_size, worth.of_group)
    return choice.groups() if choice.saved >= worth.of_batch else ()


class _Choice:
    """Which nodes of a tree are groups.

    What an inner group saves depends on where the outer one ends, and that is where one
    of the nodes above it does. So each node has a vector of what the inner groups below
    it, or itself, save by each of these: one pass from the leaves up.

    Args:
        nodes: of the tree, each behind those below it.
        page_size: `Z`.
        least: tokens that a group must save.
    """

    def __init__(self, nodes: Sequence[Node], page_size: int, least: int) -> None:
        self._nodes = nodes
        self._page_size = page_size
        self._least = least
        self._inner: dict[Node, np.ndarray] = {}
        self._best: dict[Node, int] = {}
        self._outer: set[Node] = set()
        for node in nodes:
            self._weigh(node)

    @property
    def saved(self) -> int:
        """Tokens that are not read, all groups together."""
        return self._best[self._nodes[-1]]

    def _weigh(self, node: Node) -> None:
        others = node.num_rows - 1
        kept = [self._inner[child] for child in node.children]
        alone = others * (node.end - node.above) * self._page_size
        alone[alone < self._least] = 0
        self._inner[node] = np.maximum(alone, sum(inner[:-1] for inner in kept))
        own = others * node.end * self._page_size
        together = own + sum(int(inner[-1]) for inner in kept)
        apart = sum(self._best[child] for child in node.children)
        if node.end and own >= self._least and together > apart:
            self._outer.add(node)
        self._best[node] = max(together, apart) if node in self._outer else apart

    def _is_inner(self, node: Node, outer: Node) -> bool:
        """Whether a node below an outer group is a group of its own."""
        own = (node.num_rows - 1) * (node.end - outer.end) * self._page_size
        below = sum(int(self._inner[child][outer.depth]) for child in node.children)
        return own >= self._least and own > below

    def _levels(self) -> dict[Node, tuple[int, Node]]:
        """The groups: how many others each lies within, and the outermost of them."""
        within: dict[Node, tuple[int, Node]] = {}
        found: dict[Node, tuple[int, Node]] = {}
        for node in reversed(self._nodes):
            level, outer = within.get(node.parent or node, (0, node))
            is_group = (
                node in self._outer
                if level == 0
                else level < MAX_LEVELS and self._is_inner(node, outer)
            )
            if is_group:
                outer = node if level == 0 else outer
                found[node] = level, outer
                level += 1
            if level:
                within[node] = level, outer
        return found

    def groups(self) -> tuple[Group, ...]:
        """In the order of their rows, an outer one before those within it."""
        levels = self._levels()
        rows: dict[Node, list[int]] = {}
        groups: dict[Node, list[Group]] = {}
        for node in self._nodes:
            parts = [([row], []) for row in node.rows]
            parts += [(rows.pop(child), groups.pop(child)) for child in node.children]
            parts.sort(key=lambda part: min(part[0]))
            rows[node] = [row for order, _ in parts for row in order]
            groups[node] = [group for _, within in parts for group in within]
            if node in levels:
                level, outer = levels[node]
                begin = outer.end if level else 0
                span = begin * self._page_size, node.end * self._page_size
                groups[node].insert(0, Group(tuple(rows[node]), *span, level))
        return tuple(groups[self._nodes[-1]])
