"""Where a page keeps the keys and values of its tokens: four strides."""

import dataclasses
import functools
import itertools
from typing import NamedTuple

from fdjax.kernels.paged.integers import whole_number


@dataclasses.dataclass(frozen=True)
class PageLayout:
    """How a page is laid out; static. All strides are in elements.

    A page is one block, and its layers, if it has several, are equal parts of it. The
    `head_dim` elements of a head are neighbours.

    Attributes:
        num_layers: layers that a page holds, `L`.
        page_size: tokens that a page holds, `Z`.
        num_kv_heads: key/value heads, `Hkv`.
        head_dim: size of a head, `D`.
        page_stride: from a page to the next.
        token_stride: from a token to the next.
        head_stride: from a head to the next.
        value_stride: from a key to its value.

    Raises:
        ValueError: the strides do not hold what they should, or a number is below 1.
        TypeError: a number is not whole.
    """

    num_layers: int
    page_size: int
    num_kv_heads: int
    head_dim: int
    page_stride: int
    token_stride: int
    head_stride: int
    value_stride: int

    def __post_init__(self) -> None:
        for name, number in vars(self).items():
            whole_number("PageLayout", name, number, least=1)
        layers, rest = divmod(self.page_stride, self.num_layers)
        if rest:
            raise ValueError(
                f"PageLayout: a page of {self.page_stride} elements has "
                f"{self.num_layers} layers; they must be of equal size"
            )
        room = layers
        for axis in self.axes:
            if room % axis.stride or room // axis.stride < axis.size:
                raise ValueError(
                    f"PageLayout: {axis.size} {axis.name} at a distance of "
                    f"{axis.stride} do not fill a part of {room} elements evenly; "
                    "each stride must be a multiple of what lies within"
                )
            room = axis.stride
        if room < self.head_dim:
            raise ValueError(
                f"PageLayout: the smallest stride is {room}; a head has "
                f"{self.head_dim} elements, which every stride must have room for"
            )

    @functools.cached_property
    def axes(self) -> tuple["Axis", ...]:
        """What a layer of a page counts beside the elements of a head, outermost first.

        In the order of page-major arrays where strides leave it open.
        """
        axes = (
            Axis("halves", 2, self.value_stride),
            Axis("tokens", self.page_size, self.token_stride),
            Axis("heads", self.num_kv_heads, self.head_stride),
        )
        return tuple(sorted(axes, key=lambda a: (a.stride, a.size), reverse=True))

    @property
    def shape(self) -> tuple[int, ...]:
        """A page as an array: layers, then `axes` as far as strides reach, then a head.

        What strides reach may be more than there is: padding.
        """
        ends = [self.page_stride // self.num_layers, *(a.stride for a in self.axes)]
        extents = (room // inner for room, inner in itertools.pairwise(ends))
        return (self.num_layers, *extents, ends[-1])

    def place(self, name: str) -> int:
        """Of one of `axes` among them."""
        return [axis.name for axis in self.axes].index(name)

    @property
    def as_page_major(self) -> "PageLayout":
        """The page-major layout of the same sizes."""
        return page_major(
            self.num_layers, self.page_size, self.num_kv_heads, self.head_dim
        )

    @property
    def is_interleaved(self) -> bool:
        """Whether it is what `interleaved` makes, of any width."""
        sizes = (self.page_size, self.num_kv_heads, self.head_dim)
        return self == interleaved(*sizes, width=self.value_stride)


class Axis(NamedTuple):
    """Something that a layer of a page has several of.

    Attributes:
        name: what it is.
        size: how many.
        stride: elements from one to the next.
    """

    name: str
    size: int
    stride: int


def page_major(
    num_layers: int, page_size: int, num_kv_heads: int, head_dim: int
) -> PageLayout:
    """Pages `[L, 2, Z, Hkv, D]`: all layers of a page, its keys, then its values."""
    token = num_kv_heads * head_dim
    return PageLayout(
        num_layers,
        page_size,
        num_kv_heads,
        head_dim,
        page_stride=num_layers * 2 * page_size * token,
        token_stride=token,
        head_stride=head_dim,
        value_stride=page_size * token,
    )


def interleaved(
    page_size: int, num_kv_heads: int, head_dim: int, *, width: int
) -> PageLayout:
    """Pages `[Z, 2 Hkv, width]` of one layer: each head's key, then its value.

    Ragged paged attention v3 has this one; `width` is `D`, padded to its alignment.
    """
    return PageLayout(
        1,
        page_size,
        num_kv_heads,
        head_dim,
        page_stride=page_size * 2 * num_kv_heads * width,
        token_stride=2 * num_kv_heads * width,
        head_stride=2 * width,
        value_stride=width,
    )
