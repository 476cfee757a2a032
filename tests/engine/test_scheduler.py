"""Which sequences hold rows and pages, and what runs next; nothing is computed here."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from fdjax import SamplingParams
from fdjax.engine.buckets import USUAL_TOKENS, Buckets
from fdjax.engine.checked_request import make_request
from fdjax.engine.origin import Origin
from fdjax.engine.policy import PrefillOrder, StepPolicy
from fdjax.engine.scheduler import Scheduler
from fdjax.engine.sequence import EngineSequence, PromptChunk
from fdjax.memory.pages import PagePool
from fdjax.memory.prefix import PrefixKeys

PAGE_SIZE = 4


class Desk:
    """A scheduler of up to 4 rows, and sequences in the order they come."""

    def __init__(
        self,
        *,
        num_pages: int = 32,
        max_batched_tokens: int = 64,
        order: PrefillOrder = StepPolicy.prefill_order,
        fine: bool = False,
        max_model_len: int = 32,
        rows: int = 4,
    ) -> None:
        self.max_model_len = max_model_len
        buckets = Buckets.of(
            max_num_seqs=rows,
            max_model_len=max_model_len,
            page_size=PAGE_SIZE,
            max_batched_tokens=max_batched_tokens,
            fine=fine,
        )
        self.scheduler = Scheduler(
            PagePool(num_pages),
            buckets,
            page_size=PAGE_SIZE,
            caching=True,
            gathering=False,
            order=order,
        )
        self.sequences: list[EngineSequence] = []

    def add(
        self,
        length: int,
        *,
        output: int = 8,
        priority: int = 0,
        origin: Origin | None = None,
        like: EngineSequence | None = None,
    ) -> EngineSequence:
        """A sequence whose prompt begins like no other's, or like that of one."""
        place = len(self.sequences)
        alike = [] if like is None else like.tokens[:length]
        prompt = alike + [place] * (length - len(alike))
        params = SamplingParams(temperature=0.0, max_tokens=output)
        request = make_request(
            place,
            prompt,
            params,
            vocab_size=10_000,
            max_model_len=self.max_model_len,
            grammar=None,
        )
        keys = PrefixKeys(PAGE_SIZE)
        origin = origin or Origin(priority=priority)
        sequence = EngineSequence(
            request, origin, seed=0, keys=keys, tokens=list(prompt)
        )
        self.sequences.append(sequence)
        self.scheduler.add(sequence)
        return sequence

    def running(self, *lengths: int, output: int = 8) -> list[EngineSequence]:
        """Sequences whose prompts are computed."""
        sequences = [self.add(length, output=output) for length in lengths]
        assert self.scheduler.admit() == sequences
        self.scheduler.chunks(1000)
        assert all(sequence.is_decoding for sequence in sequences)
        return sequences

    @property
    def num_free(self) -> int:
        return self.scheduler.pool.num_free - self.scheduler.room.num_promised


def spans(chunks: Sequence[PromptChunk]) -> list[tuple[int, int, int]]:
    return [(chunk.sequence.request.index, chunk.start, chunk.stop) for chunk in chunks]


# --- Admission ------------------------------------------------------------------------


def test_rows_and_pages_go_to_the_first_in_order():
    desk = Desk()
    for priority in (1, 0, 1, 0, 0):
        desk.add(5, priority=priority)
    admitted = desk.scheduler.admit()
    assert [sequence.request.index for sequence in admitted] == [1, 3, 4, 0]
    assert [sequence.row for sequence in admitted] == [0, 1, 2, 3]
    assert [sequence.num_promised for sequence in admitted] == [2] * 4
    desk.scheduler.chunks(20)
    assert [sequence.pages for sequence in admitted] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [sequence.num_promised for sequence in admitted] == [0] * 4
    assert desk.scheduler.num_waiting == 1


def test_nobody_overtakes_a_job_that_waits_for_pages():
    desk = Desk(num_pages=8)
    first, large, small = desk.add(16), desk.add(16), desk.add(1)
    # Its pages are there, but not one more for the sequence that runs.
    assert desk.scheduler.admit() == [first]
    assert desk.num_free == 4
    desk.scheduler.end(first)
    assert desk.scheduler.admit() == [large, small]


def test_what_has_ended_leaves_everything_behind():
    desk = Desk()
    runs, waits = *desk.running(9), desk.add(3)
    desk.scheduler.end(waits)
    desk.scheduler.end(runs)
    assert runs.ended and waits.ended
    assert (desk.num_free, desk.scheduler.num_waiting) == (32, 0)
    assert desk.scheduler.running == []
    assert desk.running(1)[0].row == 0


# --- Waiting for a prefix -------------------------------------------------------------


def test_who_waits_for_the_pages_of_another_keeps_nobody_out():
    desk = Desk()
    long = desk.add(20)
    alike, other = desk.add(20, like=long), desk.add(2)
    assert desk.scheduler.admit() == [long, other]
    desk.scheduler.chunks(8)
    late = desk.add(2)
    assert desk.scheduler.admit() == [late]
    assert desk.scheduler.admit() == []
    desk.scheduler.chunks(64)
    assert desk.scheduler.admit() == [alike]
    assert alike.num_prefilled == 16


def test_who_waits_for_pages_keeps_the_row_that_it_will_have():
    desk = Desk()
    long = desk.add(20)
    alike = [desk.add(length, like=long) for length in (20, 30)]
    others = [desk.add(2) for _ in range(2)]
    assert desk.scheduler.admit() == [long, others[0]], "two rows are free"
    assert desk.scheduler.giving_way() is None
    desk.scheduler.chunks(64)
    assert desk.scheduler.admit() == alike
    desk.scheduler.end(long)
    assert desk.scheduler.admit() == others[1:]


def test_who_waits_for_pages_keeps_those_that_it_will_need():
    """Of its eight it will find five; and each that runs may need one more soon."""
    desk = Desk(num_pages=13)
    long = desk.add(20)
    alike, large = desk.add(31, like=long), desk.add(16)
    assert desk.scheduler.admit() == [long], "of the 8 others 4 are kept, and one"
    assert desk.scheduler.admit() == []
    desk.scheduler.chunks(64)
    assert desk.scheduler.admit() == [alike]
    desk.scheduler.end(long)
    assert desk.scheduler.admit() == [large]


def test_whoever_would_compute_the_pages_may_end():
    desk = Desk()
    long = desk.add(20)
    alike = [desk.add(20, like=long) for _ in range(2)]
    assert desk.scheduler.admit() == [long]
    desk.scheduler.chunks(8)
    desk.scheduler.end(long)
    assert desk.scheduler.admit() == alike[:1], "who computes the rest now"
    assert alike[0].num_prefilled == 8


def test_who_goes_by_the_urgent_ones_that_wait_is_no_more_urgent():
    desk = Desk()
    long = desk.add(20, priority=-1)
    alike, other = desk.add(20, priority=-1, like=long), desk.add(2)
    assert desk.scheduler.admit() == [long, other]
    assert other.priority == 0
    desk.scheduler.chunks(64)
    assert desk.scheduler.admit() == [alike]


# --- Prefill --------------------------------------------------------------------------


def test_a_call_takes_what_fits_and_the_next_goes_on():
    desk = Desk(max_batched_tokens=16, order="fcfs")
    for length in (10, 9, 3):
        desk.add(length)
    desk.scheduler.admit()
    assert spans(desk.scheduler.chunks(16)) == [(0, 0, 10), (1, 0, 6)]
    assert [sequence.is_decoding for sequence in desk.sequences] == [True, False, False]
    assert desk.scheduler.chunks(0) == []
    assert spans(desk.scheduler.chunks(5)) == [(1, 6, 9), (2, 0, 2)]
    assert spans(desk.scheduler.chunks(16)) == [(2, 2, 3)]
    assert desk.scheduler.chunks(16) == []
    assert [sequence.num_launched for sequence in desk.sequences] == [11, 10, 4]


def test_a_prompt_longer_than_a_call_leaves_half_to_others():
    desk = Desk(max_batched_tokens=8, num_pages=64, order="fcfs")
    desk.add(20)
    desk.scheduler.admit()
    assert spans(desk.scheduler.chunks(8)) == [(0, 0, 8)], "nobody waits"
    for length in (3, 6):
        desk.add(length)
    desk.scheduler.admit()
    assert spans(desk.scheduler.chunks(8)) == [(0, 8, 12), (1, 0, 3), (2, 0, 1)]
    assert spans(desk.scheduler.chunks(8)) == [(0, 12, 20)], "it fits"
    assert spans(desk.scheduler.chunks(8)) == [(2, 1, 6)]
    desk = Desk(max_batched_tokens=8, num_pages=64, order="fcfs")
    desk.add(20)
    desk.add(2)
    desk.scheduler.admit()
    assert spans(desk.scheduler.chunks(8)) == [(0, 0, 6), (1, 0, 2)], "the rest, too"


def test_what_is_long_is_longer_than_this_call():
    desk = Desk(max_batched_tokens=64, num_pages=64, order="fcfs")
    for length in (30, 2, 30, 3):
        desk.add(length)
    desk.scheduler.admit()
    # Of those that do not fit, one has half; whoever does fit comes before the other.
    assert spans(desk.scheduler.chunks(16)) == [(0, 0, 11), (1, 0, 2), (3, 0, 3)]
    assert spans(desk.scheduler.chunks(16)) == [(0, 11, 27)]


def test_whoever_fits_into_half_of_a_call_is_passed_over_once():
    desk = Desk(max_batched_tokens=8, num_pages=64, order="fcfs")
    for length in (8, 7, 6, 3):
        desk.add(length)
    desk.scheduler.admit()
    assert spans(desk.scheduler.chunks(8)) == [(0, 0, 8)]
    assert spans(desk.scheduler.chunks(8)) == [(1, 0, 5), (3, 0, 3)], "the 6 is long"
    assert spans(desk.scheduler.chunks(8)) == [(1, 5, 7), (2, 0, 6)], "nobody is short"


def test_short_prompts_wait_for_no_crowd_of_long_ones():
    """More than a call has prompts."""
    for length in (20, 8, 7):
        desk = Desk(max_batched_tokens=8, num_pages=4096, order="fcfs", rows=128)
        for _ in range(100):
            desk.add(length)
        short = desk.add(2)
        desk.scheduler.admit()
        calls = 0
        while not short.num_launched:
            desk.scheduler.chunks(8)
            calls += 1
        assert calls == (1 if length > 8 else 2)


def test_one_that_gave_way_has_the_next_call():
    """However many short ones come, and however long the first one is."""
    desk = Desk(
        max_batched_tokens=8, num_pages=4096, order="fcfs", rows=64, max_model_len=64
    )
    desk.add(60)
    desk.add(2)
    middle = desk.add(7)
    calls = 0
    while not middle.num_launched:
        for _ in range(3):
            desk.add(2)
        desk.scheduler.admit()
        chunks = desk.scheduler.chunks(8)
        assert sum(chunk.size for chunk in chunks) == 8
        calls += 1
    assert calls <= 6
    assert not desk.sequences[0].num_launched


def test_a_stream_of_urgent_tokens_changes_nothing_for_the_others():
    desk = Desk(max_batched_tokens=8, num_pages=4096, order="fcfs", rows=64)
    for _ in range(20):
        desk.add(6, priority=1)
    short = desk.add(2, priority=1)
    done: list[bool] = []
    for _ in range(3):
        urgent = desk.add(1)
        desk.scheduler.admit()
        desk.scheduler.chunks(8)
        assert urgent.num_launched
        done.append(bool(short.num_launched))
    assert done == [False, True, True]


def test_more_urgent_long_prompts_go_before_less_urgent_short_ones():
    desk = Desk(max_batched_tokens=8, num_pages=64, order="fcfs", rows=8)
    for length, priority in ((8, 0), (7, 0), (7, 0), (1, 0), (4, 1)):
        desk.add(length, priority=priority)
    desk.scheduler.admit()
    calls = [spans(desk.scheduler.chunks(8)) for _ in range(3)]
    assert calls == [[(0, 0, 8)], [(1, 0, 7), (3, 0, 1)], [(2, 0, 7), (4, 0, 1)]]


def test_a_more_urgent_prompt_leaves_nothing_to_others():
    desk = Desk(max_batched_tokens=8, num_pages=64, order="fcfs")
    for length, priority in ((8, 0), (7, 0), (3, 1)):
        desk.add(length, priority=priority)
    desk.scheduler.admit()
    assert spans(desk.scheduler.chunks(8)) == [(0, 0, 8)]
    assert spans(desk.scheduler.chunks(8)) == [(1, 0, 7), (2, 0, 1)]


def test_a_long_prompt_is_not_overtaken_without_end():
    desk = Desk(max_batched_tokens=8, num_pages=64, order="fcfs")
    desk.add(20)
    for _ in range(3):
        desk.add(4)
        desk.scheduler.admit()
        chunks = desk.scheduler.chunks(8)
        assert [chunk.size for chunk in chunks] == [4, 4]
        desk.scheduler.end(desk.sequences[-1])
    assert desk.sequences[0].num_prefilled == 12


@pytest.mark.parametrize(
    ("first", "crowded", "tokens"),
    [
        (1000, False, USUAL_TOKENS),
        (4000, False, 4000),  # whole, and nobody else
        (9000, False, 8192),
        (3000, True, 8192),
    ],
)
def test_a_call_is_larger_than_usual_for_one_prompt_or_a_crowd(
    first: int, crowded: bool, tokens: int
):
    desk = Desk(
        max_batched_tokens=8192, num_pages=5000, fine=True, max_model_len=10_000
    )
    for length in (first, *[2000] * 3):
        desk.add(length)
    desk.scheduler.admit()
    chunks = desk.scheduler.chunks(8192, crowded=crowded)
    assert sum(chunk.size for chunk in chunks) == tokens


def test_of_prompts_the_one_with_the_fewest_tokens_left_goes_first():
    desk = Desk(max_batched_tokens=8, num_pages=64, order="shortest")
    for length in (20, 11, 11):
        desk.add(length)
    desk.scheduler.admit()
    assert spans(desk.scheduler.chunks(8)) == [(1, 0, 8)], "who came first, of two"
    desk.add(4)
    desk.scheduler.admit()
    assert spans(desk.scheduler.chunks(8)) == [(1, 8, 11), (3, 0, 4), (2, 0, 1)]
    assert spans(desk.scheduler.chunks(8)) == [(2, 1, 9)]
    assert spans(desk.scheduler.chunks(8)) == [(0, 0, 8)], "24 are more than its own 20"


def test_what_came_later_overtakes_with_a_call_more_at_most():
    """Than the tokens of who waits; whatever comes, and however calls are sized."""
    draw = random.Random(0)
    desk = Desk(max_batched_tokens=16, num_pages=64, order="shortest")
    overtaken: Counter[EngineSequence] = Counter()
    for _ in range(3000):
        desk.add(draw.choice((1, 2, 3, 8, 24)))
        desk.scheduler.admit()
        waiting = [*desk.scheduler.prompts]
        for chunk in desk.scheduler.chunks(draw.randint(1, 16)):
            before = waiting[: waiting.index(chunk.sequence)]
            before = [sequence for sequence in before if not sequence.num_launched]
            overtaken.update(dict.fromkeys(before, chunk.size))
            if chunk.is_last:
                desk.scheduler.end(chunk.sequence)
    assert all(count < len(one.tokens) + 16 for one, count in overtaken.items())
    assert any(count >= len(one.tokens) for one, count in overtaken.items())


def test_the_shortest_goes_first_and_the_longest_is_not_starved():
    """Of those that came later as many tokens go first as it has itself."""
    desk = Desk(max_batched_tokens=8, num_pages=64, order="shortest")
    long = desk.add(20)
    desk.scheduler.admit()
    assert spans(desk.scheduler.chunks(8)) == [(0, 0, 8)]
    overtaken = 0
    while not long.num_launched:
        short = desk.add(4)
        desk.scheduler.admit()
        chunks = desk.scheduler.chunks(4)
        overtaken += sum(chunk.size for chunk in chunks if chunk.sequence is not long)
        if short.num_launched:
            desk.scheduler.end(short)
    assert overtaken == 20


def test_another_order_holds_from_the_next_call_on():
    desk = Desk(max_batched_tokens=8, num_pages=64)
    desk.add(6)
    desk.add(4)
    desk.scheduler.admit()
    assert spans(desk.scheduler.chunks(2)) == [(0, 0, 2)]
    desk.add(2)
    desk.scheduler.admit()
    desk.scheduler.prompts.order = "shortest"
    assert spans(desk.scheduler.chunks(2)) == [(2, 0, 2)]


def test_rows_that_decode_are_part_of_the_budget():
    desk = Desk(max_batched_tokens=64)
    desk.add(30)
    desk.scheduler.admit()
    assert desk.scheduler.chunks(2, num_decoding=2) == []
    assert spans(desk.scheduler.chunks(16, num_decoding=3)) == [(0, 0, 13)]


# --- Decoding -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "steps", "held"), [(6, 3, [3, 3, 4, 5, 6]), (8, 4, [3, 4, 5, 6, 7])]
)
def test_pages_are_taken_when_the_next_steps_need_them(
    length: int, steps: int, held: list[int]
):
    """The last token made has no place of its own yet."""
    desk = Desk()
    (sequence,) = desk.running(length, output=21)
    seen: list[int] = []
    for _ in held:
        assert not desk.scheduler.lacking(steps)
        assert desk.scheduler.reserve(steps) == [sequence]
        seen.append(len(sequence.pages))
    assert seen == held
    assert sequence.num_launched == length + 1 + 5 * steps


def test_no_page_is_taken_beyond_the_last_token():
    desk = Desk()
    (sequence,) = desk.running(6, output=4)
    desk.scheduler.reserve(8)
    assert len(sequence.pages) == 3  # 9 tokens: the tenth and last is never read again
    assert not sequence.is_decoding
    assert desk.scheduler.reserve(8) == []


def test_the_last_in_order_gives_way_and_comes_back_first():
    desk = Desk(num_pages=5)
    first, second = desk.running(8, 7, output=12)
    waiting = desk.add(2)
    assert desk.scheduler.lacking(8)
    assert desk.scheduler.preempt() is second
    assert (second.row, second.pages) == (None, [])
    assert not desk.scheduler.lacking(8)
    assert desk.scheduler.reserve(8) == [first]
    assert desk.scheduler.admit() == []
    desk.scheduler.come_back()
    assert second in desk.scheduler.away, "its first token is on the way"
    second.tokens.append(1)
    desk.scheduler.come_back()
    assert second.num_launched == 0
    desk.scheduler.end(first)
    assert desk.scheduler.admit() == [second, waiting]
    assert desk.scheduler.num_preemptions == 1


def samples(
    desk: Desk, count: int, *, tenant: str = "", made: int = 40
) -> list[EngineSequence]:
    """The samples of a request, as many tokens on."""
    origin = Origin(tenant=tenant)
    sequences = [desk.add(1, output=24, origin=origin) for _ in range(count)]
    for sequence in desk.scheduler.admit():
        sequence.tokens += [1] * made
    return sequences


@pytest.mark.parametrize("tenant", ["many", "other"])
def test_whoever_holds_most_gives_way_to_one_who_holds_less(tenant: str):
    """By request, and by tenant; until they hold as much, and not from then on."""
    desk = Desk()
    many = samples(desk, 6, tenant="many")
    assert desk.scheduler.running == many[:4]
    others = samples(desk, 4, tenant=tenant)
    for _ in range(5):
        desk.scheduler.give_way()
        for sequence in desk.scheduler.admit():
            sequence.tokens += [1] * 40
    assert desk.scheduler.running == [*many[:2], *others[:2]]
    assert desk.scheduler.num_preemptions == 2
    desk.scheduler.end(others[0])
    assert desk.scheduler.admit() == others[2:3], "before those that were put back"
    for sequence in [*others[1:], many[0]]:
        desk.scheduler.end(sequence)
    assert desk.scheduler.admit() == many[2:5], "in the order they came"


def test_whoever_holds_most_gives_up_pages_too():
    desk = Desk(num_pages=8)
    many = Origin()
    sequences = [desk.add(12, origin=many) for _ in range(2)]
    assert desk.scheduler.admit() == sequences
    for sequence in sequences:
        sequence.tokens += [1] * 40
    large = desk.add(12)
    assert desk.scheduler.admit() == [], "rows are free, and two pages"
    desk.scheduler.give_way()
    assert desk.scheduler.admit() == [large]
    assert desk.scheduler.running == [sequences[0], large]


def test_nobody_gives_way_before_it_has_got_anywhere():
    desk = Desk()
    samples(desk, 4, made=31)
    desk.add(1)
    assert desk.scheduler.admit() == []
    assert desk.scheduler.giving_way() is None
    desk.scheduler.running[2].tokens.append(1)
    assert desk.scheduler.giving_way() is desk.scheduler.running[2]


def test_the_urgent_do_not_give_way_to_others():
    desk = Desk()
    urgent = Origin(priority=-1)
    for _ in range(4):
        desk.add(1, origin=urgent)
    for sequence in desk.scheduler.admit():
        sequence.tokens += [1] * 40
    desk.add(1)
    assert desk.scheduler.admit() == []
    assert desk.scheduler.giving_way() is None


def test_a_prompt_is_not_kept_waiting_by_all_those_of_another_request():
    desk = Desk(max_batched_tokens=16, num_pages=64)
    many = Origin()
    for _ in range(3):
        desk.add(10, origin=many)
    desk.add(10)
    desk.scheduler.admit()
    assert spans(desk.scheduler.chunks(16)) == [(0, 0, 10), (3, 0, 6)]


@pytest.mark.parametrize(
    ("ended", "source"),
    [
        ((), None),  # four sequences need four rows
        ((3,), None),  # and so do three
        ((0, 1), [2, 3, 0, 1]),
        ((0, 2), [3, 1, 2, 0]),
        ((1, 2, 3), None),
        ((0, 1, 2), [3, 1, 2, 0]),
    ],
)
def test_rows_move_together_when_fewer_will_do(
    ended: tuple[int, ...], source: list[int] | None
):
    desk = Desk()
    sequences = desk.running(1, 1, 1, 1)
    before = {sequence: sequence.row for sequence in sequences}
    for place in ended:
        desk.scheduler.end(sequences[place])
    assert desk.scheduler.compaction() == source
    for sequence in desk.scheduler.running:
        assert sequence.row is not None
        assert (source or [0, 1, 2, 3])[sequence.row] == before[sequence]
    fresh = [desk.add(1) for _ in ended]
    assert desk.scheduler.admit() == fresh
    assert {sequence.row for sequence in desk.scheduler.running} == {0, 1, 2, 3}
