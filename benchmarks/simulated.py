"""The engine's own scheduling on a device that only takes time, which nobody waits for.

    python -m benchmarks.simulated TRACE --loads conv-20,conv-512 --max-itl-ms 100

plays the loads of `benchmarks.serving_online` in seconds, on any machine: which policy
of steps suits a trace can be seen before it is measured. The device's times are those
of `Costs`; of what was measured on an H200 it is right within a few percent where GEMMs
are large, and up to 16 % too slow at 20 conversations a second.
"""

import argparse
import bisect
import pathlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.serving_online import (
    LOADS,
    Load,
    add_skip,
    fitting_of,
    percentiles,
)
from benchmarks.simulated_device import Clock, Costs, Device
from fdjax.cli.bench.arrivals import Arrival
from fdjax.engine.buckets import Buckets
from fdjax.engine.checked_request import make_request
from fdjax.engine.origin import Origin
from fdjax.engine.parking import Parking
from fdjax.engine.pipeline import Pipeline
from fdjax.engine.policy import ORDERS, StepPolicy
from fdjax.engine.scheduler import Scheduler
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.params import SamplingParams
from fdjax.memory.pages import PagePool
from fdjax.memory.prefix import PrefixKeys
from fdjax.serve.engine_thread import LOOK_S
from fdjax.serve.setup import MAX_BATCHED_TOKENS


@dataclass(frozen=True)
class Server:
    """An engine's scheduling without a model.

    Attributes:
        max_num_seqs: rows.
        max_model_len: tokens of a sequence.
        max_batched_tokens: of a step.
        num_pages: of 16 tokens.
        policy: of steps.
        costs: of them.
    """

    max_num_seqs: int = 256
    max_model_len: int = 8192
    max_batched_tokens: int = MAX_BATCHED_TOKENS["gpu"]
    num_pages: int = 56_000
    policy: StepPolicy = field(default_factory=StepPolicy)
    costs: Costs = field(default_factory=Costs)

    def answers(self, arrivals: Sequence[Arrival]) -> list[list[float]]:
        """When each request gets its tokens: seconds from its arrival.

        Args:
            arrivals: in order.
        """
        clock, waits = Clock(), [arrival.at_s for arrival in arrivals]
        scheduler, pipeline = self._engine(clock)
        times: list[list[float]] = [[] for _ in arrivals]
        come = 0
        while come < len(arrivals) or scheduler.has_work:
            if not scheduler.has_work:
                clock.now = max(clock.now, waits[come])
            while (spare_s := pipeline.spare_s) > 0:  # as `EngineThread` does
                clock.now += min(spare_s + 1e-6, LOOK_S)
            due = bisect.bisect_right(waits, clock.now, lo=come)
            for index, arrival in enumerate(arrivals[come:due], come):
                scheduler.add(self._sequence(index, arrival))
            come = due
            for sequence, increment in pipeline.step():
                index = sequence.request.index
                gone_s = clock.now - waits[index]
                times[index] += [gone_s] * len(increment.token_ids)
        return times

    def _engine(self, clock: Clock) -> tuple[Scheduler, Pipeline]:
        buckets = Buckets.of(
            max_num_seqs=self.max_num_seqs,
            max_model_len=self.max_model_len,
            page_size=16,
            max_batched_tokens=self.max_batched_tokens,
            fine=True,
        )
        scheduler = Scheduler(
            PagePool(self.num_pages),
            buckets,
            page_size=16,
            caching=False,
            gathering=False,
            order=self.policy.prefill_order,
        )
        device = Device(buckets, self.policy, self.costs, clock)
        return scheduler, Pipeline(scheduler, device, Parking(scheduler))

    def _sequence(self, index: int, arrival: Arrival) -> EngineSequence:
        params = SamplingParams(max_tokens=arrival.output_tokens, ignore_eos=True)
        request = make_request(
            index,
            [0] * arrival.input_tokens,
            params,
            vocab_size=1,
            max_model_len=self.max_model_len,
        )
        keys, tokens = PrefixKeys(16), list(request.prompt)
        return EngineSequence(request, Origin(), 0, keys, tokens)


def per_token_s(times: Sequence[float]) -> Iterator[float]:
    """Mean time of a token after the first, if there is one."""
    if len(times) > 1:
        yield (times[-1] - times[0]) / (len(times) - 1)


def simulated(server: Server, load: Load) -> dict[str, Any]:
    """What a load is served like, in the words of `serving_online.json`."""
    times = server.answers(load.arrivals)
    ends = (one.at_s + t[-1] for one, t in zip(load.arrivals, times, strict=True))
    return {
        "load": load.name,
        "requests_per_s": round(len(times) / max(ends), 2),
        "ttft_ms": percentiles([one[0] for one in times]),
        "tpot_ms": percentiles([each for one in times for each in per_token_s(one)]),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each load.

    Args:
        arguments: of the command line.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("--loads", default=LOADS)
    parser.add_argument("--seconds", type=float, default=30.0)
    add_skip(parser)
    parser.add_argument("--max-itl-ms", type=float)
    parser.add_argument(
        "--prefill-order", choices=ORDERS, default=StepPolicy.prefill_order
    )
    parser.add_argument(
        "--max-num-batched-tokens", type=int, default=Server.max_batched_tokens
    )
    given = parser.parse_args(arguments)
    policy = StepPolicy(max_itl_ms=given.max_itl_ms, prefill_order=given.prefill_order)
    server = Server(max_batched_tokens=given.max_num_batched_tokens, policy=policy)
    fitting = fitting_of(given, server.max_model_len)
    for name in given.loads.split(","):
        load = Load.of(name, fitting, seconds=given.seconds)
        print(simulated(server, load), flush=True)


if __name__ == "__main__":
    main()
