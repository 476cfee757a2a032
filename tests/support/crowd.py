"""Sequences that wait, and count how often they are looked for; and many ends.

`python -m tests.support.crowd` does that in a process that checks no types as it runs,
and prints the number of times.
"""

from fdjax.engine.buckets import Buckets
from fdjax.engine.origin import Origin
from fdjax.engine.request import Request
from fdjax.engine.scheduler import Scheduler
from fdjax.engine.sequence import EngineSequence
from fdjax.generate.params import SamplingParams
from fdjax.memory.pages import PagePool
from fdjax.memory.prefix import PrefixKeys

REQUEST = Request(0, (5, 6, 7), SamplingParams(), 8)
KEYS = PrefixKeys(4)
# Ten times each of the sequences below: what would be left of those that have ended,
# and what each end would cost the next, is seen by then.
NUM_ENDS = 200_000


class CountedJob(EngineSequence):
    """Counts how often any of its kind is compared, or looked for."""

    num_touches = 0

    def __hash__(self) -> int:
        CountedJob.num_touches += 1
        return id(self)

    def __eq__(self, other: object) -> bool:
        CountedJob.num_touches += 1
        return self is other


def sequence_of(origin: Origin) -> EngineSequence:
    """A sequence with a prompt of three tokens."""
    return CountedJob(REQUEST, origin, seed=0, keys=KEYS, tokens=[5, 6, 7])


def crowd(size: int) -> tuple[Scheduler, list[EngineSequence]]:
    """`size` requests of one sample, and seven samples of another after each."""
    buckets = Buckets.of(
        max_num_seqs=4, max_model_len=32, page_size=4, max_batched_tokens=64
    )
    scheduler = Scheduler(
        PagePool(32), buckets, page_size=4, caching=True, gathering=False
    )
    many = Origin()
    sequences = [
        sequence_of(many if place % 8 else Origin()) for place in range(8 * size)
    ]
    for sequence in sequences:
        scheduler.add(sequence)
    return scheduler, sequences


def main() -> None:
    """Ends 20,000 sequences ten times, each of which is added again, in turn."""
    scheduler, sequences = crowd(2_500)
    CountedJob.num_touches = 0
    for _ in range(NUM_ENDS // len(sequences)):
        for sequence in sequences:
            scheduler.end(sequence)
            scheduler.add(sequence)
    print(CountedJob.num_touches)


if __name__ == "__main__":
    main()
