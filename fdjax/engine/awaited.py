"""Arrays on their way from the device to the host."""

from abc import ABC, abstractmethod
from typing import Any

import jax


def copy_ahead(tree: Any) -> None:
    """Asks for copies of arrays to the host, without waiting for them.

    A guard of transfers takes such copies for implicit ones; these are meant.
    """
    with jax.transfer_guard_device_to_host("allow"):
        for leaf in jax.tree.leaves(tree):
            leaf.copy_to_host_async()


class Awaited(ABC):
    """What a launch will tell: an object with arrays that somebody reads later."""

    @property
    @abstractmethod
    def arrays(self) -> Any:
        """What is on its way, as a tree."""

    def start_copy[T: "Awaited"](self: T) -> T:
        """Asks for the copy to the host, without waiting for it."""
        copy_ahead(self.arrays)
        return self

    @property
    def is_ready(self) -> bool:
        """All of it is there."""
        return all(leaf.is_ready() for leaf in jax.tree.leaves(self.arrays))

    def wait(self) -> None:
        """Waits for all of it."""
        jax.block_until_ready(self.arrays)
