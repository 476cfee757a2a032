"""What the engine knows of grammars: which token ids may come next, and the end."""

from typing import Protocol, runtime_checkable

import numpy as np

from fdjax.generate.stopping import FinishReason


@runtime_checkable
class Matcher(Protocol):
    """Follows one output; what a token leads to may be worked out on another thread."""

    @property
    def is_ready(self) -> bool:
        """What follows the last token is known: nothing here waits."""
        ...

    @property
    def finish_reason(self) -> FinishReason:
        """`RUNNING` while more may come; waits until that is known."""
        ...

    def mask(self) -> np.ndarray:
        """Which tokens may come next, as in `fdjax.generate.masks`: never none of them.

        Waits until it is known; only while running.
        """
        ...

    def advance(self, token_id: int) -> None:
        """Takes the token that has come, which the mask allowed."""
        ...

    def fork(self) -> "Matcher":
        """One for another output that begins the same; only while it is ready."""
        ...


@runtime_checkable
class Grammar(Protocol):
    """What outputs may be."""

    def matcher(self) -> Matcher:
        """A matcher at the beginning of an output, ready and running."""
        ...
