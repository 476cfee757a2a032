"""Thousands of random requests through few pages: `python -m tests.soak`.

The engine is that of the tests (a random Llama of one layer, float32) with six pages,
once with prefix caching and once without. Requests take the likeliest tokens, draw,
draw with penalties and log-probabilities, or have a grammar, all beside each other and
beside prompts; with `--beams`, most are beam searches. Fails if the tokens of a request
are not what it gives by itself, or if a page is not free at the end.

With `--arena`, calls borrow the last pages and overwrite them, and as many requests are
there at a time as have 1.3 times the tokens that fit. Fails, too, if no page was
moved or no sequence put back.

With `--hostile`, random attacks on `fdjax serve` instead, beside honest requests, for
10 minutes or `--seconds`, in turns with quiet, and as long before that, which does not
count. Fails if an honest request is not answered in full, if the 99th percentile of
their token gap is twice the quiet one, if `/health` is not answered, or if memory or
descriptors grow by more than 2 %.
"""

import argparse
import asyncio
import os
import signal
import tempfile
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.hostile_soak import Turns

os.environ.setdefault("JAX_PLATFORMS", "cpu")


# Of `--arena`: tokens of all requests at a time, by the tokens that fit.
LOAD = 1.3

KEYS = """[keys.honest]
key = "sk-honest"

[keys.others]
key = "sk-others"
"""


def main() -> int:
    """Runs what was asked for; 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--beams", action="store_true")
    parser.add_argument("--arena", action="store_true")
    parser.add_argument("--hostile", action="store_true")
    parser.add_argument("--seconds", type=float, default=600.0)
    arguments = parser.parse_args()
    if arguments.hostile:
        return hostile(seconds=arguments.seconds, seed=arguments.seed)
    if arguments.arena:
        return arena(num_requests=arguments.requests, seed=arguments.seed)
    return few_pages(
        num_requests=arguments.requests, seed=arguments.seed, beams=arguments.beams
    )


def hostile(*, seconds: float, seed: int) -> int:
    """Attacks a server."""
    from tests.support.hostile_soak import ROWS, at_rest, report, turns
    from tests.support.server_process import server

    with tempfile.NamedTemporaryFile("w", suffix=".toml") as keys:
        keys.write(KEYS)
        keys.flush()
        options = ("--max-model-len", "256", "--max-num-seqs", str(ROWS))
        with server(*options, "--api-key-file", keys.name) as (process, url):

            def run(for_s: float) -> "Turns":
                both = turns(
                    url,
                    honest="sk-honest",
                    others="sk-others",
                    seconds=for_s,
                    turn_s=60.0,
                    seed=seed,
                )
                return asyncio.run(both)

            # What is kept for the next time is filled, and Python has the arenas that
            # attacks take at most at a time: it gives none back that is not empty.
            run(seconds)
            before = at_rest(process.pid)
            done = run(seconds)
            words, well = report(done, before, at_rest(process.pid))
            process.send_signal(signal.SIGTERM)
            status = process.wait(timeout=60)
    print(f"{words}\nexit status {status}")
    return int(not well or status != 0)


def arena(*, num_requests: int, seed: int) -> int:
    """Runs engines whose calls borrow pages, beside one whose calls do not."""
    from tests.support.borrowing import Poisoned, TokensBorrow
    from tests.support.engines import shallow_model, tiny_engine
    from tests.support.soak import MEAN_TOKENS, STYLES, is_idle, soak

    failed, borrowing, num_pages, page_size = False, TokensBorrow(16), 16, 4
    options = {"page_size": page_size, "steps_per_launch": 2, "max_batched_tokens": 64}
    undisturbed = tiny_engine(shallow_model(), num_pages=64, **options)
    num_live = round(LOAD * num_pages * page_size / MEAN_TOKENS)
    for caching in (True, False):
        engine = tiny_engine(
            shallow_model(),
            num_pages=num_pages,
            prefix_caching=caching,
            borrowing=borrowing,
            **options,
        )
        poisoned = Poisoned(engine, borrowing)
        done = soak(
            engine,
            num_requests=num_requests,
            seed=seed,
            asked=(*STYLES, 2),
            num_live=num_live,
            max_samples=3,
        )
        now, idle = engine.statistics(), is_idle(engine)
        differing = list(done.differing(undisturbed))
        failed |= bool(differing) or not idle
        failed |= not (now.num_moved_pages and now.num_put_back_for_room)
        print(
            f"prefix caching {caching}: {len(done.outputs)} requests and "
            f"{done.num_aborted} aborted, {done.num_searches} searches among them, "
            f"{num_live} at a time; {poisoned.num_calls} calls borrowed pages; "
            f"{now.num_moved_pages} pages were moved, {now.num_preemptions} sequences "
            f"put back, {now.num_put_back_for_room} of them for room; "
            f"{len(differing)} differ from the request alone; every page free: {idle}",
            flush=True,
        )
    return int(failed)


def few_pages(*, num_requests: int, seed: int, beams: bool) -> int:
    """Runs an engine with prefix caching, and one without."""
    from tests.support.engines import shallow_model, tiny_engine
    from tests.support.soak import STYLES, WIDTHS, is_idle, soak

    failed = False
    for caching in (True, False):
        engine = tiny_engine(
            shallow_model(),
            num_pages=20 if beams else 6,
            page_size=4 if beams else 8,
            steps_per_launch=2,
            max_batched_tokens=16,
            prefix_caching=caching,
        )
        start = time.monotonic()
        asked = WIDTHS if beams else STYLES
        done = soak(
            engine, num_requests=num_requests, seed=seed, asked=asked, max_samples=3
        )
        seconds, idle = time.monotonic() - start, is_idle(engine)
        scheduler = engine.scheduler
        preemptions, cached = (
            scheduler.num_preemptions,
            scheduler.prefixes.num_cached_tokens,
        )
        differing = list(done.differing(engine))
        failed |= bool(differing) or not idle or not is_idle(engine)
        print(
            f"prefix caching {caching}: {len(done.outputs)} requests and "
            f"{done.num_aborted} aborted in {seconds:.1f} s, {done.num_searches} "
            f"searches among them; {done.num_mixed} calls had prompts and rows that "
            f"decode; {preemptions} were put back, {cached} tokens found, "
            f"{scheduler.beams.num_dead} pages of beams given back early; "
            f"{len(differing)} differ from the request alone; every page free: {idle}",
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
