"""Whether an engine's thread launches in time, and what it does before each launch.

No trace is needed, which slows launches down itself: a thread of its own waits for what
each launch gives, and notes when that is there. What ran on the device has ended then,
or some tens of microseconds before.
"""

import contextlib
import functools
import gc
import itertools
import queue
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from fdjax.engine.awaited import Awaited
from fdjax.engine.engine import Engine

_JAX_CALLS = ("extend", "sample", "decode", "move", "place", "exchange", "allow")


@dataclass(eq=False)
class Launch:
    """A call of the engine's executor that computes tokens; seconds are of one clock.

    Attributes:
        begin_s: when the call began.
        return_s: when it returned: all of it is in the device's queue.
        spent_ms: the host's time since it had read tokens last, by what it was spent
            on; "jax" and "collector" lie within the others, and what an engine's thread
            holds back lies between steps.
        did: what that was for.
        end_s: when the device had done it; `None` before.
    """

    begin_s: float
    return_s: float
    spent_ms: dict[str, float]
    did: dict[str, int]
    end_s: float | None = None


@dataclass(frozen=True)
class Late:
    """A launch that found the device without work, or let it run out.

    Attributes:
        least_ms: that it waited: until the call began.
        most_ms: until the call had returned.
        launch: which.
    """

    least_ms: float
    most_ms: float
    launch: Launch

    @property
    def shown(self) -> str:
        """As a line."""
        spent = ", ".join(
            f"{name} {ms:.1f}" for name, ms in self.launch.spent_ms.items()
        )
        did = ", ".join(f"{name} {count}" for name, count in self.launch.did.items())
        return f"{self.least_ms:7.2f} to {self.most_ms:6.2f} ms late: {spent} ms; {did}"


def late(launches: Sequence[Launch]) -> list[Late]:
    """Those of launches that follow one another, the latest first."""
    found = list[Late]()
    for before, launch in itertools.pairwise(launches):
        if before.end_s is not None and before.end_s < launch.return_s:
            least_s = max(launch.begin_s - before.end_s, 0.0)
            most_s = launch.return_s - before.end_s
            found.append(Late(1e3 * least_s, 1e3 * most_s, launch))
    return sorted(found, key=lambda one: -one.most_ms)


def summary(launches: Sequence[Launch]) -> dict[str, Any]:
    """What late launches come to: shares are of the time from the first to the last."""
    if len(launches) < 2:
        return {"launches": len(launches)}
    found, host_ms = late(launches), [1e3 * s for s in _turn_s(launches)]
    whole_ms = 1e3 * (launches[-1].return_s - launches[0].return_s)
    return {
        "launches": len(launches),
        "late": len(found),
        "waiting": [
            round(sum(one.least_ms for one in found) / whole_ms, 5),
            round(sum(one.most_ms for one in found) / whole_ms, 5),
        ],
        "host_ms": [
            round(float(ms), 2) for ms in np.percentile(host_ms, [50, 90, 99, 100])
        ]
        if host_ms
        else None,
    }


def _turn_s(launches: Sequence[Launch]) -> list[float]:
    """Seconds from the end of a launch until the second next one was launched.

    Those the device has for one: it does the next one meanwhile.
    """
    pairs = zip(launches, launches[2:], strict=False)
    return [b.return_s - a.end_s for a, b in pairs if a.end_s is not None]


@dataclass
class _Spent:
    """Seconds, and what for, since tokens were read last."""

    s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    did: Counter[str] = field(default_factory=Counter[str])


class LaunchLog:
    """Notes all launches of an engine, from now on until it is closed.

    Args:
        engine: which takes no step meanwhile.

    Attributes:
        launches: so far, in order.
    """

    def __init__(self, engine: Engine) -> None:
        self.launches: list[Launch] = []
        self._engine = engine
        self._spent = _Spent()
        self._mark_s = time.perf_counter()
        self._before = self._counts()
        self._ends: queue.SimpleQueue[tuple[Launch, Awaited] | None]
        self._ends = queue.SimpleQueue()
        self._waiter = threading.Thread(target=self._note_ends, daemon=True)
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Begins."""
        executor = self._engine.executor
        self._wrap(self._engine, "step", self._step)
        self._wrap(executor, "read", self._read)
        for name in ("extend", "decode", "search"):
            self._wrap(executor, name, self._launch)
        for name in _JAX_CALLS:
            self._wrap(executor.programs, name, self._in_jax)
        gc.callbacks.append(self._collect)
        self._undo.callback(gc.callbacks.remove, self._collect)
        self._waiter.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends; what was launched has ended then."""
        self._undo.close()
        self._ends.put(None)
        self._waiter.join()

    def between(self, begin_s: float, end_s: float) -> list[Launch]:
        """Those that returned in this time, by `time.perf_counter`."""
        return [one for one in self.launches if begin_s <= one.return_s < end_s]

    def _wrap(self, holder: Any, name: str, around: Callable[..., Any]) -> None:
        """Has `around` called in the place of a method, which it is given first."""
        method, is_own = getattr(holder, name), name in vars(holder)
        setattr(holder, name, functools.partial(around, method))
        if is_own:
            self._undo.callback(setattr, holder, name, method)
        else:
            self._undo.callback(delattr, holder, name)

    def _step(self, step: Callable[[], Any]) -> Any:
        self._spend("between steps")
        found = step()
        self._spend("tokens")
        self._spent.did["increments"] += len(found)
        return found

    def _read(self, read: Callable[[Awaited], Any], launch: Awaited) -> Any:
        found = read(launch)
        self._mark_s = time.perf_counter()  # what was waited for is not the host's
        self._spent = _Spent()
        return found

    def _launch(self, launch: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self._spend("scheduling")
        begin_s = self._mark_s
        found = launch(*given, **named)
        self._spend("launching")
        self._note(begin_s, self._mark_s, found)
        return found

    def _in_jax(self, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        begin_s = time.perf_counter()
        try:
            return call(*given, **named)
        finally:
            self._spent.s["jax"] += time.perf_counter() - begin_s

    def _collect(self, phase: str, _: dict[str, int]) -> None:
        now_s = time.perf_counter()
        self._spent.s["collector"] += now_s if phase == "stop" else -now_s

    def _spend(self, what: str) -> None:
        """The time since the last such call was for that."""
        now_s = time.perf_counter()
        self._spent.s[what] += now_s - self._mark_s
        self._mark_s = now_s

    def _note(self, begin_s: float, return_s: float, found: Any) -> None:
        now = self._counts()
        did = self._spent.did + (now - self._before)
        self._before = now
        did["rows"] = len(self._engine.scheduler.running)
        spent = {name: 1e3 * s for name, s in self._spent.s.items()}
        launch = Launch(begin_s, return_s, spent, dict(did))
        self.launches.append(launch)
        self._ends.put((launch, found[-1] if isinstance(found, list) else found))

    def _counts(self) -> Counter[str]:
        scheduler = self._engine.scheduler
        return Counter(
            {
                "put back": scheduler.num_preemptions,
                "pages moved": scheduler.room.num_moved,
                "tokens let in": scheduler.prefixes.num_queried_tokens,
            }
        )

    def _note_ends(self) -> None:
        while (noted := self._ends.get()) is not None:
            launch, awaited = noted
            with contextlib.suppress(RuntimeError):  # a step tells it
                awaited.wait()
                launch.end_s = time.perf_counter()
