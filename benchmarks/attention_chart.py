"""The picture of attention: rows in pages, two layouts of a page, and a plan."""

from collections.abc import Iterator, Sequence

from benchmarks.svg import WIDTH, bar, drawing, text
from fdjax.kernels.attention_plan import Item, Plan, make_plan, plan_shape

TITLE = "Rows in pages, and a plan that shares them out"
PAGES = 9
"""Of the array that is drawn."""
TABLE = ((2, 5, 0), (2, 5, 7, 1), (4,))
"""Pages of three rows, of which two begin with the same ones."""
LENGTHS = (200,) * 6 + (700, 700, 4000)
"""Tokens of the rows that are planned."""
KV_HEADS = 2
CLUSTERS = 8
_BAR = 18
_CELL = 30
_KEYS = ("K0", "K1")
_VALUES = ("V0", "V1")
_TOKENS = 3  # of a page, that are drawn


def chart() -> str:
    """The whole picture."""
    return drawing(560, TITLE, _parts(_plan()))


def _plan() -> Plan:
    shape = plan_shape(len(LENGTHS), KV_HEADS, slots=CLUSTERS, heads=KV_HEADS)
    return make_plan(LENGTHS, shape, room=max(LENGTHS))


def _parts(plan: Plan) -> Iterator[str]:
    yield text(0, 14, TITLE, kind="title")
    yield from _pages(44)
    yield from _layouts(160)
    yield from _rows(276)
    yield from _clusters(276, plan)


def _pages(top: float) -> Iterator[str]:
    """Three rows of a page table, and whose the pages of the array are."""
    yield text(0, top, "Page table: pages of each row, in order")
    whose: dict[int, str] = {}
    for row, (pages, kind) in enumerate(zip(TABLE, "acd", strict=True)):
        y = top + 12 + row * (_BAR + 6)
        yield text(0, y + 13, f"row {row}", kind="faint")
        for place, page in enumerate(pages):
            shared = sum(page in others for others in TABLE) > 1
            whose[page] = "b" if shared else kind
            yield _cell(50 + place * (_CELL + 4), y, str(page), whose[page])
    x = WIDTH / 2
    yield text(x, top, "The array: pages in any order")
    for page in range(PAGES):
        at = x + page * (_CELL + 8)
        if page in whose:
            yield _cell(at, top + 12, "", whose[page], width=_CELL + 4)
        yield text(at + 17, top + 48, str(page), kind="faint", anchor="middle")
    yield text(x, top + 74, "grey: shared by two rows; blank: free", kind="faint")


def _layouts(top: float) -> Iterator[str]:
    """The first cells of a page, for two key/value heads."""
    major = [*_KEYS * _TOKENS, "...", *_VALUES * _TOKENS, "..."]
    pairs = [name for pair in zip(_KEYS, _VALUES, strict=True) for name in pair]
    told = "A page, page-major: of each layer the keys of all tokens, then the values"
    yield text(0, top, told)
    for place, name in enumerate(major):
        yield _value(place * (_CELL + 4), top + 10, name)
    told = "A page, interleaved: of each token every head's key beside its value"
    yield text(0, top + 54, told)
    for place, name in enumerate([*pairs * _TOKENS, "..."]):
        yield _value(place * (_CELL + 4), top + 64, name)


def _value(x: float, y: float, name: str) -> str:
    if name == "...":
        return text(x + 4, y + 13, name, kind="faint")
    return _cell(x, y, name, "a" if name in _KEYS else "c")


def _rows(top: float) -> Iterator[str]:
    """How long each row is."""
    yield text(0, top, "Rows: tokens of each")
    scale = 250 / max(LENGTHS)
    for row, length in enumerate(LENGTHS):
        y = top + 12 + row * (_BAR + 8)
        yield text(0, y + 13, f"row {row}", kind="faint")
        kind = "d" if length == max(LENGTHS) else "a"
        yield bar(50, y, length * scale, _BAR, kind=kind)
        if length < max(LENGTHS):
            yield text(56 + length * scale, y + 13, f"{length:,}", kind="faint")
        else:
            yield text(294, y + 13, f"{length:,}", kind="on", anchor="end")
    told = f"{KV_HEADS} key/value heads each; the long row is cut"
    yield text(0, top + 12 + len(LENGTHS) * (_BAR + 8) + 14, told, kind="faint")


def _clusters(top: float, plan: Plan) -> Iterator[str]:
    """What each cluster does, one item after the other."""
    x, taken = WIDTH / 2, _taken(plan)
    most = max(sum(item.cost for item in items) for items in taken)
    scale = (WIDTH / 2 - 72) / most
    yield text(x, top, "Plan: items of each cluster of blocks")
    for cluster, items in enumerate(taken):
        y, at = top + 12 + cluster * (_BAR + 8), x + 72.0
        yield text(x, y + 13, f"cluster {cluster}", kind="faint")
        for item in items:
            width = item.cost * scale - 2
            yield _cell(at, y, _told(item), _kind(item), width=width)
            at += item.cost * scale
    loads = plan.loads()
    told = f"the busiest has {loads.max() / loads.mean():.2f} of the mean"
    yield text(x, top + 12 + CLUSTERS * (_BAR + 8) + 14, told, kind="faint")


def _taken(plan: Plan) -> Sequence[Sequence[Item]]:
    """Items by who takes them: there and back again."""
    taken: list[list[Item]] = [[] for _ in range(CLUSTERS)]
    for place, item in enumerate(plan.items):
        turn, slot = divmod(place, CLUSTERS)
        taken[slot if turn % 2 == 0 else CLUSTERS - 1 - slot].append(item)
    return taken


def _kind(item: Item) -> str:
    return "a" if item.pieces == 1 else "d"


def _told(item: Item) -> str:
    if item.pieces == 1:
        return f"row {item.row}"
    return f"row {item.row}, head {item.kv_head}, {item.piece + 1} of {item.pieces}"


def _cell(x: float, y: float, words: str, kind: str, *, width: float = _CELL) -> str:
    middle = text(x + width / 2, y + 13, words, kind="on", anchor="middle")
    return bar(x, y, width, _BAR, kind=kind) + (middle if words else "")
