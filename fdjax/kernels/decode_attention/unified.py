"""The unified maximum of the asynchronous softmax, and the range where it is exact."""

import dataclasses
import math

# exp(60) times 2^25 tokens times float16's largest value is below float32's largest,
# and a weight below float32's smallest normal number is below 2e-12 of the largest one.
LIMIT = 60.0


@dataclasses.dataclass(frozen=True)
class SchemeAttributes:
    """A `UnifiedMax`, or none, as handlers are told it."""

    unified: bool
    phi: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class UnifiedMax:
    """Softmax weights are `exp(score - phi)` (FlashDecoding++Next, section III).

    A query head of a row keeps its result where its largest score lies strictly between
    `phi + low` and `phi + high`; otherwise it is computed again with its own maximum.
    Of prompts the CUDA kernel does not seek the largest score. It knows the sum of the
    weights, and so between what it lies: of `n` weights with the sum `l`, between
    `phi + log(l) - log(n)` and `phi + log(l)`. Where these two are not within the
    bounds it computes again, so at times what would have been exact.

    Attributes:
        phi: the constant all exponents are relative to.
        low: `a` of the paper.
        high: `b` of the paper.

    Raises:
        ValueError: `phi` is not finite, or `low` and `high` are not in order, or leave
            -60 to 60, where float32 holds every sum.
    """

    phi: float
    low: float
    high: float

    @staticmethod
    def read(text: str) -> "UnifiedMax | None":
        """From `PHI,LOW,HIGH`; `None` where the text is something else.

        Raises:
            ValueError: as above.
        """
        try:
            phi, low, high = map(float, text.split(","))
        except ValueError:
            return None
        return UnifiedMax(phi, low, high)

    @staticmethod
    def attributes(unified: "UnifiedMax | None") -> SchemeAttributes:
        """What handlers are told; without one, of what they do not look at."""
        some = unified or UnifiedMax(0.0, -1.0, 1.0)
        numbers = map(float, (some.phi, some.low, some.high))
        return SchemeAttributes(unified is not None, *numbers)

    def __post_init__(self) -> None:
        if not math.isfinite(self.phi):
            raise ValueError(f"UnifiedMax: phi is {self.phi}; it must be finite")
        if not -LIMIT <= self.low < self.high <= LIMIT:
            raise ValueError(
                f"UnifiedMax: low is {self.low} and high {self.high}; they must be in "
                f"order and within -{LIMIT:g} to {LIMIT:g}"
            )
