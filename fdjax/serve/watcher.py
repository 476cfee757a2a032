"""`Watcher`: who is told what an engine's thread does."""

from typing import Protocol

from fdjax.errors import EngineDeadError


class Watcher(Protocol):
    """Is told on the engine's thread, which waits for it."""

    def went_round(self, num_made: int) -> None:
        """What was asked for is done, and a step if there was work for one.

        Args:
            num_made: tokens that the engine has made until now.
        """
        ...

    def ended(self, error: EngineDeadError) -> None:
        """The thread ends, and takes no more calls.

        Args:
            error: what it tells whoever calls it from now on.
        """
        ...
