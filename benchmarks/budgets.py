"""What a step's budget and the order of prompts do to loads: first tokens, and gaps.

    python -m benchmarks.budgets TRACE --loads conv-20,conv-512 --budgets 2048,8192

Each budget (`--max-num-batched-tokens`) has an engine of its own, with which each load
of `benchmarks.serving_online` runs once for each order of prompts (`--prefill-order`).
What the file has of another load, budget, order, model or number of rows is kept.
"""

import argparse
import asyncio
import dataclasses
import gc
import pathlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from benchmarks import needs, results
from benchmarks.online_engines import EngineSettings, Started, start_fdjax
from benchmarks.serving_online import Load, add_options, fitting_of, served
from fdjax import device
from fdjax.engine.policy import ORDERS, PrefillOrder

NAMED = ("load", "budget", "order", "model", "max_num_seqs")
"""Fields in which rows of the same agree."""
REPLACED = ("max_num_batched_tokens", "prefill_order")
"""What an engine says of itself that is the row's `budget`, or was its first order."""


async def measured(
    started: Started, loads: Sequence[Load], orders: Sequence[PrefillOrder]
) -> AsyncIterator[dict[str, Any]]:
    """Each load with each order of prompts.

    The prompts of each order are others: none finds its tokens in a cache.
    """
    assert started.reorder is not None, "it has one order alone"
    for load in loads:
        for order in orders:
            started.reorder(order)
            renamed = dataclasses.replace(load, name=f"{load.name} {order}")
            row = await served(started, renamed)
            yield row | {"load": load.name, "order": order}


async def measure(
    settings: EngineSettings,
    loads: Sequence[Load],
    orders: Sequence[PrefillOrder],
    out: pathlib.Path,
) -> None:
    """All that is measured with one budget, each row written when it is there."""
    started = start_fdjax(settings)
    about = {name: one for name, one in started.about.items() if name not in REPLACED}
    print(started.about, flush=True)
    try:
        async for row in measured(started, loads, orders):
            row["budget"] = settings.max_num_batched_tokens
            print(row, flush=True)
            results.keep(out, [row | about | results.provenance()], named=NAMED)
    finally:
        started.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, and adds to `budgets.json`.

    Args:
        arguments: of the command line.
    """
    given = _parsed(arguments)
    device.claim_memory(given.memory_fraction)  # before its name is asked for
    needs.gpu_for(given.model)
    out = given.out or results.RESULTS / results.device_slug() / "budgets.json"
    fitting = fitting_of(given, given.max_model_len)
    loads = [Load.of(name, fitting, seconds=given.seconds) for name in given.loads]
    for budget in given.budgets:
        settings = EngineSettings(
            model=given.model,
            dtype="auto",
            max_model_len=given.max_model_len,
            max_num_seqs=given.max_num_seqs,
            memory_fraction=given.memory_fraction,
            max_num_batched_tokens=budget,
        )
        asyncio.run(measure(settings, loads, given.orders, out))
        gc.unfreeze()  # weights are in cycles, and the next ones have no room beside
        gc.collect()


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--loads", type=_names, default="conv-20,conv-512")
    parser.add_argument("--budgets", type=_numbers, default="2048,5120,8192")
    parser.add_argument("--orders", type=_orders, default=",".join(ORDERS))
    parser.add_argument("--seconds", type=float, default=20.0)
    return parser.parse_args(arguments)


def _names(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> list[int]:
    return [*map(int, text.split(","))]


def _orders(text: str) -> list[PrefillOrder]:
    """Those that there are, in their order.

    Raises:
        ValueError: it names another one.
    """
    names = text.split(",")
    if not {*names} <= {*ORDERS}:
        raise ValueError(text)
    return [order for order in ORDERS if order in names]


if __name__ == "__main__":
    main()
