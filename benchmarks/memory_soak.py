"""Random requests at 1.3 times the load that fits: whose tokens change.

A model over a KV array whose end steps borrow, so small that pages are moved all the
time and sequences are put back: one that shows neither fails. Its prompts are what it
says itself.
Each kind of request runs again, undisturbed: in an array with room for all that run,
which nobody borrows. In 16 bits the same tokens cannot be asked for: calls have other
sizes there, and so other orders of sums, which decide where two tokens are all but
equally likely. So the same requests come twice more, at the same times, and are judged
alike: where nothing is lent, moved or put back; and in as small an array which nobody
borrows, where sequences are put back but no page is written by another. A page that
somebody has overwritten makes tokens that were never likely; what rounding decides
differs there, too. Of a page that is overwritten in part nothing may be seen.

Weights must be trained: those of made-up ones are all but equally likely everywhere.
"""

import argparse
import pathlib
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from benchmarks import results
from benchmarks.memory import Row, keep
from benchmarks.soak_requests import (
    GREEDY,
    TIE,
    longest,
    mean_tokens,
    soak,
    told,
    undisturbed,
    verdicts,
)
from fdjax import device
from fdjax.engine.engine import Engine
from fdjax.memory.plan import MemoryPlan
from fdjax.models import SHIPPED
from fdjax.models.decoder import Decoder
from fdjax.serve.loading import load_decoder, make_engine
from fdjax.serve.setup import Settings

# Tokens that all requests at a time hold on the way, by the tokens that fit.
LOAD = 1.3


def measure(
    settings: Settings,
    model: Decoder,
    *,
    num_requests: int,
    room_tokens: int,
    caching: bool,
    seed: int,
) -> Row:
    """One object of the results.

    Args:
        settings: of as many rows as requests are there at a time.
        model: loaded.
        num_requests: how many.
        room_tokens: that the array has room for beside the smallest step.
        caching: of prefixes.
        seed: of all that is random.
    """
    plan = settings.memory_plan()
    room = plan.layout.pages_for(room_tokens)
    small = replace(plan, layout=plan.layout.with_pages(room + plan.least_step_pages))
    apart = replace(plan, layout=replace(plan.layout.with_pages(room), lent=False))
    roomy = replace(plan, layout=replace(settings.widest_layout, lent=False))
    quiet = _engine(settings, model, roomy, caching=False)
    prompts = told(quiet)
    alone = undisturbed(quiet, prompts)
    load = partial(
        soak,
        prompts=prompts,
        num_requests=num_requests,
        num_live=settings.max_num_seqs,
        seed=seed,
    )
    control = verdicts(load(quiet), alone)
    del quiet
    crowded = _engine(settings, model, apart, caching=caching)
    unlent = verdicts(load(crowded), alone)
    del crowded
    engine = _engine(settings, model, small, caching=caching)
    started = time.perf_counter()
    done = load(engine)
    seconds, now = time.perf_counter() - started, engine.statistics()
    pool, found = engine.scheduler.pool, verdicts(done, alone)
    return {
        "requests": num_requests,
        "at_a_time": settings.max_num_seqs,
        "load": LOAD,
        "room_tokens": room_tokens,
        "prefix_caching": caching,
        "lent": small.layout.lent,
        "ended": len(done.outputs),
        "aborted": done.num_aborted,
        "moved_pages": now.num_moved_pages,
        "put_back": now.num_preemptions,
        "put_back_for_room": now.num_put_back_for_room,
        **found.row(),
        **unlent.row("_unlent"),
        **control.row("_undisturbed"),
        "tie_logprob": TIE,
        "pages": pool.num_pages,
        "pages_back": pool.num_free,
        "seconds": round(seconds, 1),
        **results.provenance(),
    }


def _engine(
    settings: Settings, model: Decoder, plan: MemoryPlan, *, caching: bool
) -> Engine:
    engine = make_engine(settings, model, plan, prefix_caching=caching)
    engine.warm_up([GREEDY])
    return engine


def main(given: Sequence[str] | None = None) -> None:
    """Writes `memory_soak.json`.

    Args:
        given: of the command line.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=SHIPPED)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=8192, help="that fit")
    parser.add_argument("--batched-tokens", type=int, default=512, help="of a step")
    parser.add_argument("--prefix-caching", action=argparse.BooleanOptionalAction)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path)
    asked = parser.parse_args(given)
    device.claim_memory(0.93)
    settings = Settings.of(
        asked.model,
        max_model_len=longest(),
        max_num_seqs=round(LOAD * asked.tokens / mean_tokens()),
        max_num_batched_tokens=asked.batched_tokens,
    )
    model = load_decoder(settings)
    row = measure(
        settings,
        model,
        num_requests=asked.requests,
        room_tokens=asked.tokens,
        caching=bool(asked.prefix_caching),
        seed=asked.seed,
    )
    cached = "cached" if asked.prefix_caching else "uncached"
    name = pathlib.Path(asked.model).stem
    row = {"case": f"{name}-{cached}", **row}
    print(row, flush=True)
    default = results.RESULTS / results.device_slug() / "memory_soak.json"
    keep(asked.out or default, [row])
    if missing := unseen(row):
        raise SystemExit(f"{' and '.join(missing)}: 0; ask for more --requests")


def unseen(row: Row) -> list[str]:
    """What was to be shown and did not happen; nothing is moved where none is lent.

    Args:
        row: of `measure`.
    """
    wanted = ["put_back", *(["moved_pages"] if row["lent"] else [])]
    return [name for name in wanted if not row[name]]


if __name__ == "__main__":
    main()
