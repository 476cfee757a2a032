"""`PoolingParams`: what one vector is made of, of all that a model says of a text."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from fdjax.errors import RequestError
from fdjax.generate.checks import Interval, flag, integer, shown
from fdjax.generate.params import SamplingParams

POOLINGS = ("last", "mean")

_DIMENSIONS = Interval(1, 2**20)


@dataclass(frozen=True, kw_only=True)
class PoolingParams:
    """How the vector of a text is made of the hidden states of its tokens.

    Hidden states are the last layer's, after the model's last norm: what the head
    reads.

    Attributes:
        pooling: "last", the state of the last token, which has seen all others; or
            "mean" of all tokens'.
        normalize: the vector is made one unit long.
        dimensions: only so many of its first numbers, before it is made a unit long;
            `None` keeps all. It is of use with models that were trained for it.

    Raises:
        RequestError: a value has the wrong type or is out of range.
    """

    # Run-time type checkers would refuse what `__post_init__` converts or explains.
    __no_type_check__ = True

    pooling: Literal["last", "mean"] = "last"
    normalize: bool = True
    dimensions: int | None = None

    n = 1

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            names = " or ".join(map(repr, POOLINGS))
            raise RequestError(f"pooling is {shown(self.pooling)}; use {names}")
        flag("normalize", self.normalize)
        if self.dimensions is not None:
            count = integer("dimensions", self.dimensions, _DIMENSIONS)
            object.__setattr__(self, "dimensions", count)

    def samples(self) -> "list[PoolingParams]":
        """Itself: a text has one vector."""
        return [self]

    def check_width(self, hidden_size: int) -> None:
        """Refuses more numbers than the model has.

        Raises:
            RequestError: `dimensions` is more than `hidden_size`.
        """
        if self.dimensions is not None and self.dimensions > hidden_size:
            raise RequestError(
                f"dimensions is {self.dimensions}, but the model's vectors have "
                f"{hidden_size} numbers; ask for at most that many, or leave it out"
            )

    @cached_property
    def sampling(self) -> SamplingParams:
        """What an engine takes in its place: nothing is drawn."""
        return SamplingParams(temperature=0.0, max_tokens=1)
