"""The engine's process of `fdjax serve`, in which no long request ever ends by itself.

When one has some tokens the engine stands still until it is aborted. So a test may ask
for what is still running, on a machine however fast, and be as late as it likes.
"""

import runpy
import time

from fdjax.engine.engine import Engine
from fdjax.engine.request import Increment
from fdjax.engine.sequence import EngineSequence

LONG_TOKENS = 200
"""Of output that a request asks for: such a one, and longer ones, never end."""
SOME_TOKENS = 40
"""Which it has when the engine stands still, and those of a launch or two."""

_step = Engine.step
_made: dict[EngineSequence, int] = {}


def _standing_step(self: Engine) -> list[tuple[EngineSequence, Increment]]:
    """Nothing, though the engine's thread goes round and does what it is asked."""
    if any(made >= SOME_TOKENS and not one.ended for one, made in _made.items()):
        time.sleep(0.001)
        return []
    increments = _step(self)
    for sequence, increment in increments:
        if sequence.request.max_tokens >= LONG_TOKENS:
            _made[sequence] = _made.get(sequence, 0) + increment.num_made
    return increments


if __name__ == "__main__":
    Engine.step = _standing_step
    runpy.run_module("fdjax.cli.engine_process", run_name="__main__")
