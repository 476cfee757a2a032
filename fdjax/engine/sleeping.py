"""`Sleeping`: what an engine gives back of the device while nobody asks."""

from concurrent.futures import Future
from typing import Literal

import jax
import numpy as np

from fdjax.engine.executor import Executor
from fdjax.errors import ConfigError, RequestError
from fdjax.generate.checks import shown
from fdjax.memory.pages import PagePool
from fdjax.models.decoder import Decoder

type Resource = Literal["weights", "kv_cache"]

RESOURCES: tuple[Resource, ...] = ("weights", "kv_cache")


class Sleeping:
    """Gives back the KV array and the weights, and takes them again.

    Programs stay compiled: neither takes long. An engine of a model that is not loaded
    sleeps from the start.

    Args:
        executor: whose they are; it has no work while it sleeps.
        pool: its pages.
    """

    def __init__(self, executor: Executor, pool: PagePool) -> None:
        self._executor = executor
        self._pool = pool
        self._missing: set[Resource] = set()
        if not executor.programs.has_weights:
            self._missing = {*RESOURCES}
        self._kept: Decoder | None = None

    @property
    def missing(self) -> frozenset[Resource]:
        """What was given back, and is not there again."""
        return frozenset(self._missing)

    @property
    def needs_weights(self) -> bool:
        """They are neither on the device nor kept by the host."""
        return "weights" in self._missing and self._kept is None

    def check(self) -> None:
        """Refuses requests while anything is missing.

        Raises:
            RequestError: the engine sleeps.
        """
        if self._missing:
            raise RequestError(
                "the model sleeps, and its "
                f"{' and '.join(sorted(self._missing))} are not on the device; call "
                "wake_up() first"
            )

    def sleep(self, level: int) -> None:
        """Gives both back.

        Args:
            level: 1 keeps a copy of the weights in the host's memory, 2 none.

        Raises:
            ConfigError: it is another number.
        """
        if isinstance(level, bool) or level not in (1, 2):
            raise ConfigError(f"level is {shown(level)}; use 1 or 2")
        if "weights" not in self._missing:
            programs = self._executor.programs
            if level == 1:
                self._kept = jax.tree.map(_copied, programs.model)
            for leaf in jax.tree.leaves(programs.model):
                leaf.delete()
        elif level == 2:
            self._kept = None
        if "kv_cache" not in self._missing:
            self._pool.forget()
            self._executor.kv.array.delete()
        self._missing = {*RESOURCES}

    def take_weights(self, model: Decoder | None = None) -> None:
        """Brings the weights back.

        Args:
            model: what has them, where the host has kept none.

        Raises:
            ConfigError: it is another model, or there is none.
        """
        model = model or self._kept
        if model is None:
            raise ConfigError(
                "the weights were given back and nobody kept them; give others with "
                "update_weights"
            )
        self._executor.programs.update(model)
        self._kept = None
        self._missing.discard("weights")

    def take_kv(self) -> None:
        """Allocates the KV array anew, if it is missing."""
        if "kv_cache" in self._missing:
            self._executor.take_kv()
            self._missing.discard("kv_cache")

    def take(self, weights: Future[Decoder] | None, *, wait: bool = False) -> bool:
        """Takes both, once weights are there that another thread loads.

        Args:
            weights: what has them; `None` where nothing is missing.
            wait: until they are there.

        Returns:
            Whether nothing is missing.

        Raises:
            Exception: they could not be loaded.
        """
        if self._missing and weights is not None and (wait or weights.done()):
            self.take_weights(weights.result())
            self.take_kv()
        return not self._missing


def _copied(leaf: jax.Array) -> np.ndarray:
    """On a CPU, what the device gives may be its own memory."""
    return np.array(leaf)
