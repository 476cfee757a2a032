"""Who may take values off the device, and wait for it: whoever asks, and no other."""

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import Any

import jax
import pytest
from jax._src.array import ArrayImpl
from jax._src.lib import guard_lib

from fdjax.engine.awaited import Awaited
from fdjax.engine.awaited_beams import AwaitedBeams
from fdjax.engine.engine import Engine
from fdjax.engine.results import AwaitedTokens
from fdjax.generate.softmax_counts import SoftmaxCounts

# All other ways lead through these: int(), tolist(), `if x`, repr, device_get and
# __array__ through `_value`; on a CPU np.asarray and item() through the buffer, and
# through __array__ where that is refused. The guard of transfers hears of none there.
_METHODS = ("__buffer__", "__dlpack__", "block_until_ready")


class _Guard:
    """Whether somebody has asked for values, and which launches are none to ask for.

    Attributes:
        stepping: the engine is within a step.
        launched: the arrays of what this step has launched.
    """

    def __init__(self) -> None:
        self.stepping = False
        self.launched: list[object] = []
        self._asked = False

    def refuse(self, way: Callable[..., Any], name: str) -> Callable[..., Any]:
        """`way`, for those who have asked."""

        def taken(*operands: Any, **options: Any) -> Any:
            assert self._asked, f"the host waits for the device, unasked: {name}"
            return way(*operands, **options)

        return taken

    def ask(self, reads: Callable[..., Any], *, in_step: bool) -> Callable[..., Any]:
        """`reads`, which may take values; in a step, or else only between steps."""

        def asked(source: object, **options: Any) -> Any:
            assert in_step or not self.stepping, f"{reads.__name__} within a step"
            arrays = source.arrays if isinstance(source, Awaited) else None
            own = any(arrays is one for one in self.launched)
            assert not own, "a launch is read in the step it is of"
            self._asked = True
            try:
                found = reads(source, **options)
                return iter([*found]) if isinstance(found, Iterator) else found
            finally:
                self._asked = False

        return asked

    def step(self, step: Callable[[Engine], Any]) -> Callable[[Engine], Any]:
        """`step`, in which launches are noted."""

        def noted(engine: Engine) -> Any:
            self.stepping, self.launched = True, []
            try:
                return step(engine)
            finally:
                self.stepping, self.launched = False, []

        return noted

    def start_copy(self, start: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """`start`, by which launches are known; searches rebuild the objects."""

        def noted(launch: Awaited) -> Any:
            self.launched.append(launch.arrays)
            return start(launch)

        return noted


def _copy_to_host_async(copy: Callable[[Any], None]) -> Callable[[Any], None]:
    """What a GPU does: to the guard of transfers, copies ahead are implicit ones."""

    def guarded(array: Any) -> None:
        level = jax.config.jax_transfer_guard_device_to_host  # pyright: ignore[reportAttributeAccessIssue]  (made at run time)
        explicit = guard_lib.thread_local_state().explicit_device_get
        assert explicit or level == "allow", f"a copy to the host where that is {level}"
        copy(array)

    return guarded


@contextlib.contextmanager
def no_host_reads() -> Generator[None]:
    """Fails where an array becomes a host value, or is waited for, unasked.

    To ask is: in a step of the engine, to read a launch, though never one that the step
    itself has made; between steps, to wait for a launch, or to read the counts of
    the softmax. Beside that no transfer may happen that is not explicit.
    """
    guard = _Guard()
    with pytest.MonkeyPatch.context() as patch, jax.transfer_guard("disallow"):
        value: Any = ArrayImpl.__dict__["_value"]
        taken = property(guard.refuse(value.fget, "_value"))
        patch.setattr(ArrayImpl, "_value", taken)
        for name in _METHODS:
            refused = guard.refuse(getattr(ArrayImpl, name), name)
            patch.setattr(ArrayImpl, name, refused)
        wait = guard.refuse(jax.block_until_ready, "jax.block_until_ready")
        patch.setattr(jax, "block_until_ready", wait)
        copy = _copy_to_host_async(ArrayImpl.copy_to_host_async)
        patch.setattr(ArrayImpl, "copy_to_host_async", copy)
        patch.setattr(Engine, "step", guard.step(Engine.step))
        for kind in (AwaitedTokens, AwaitedBeams):
            patch.setattr(kind, "start_copy", guard.start_copy(kind.start_copy))
            patch.setattr(kind, "read", guard.ask(kind.read, in_step=True))
            patch.setattr(kind, "wait", guard.ask(kind.wait, in_step=False))
        counts = guard.ask(SoftmaxCounts.read, in_step=False)
        patch.setattr(SoftmaxCounts, "read", counts)
        yield
