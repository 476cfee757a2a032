"""Thousands of random requests through few pages: `python -m tests.soak`.

The engine is that of the tests (a random Llama of one layer, float32) with six pages,
once with prefix caching and once without. Fails if the tokens of a request are not what
it gives by itself, or if a page is not free at the end.
"""

import argparse
import os
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")


def main() -> int:
    """Runs both; 1 if something was wrong."""
    from tests.support.engines import shallow_model, tiny_engine
    from tests.support.soak import is_idle, soak

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    failed = False
    for caching in (True, False):
        engine = tiny_engine(
            shallow_model(),
            num_pages=6,
            steps_per_launch=2,
            max_batched_tokens=16,
            prefix_caching=caching,
        )
        start = time.monotonic()
        done = soak(engine, num_requests=arguments.requests, seed=arguments.seed)
        seconds, idle = time.monotonic() - start, is_idle(engine)
        scheduler = engine.scheduler
        preemptions, cached = scheduler.num_preemptions, scheduler.num_cached_tokens
        differing = list(done.differing(engine))
        failed |= bool(differing) or not idle or not is_idle(engine)
        print(
            f"prefix caching {caching}: {len(done.outputs)} requests and "
            f"{done.num_aborted} aborted in {seconds:.1f} s; {preemptions} were put "
            f"back, {cached} tokens found; {len(differing)} differ from the request "
            f"alone; every page free: {idle}",
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
