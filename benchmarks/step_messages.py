"""What a step's message costs both processes: `python -m benchmarks.step_messages`.

Microseconds of processor a token, the best of some repeats, and bytes; of plain tokens
and of those with log-probabilities. See `fdjax.serve.apart.increments`.
"""

import time
from collections.abc import Callable

from fdjax.engine.request import Increment, Logprob
from fdjax.serve.apart.increments import increments, step
from fdjax.serve.apart.wire import Messages

_REPEATS = 7
_CALLS = 100


def main() -> None:
    """Prints a line for each number of rows and of log-probabilities."""
    print("rows  top  written  read  bytes")
    for rows, top in ((1, None), (16, None), (256, None), (256, 0), (256, 20)):
        items = [(10**6 + row, _increment(row, top)) for row in range(rows)]
        data = step(items, num_made=rows).packed()
        written = _microseconds(lambda told=items: step(told, num_made=1).packed())
        read = _microseconds(lambda told=data: _read(told))
        told = f"{written / rows:7.2f} {read / rows:5.2f} {len(data) / rows:6.1f}"
        print(f"{rows:4} {'-' if top is None else top:>4}  {told}")


def _increment(row: int, top: int | None) -> Increment:
    if top is None:
        return Increment(0, [97 * row], None, None)
    likely = {token: -0.1234567 * token for token in range(top)}
    return Increment(0, [97 * row], [Logprob(-0.1234567, likely)], None)


def _read(data: bytes) -> None:
    for message in Messages().add(data):
        for _ in increments(message):
            pass


def _microseconds(work: Callable[[], object]) -> float:
    times: list[float] = []
    for _ in range(_REPEATS):
        begin_s = time.process_time()
        for _ in range(_CALLS):
            work()
        times.append((time.process_time() - begin_s) / _CALLS)
    return 1e6 * min(times)


if __name__ == "__main__":
    main()
