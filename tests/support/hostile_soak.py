"""Honest clients in turns beside ordinary ones and beside attackers."""

import asyncio
import collections
import concurrent.futures
import multiprocessing
import os
import random
import statistics
import time
from dataclasses import dataclass, field

import httpx2

from tests.support.attackers import Attackers
from tests.support.attacks import ATTACKS, attack_at_random, attack_once
from tests.support.load import Load, load
from tests.support.server_process import family, open_files, resident_bytes

# As many as rows of the server: in both kinds of turns they are full.
ROWS = 8
CLIENTS = ROWS // 2
ATTACKERS = 4
MAX_TOKENS = 96
MAX_GAP, MAX_GROWTH = 2.0, 1.02
# The longest that connections are kept after an attack, and some more.
_REST_S, _LOOK_S = 12.0, 3.0


@dataclass
class Turns:
    """What came of all turns.

    Attributes:
        quiet: the honest load beside ordinary clients.
        beside: the same beside attackers.
        outcomes: how often each attack ended with what.
        unhealthy: answers of `/health` that were not 200, or did not come.
        health_s: how long each of the others took, beside attackers.
    """

    quiet: Load = field(default_factory=Load)
    beside: Load = field(default_factory=Load)
    outcomes: collections.Counter[tuple[str, str]] = field(
        default_factory=collections.Counter[tuple[str, str]]
    )
    unhealthy: list[str] = field(default_factory=list[str])
    health_s: list[float] = field(default_factory=list[float])

    @property
    def ratio(self) -> float:
        """The 99th percentile of the token gap, beside attackers over quiet."""
        return percentile_99(self.beside.gaps_s) / percentile_99(self.quiet.gaps_s)

    @property
    def failures(self) -> dict[tuple[str, str], int]:
        """Attacks that the server took as its own fault."""
        return {one: n for one, n in self.outcomes.items() if one[1] == "500"}


@dataclass(frozen=True)
class Rest:
    """A server with nothing to do, and all that it has started.

    Attributes:
        resident_bytes: of all processes.
        open_files: of all processes.
    """

    resident_bytes: int
    open_files: int


def percentile_99(values: list[float]) -> float:
    """Of at least two."""
    return statistics.quantiles(values, n=100)[-1]


def at_rest(pid: int) -> Rest:
    """Waits until connections have ended, then looks for some seconds."""
    time.sleep(_REST_S)
    until, seen = time.monotonic() + _LOOK_S, list[Rest]()
    while time.monotonic() < until:
        pids = list(family(pid))
        seen.append(Rest(sum(map(resident_bytes, pids)), sum(map(open_files, pids))))
        time.sleep(0.1)
    return Rest(
        round(statistics.median(rest.resident_bytes for rest in seen)),
        round(statistics.median(rest.open_files for rest in seen)),
    )


def attacked(
    url: str, key: str | None, seed: int, seconds: float, largest: int, hold_s: float
) -> collections.Counter[tuple[str, str]]:
    """Attacks for some seconds; each of them once, where these are 0."""
    to = Attackers(url, key, random.Random(seed), largest, hold_s)

    async def attack() -> None:
        if seconds:
            await attack_at_random(to, count=ATTACKERS, seconds=seconds)
        else:
            await asyncio.gather(*(attack_once(one, to) for one in ATTACKS))

    asyncio.run(attack())
    return to.outcomes


async def turns(
    url: str,
    *,
    honest: str | None,
    others: str | None,
    seconds: float,
    turn_s: float,
    seed: int,
    largest: int = 4 * 2**20,
    hold_s: float = 3.0,
    max_tokens: int = MAX_TOKENS,
) -> Turns:
    """Quiet turns and hostile ones, after each attack has been made once.

    Args:
        url: of the server.
        honest: key of the honest clients, `None` without keys.
        others: key of the ordinary clients and of the attackers.
        seconds: of all hostile turns.
        turn_s: of one; a quiet one takes half of it.
        seed: of what is random.
        largest: bytes of an attack's body.
        hold_s: how long an attack keeps what it has, at most.
        max_tokens: the longest honest output.
    """
    done, loop = Turns(), asyncio.get_running_loop()

    async def honest_load(turn: float, to: Load) -> None:
        await _load(url, honest, turn, max_tokens, to)

    with concurrent.futures.ProcessPoolExecutor(
        1,  # of lower priority: to make attacks must not take the server's time
        mp_context=multiprocessing.get_context("spawn"),
        initializer=os.nice,
        initargs=(10,),
    ) as pool:

        async def attacks(turn: float) -> None:
            draw = seed + len(done.outcomes)
            done.outcomes += await loop.run_in_executor(
                pool, attacked, url, others, draw, turn, largest, hold_s
            )

        await attacks(0)
        left = seconds
        while left > 0:
            turn = min(turn_s, left)
            left -= turn
            await asyncio.gather(
                honest_load(turn / 2, done.quiet),
                _load(url, others, turn / 2, max_tokens, Load()),
            )
            await asyncio.gather(
                honest_load(turn, done.beside),
                attacks(turn),
                _watch_health(url, turn, done),
            )
    return done


async def _load(
    url: str, key: str | None, seconds: float, max_tokens: int, to: Load
) -> None:
    """Adds what comes of a load to that of earlier ones."""
    new = await load(
        url, clients=CLIENTS, seconds=seconds, max_tokens=max_tokens, key=key
    )
    to.seconds += new.seconds
    to.gaps_s += new.gaps_s
    to.num_tokens += new.num_tokens
    to.faults += new.faults


async def _watch_health(url: str, seconds: float, to: Turns) -> None:
    until = time.monotonic() + seconds
    async with httpx2.AsyncClient(base_url=url, timeout=30.0) as client:
        while time.monotonic() < until:
            start = time.monotonic()
            try:
                status = (await client.get("/health")).status_code
            except httpx2.HTTPError as error:
                to.unhealthy.append(type(error).__name__)
                continue
            if status == 200:
                to.health_s.append(time.monotonic() - start)
            else:
                to.unhealthy.append(str(status))
            await asyncio.sleep(0.05)


def report(done: Turns, before: Rest, after: Rest) -> tuple[str, bool]:
    """What came of it in words, and whether all was as it should be."""
    quiet, beside = (percentile_99(one.gaps_s) for one in (done.quiet, done.beside))
    grown = after.resident_bytes / before.resident_bytes
    files = after.open_files / before.open_files
    faults = [*done.quiet.faults, *done.beside.faults]
    lines = [
        f"honest requests: {len(done.quiet.seconds)} in quiet, "
        f"{len(done.beside.seconds)} beside attacks, {len(faults)} faults",
        f"99th percentile of the token gap: {1000 * quiet:.0f} ms in quiet, "
        f"{1000 * beside:.0f} ms beside attacks, {done.ratio:.2f} times as long",
        f"/health: {len(done.health_s)} answers, the slowest after "
        f"{max(done.health_s, default=0.0):.2f} s; {len(done.unhealthy)} missing",
        f"resident: {before.resident_bytes / 2**20:.0f} MiB before, "
        f"{after.resident_bytes / 2**20:.0f} after ({100 * (grown - 1):+.2f} %)",
        f"descriptors: {before.open_files} before, {after.open_files} after",
        f"attacks: {done.outcomes.total()}",
    ]
    lines += [
        f"  {name}: {how} {n}" for (name, how), n in sorted(done.outcomes.items())
    ]
    lines += [str(fault) for fault in faults[:10]]
    well = not (faults or done.unhealthy or done.failures)
    well = well and done.ratio < MAX_GAP and max(grown, files) <= MAX_GROWTH
    return "\n".join(lines), well
