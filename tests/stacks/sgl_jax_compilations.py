"""How often sgl-jax's engine compiles with fdjax's attention: `... FOLDER`.

Prints JSON: programs compiled while the same prompts were served a first, a second and
a third time.
"""

import json
import sys

import jax

from tests.stacks.sgl_jax_engine import PROMPTS, make_engine

COMPILED = "/jax/core/compile/backend_compile_duration"


def main() -> None:
    """Serves three times."""
    compiled: list[str] = []

    def note(event: str, duration_secs: float, **_about: str | int) -> None:
        del duration_secs
        if event == COMPILED:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    engine = make_engine(sys.argv[1], "fdjax")
    params = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
    counts: list[int] = []
    for _ in range(3):
        compiled.clear()
        engine.generate(input_ids=PROMPTS, sampling_params=params)
        counts.append(len(compiled))
    print(json.dumps(counts))
    engine.shutdown()


if __name__ == "__main__":
    main()
