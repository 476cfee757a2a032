"""The engine's process of `fdjax serve`, whose steps take a while, whatever runs it.

So a test may ask for what is still running, on a machine however fast.
"""

import runpy
import time

from fdjax.engine.engine import Engine
from fdjax.engine.request import Increment
from fdjax.engine.sequence import EngineSequence

STEP_S = 0.01
_step = Engine.step


def _slow_step(self: Engine) -> list[tuple[EngineSequence, Increment]]:
    time.sleep(STEP_S)
    return _step(self)


if __name__ == "__main__":
    Engine.step = _slow_step
    runpy.run_module("fdjax.cli.engine_process", run_name="__main__")
