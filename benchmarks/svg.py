"""Small drawings in SVG that follow the reader's colours, light or dark.

They bring their own background, because a page need not follow the same colours.
Written by hand, because its bytes must not depend on a library's version or fonts.
"""

from collections.abc import Iterable, Sequence
from html import escape

WIDTH = 760
"""Of a drawing, within its margins."""
_MARGIN = 14

_STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328 }
.title { font-size: 15px; font-weight: 600 }
.faint { fill: #59636e; font-size: 12px }
.on { fill: #ffffff }
.paper { fill: #ffffff }
.grid { stroke: #d1d9e0; stroke-width: 1 }
.a { fill: #0969da } .b { fill: #8c959f } .c { fill: #1a7f37 } .d { fill: #9a6700 }
.line { fill: none; stroke-width: 2 }
.line.a { stroke: #0969da } .line.b { stroke: #8c959f } .line.c { stroke: #1a7f37 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .faint { fill: #9198a1 }
  .on { fill: #0d1117 }
  .paper { fill: #0d1117 }
  .grid { stroke: #3d444d }
  .a { fill: #4493f8 } .b { fill: #7d8590 } .c { fill: #3fb950 } .d { fill: #d29922 }
  .line { fill: none }
  .line.a { stroke: #4493f8 } .line.b { stroke: #7d8590 } .line.c { stroke: #3fb950 }
}
"""


def drawing(height: int, title: str, parts: Iterable[str]) -> str:
    """A whole file; its title is read aloud instead of it."""
    body = "\n".join(parts)
    wide, high = WIDTH + 2 * _MARGIN, height + 2 * _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-_MARGIN} {-_MARGIN} '
        f'{wide} {high}" width="{wide}" height="{high}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n"
        f'<rect x="{-_MARGIN}" y="{-_MARGIN}" width="{wide}" height="{high}" rx="6" '
        f'class="paper"/>\n{body}\n</svg>\n'
    )


def text(
    x: float, y: float, words: str, *, kind: str = "", anchor: str = "start"
) -> str:
    """Words whose baseline is at `y`."""
    style = f' class="{kind}"' if kind else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>'
        f"{escape(words)}</text>"
    )


def bar(x: float, y: float, width: float, height: float, *, kind: str) -> str:
    """A filled rectangle of one of the colours `a` to `d`."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" '
        f'height="{height:.1f}" rx="2" class="{kind}"/>'
    )


def upright(x: float, top: float, bottom: float) -> str:
    """A line of the grid."""
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}" '
        'class="grid"/>'
    )


def across(y: float, left: float, right: float) -> str:
    """A line of the grid, from left to right."""
    return (
        f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}" '
        'class="grid"/>'
    )


def curve(points: Sequence[tuple[float, float]], *, kind: str) -> str:
    """Straight lines from each point to the next, in one of `a` to `c`."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" class="line {kind}"/>'


def line(points: Sequence[tuple[float, float]], *, kind: str) -> str:
    """A curve with its points."""
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" class="{kind}"/>' for x, y in points
    )
    return curve(points, kind=kind) + dots
