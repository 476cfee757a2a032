"""Whose work is next: counted, with work that takes time by the book."""

from fdjax.serve.fair_order import FairOrder

HOSTILE = 60


def test_another_owners_is_served_at_once():
    """However many were there before, and however long they have been tried."""
    order = FairOrder[str]()
    for number in range(HOSTILE):
        order.add("hostile", owner="hostile", rank=0.35, since=1.0 + number)
    for _ in range(3 * HOSTILE):
        owner, work = order.pop()
        order.spend(owner, 0.6)
        order.add(work, owner=owner, rank=0.6, since=1.0)
    order.add("innocent", owner="innocent", rank=0.35, since=1.0 + HOSTILE)
    assert "innocent" in [order.pop()[1] for _ in range(2)]


def test_every_fourth_turn_is_of_the_last_that_came():
    order = FairOrder[int]()
    for number in range(9):
        order.add(number, rank=0.35, since=1.0 + number)
    assert [order.pop()[1] for _ in range(9)] == [8, 0, 1, 2, 7, 3, 4, 5, 6]


def test_who_comes_back_is_as_old_as_before():
    order = FairOrder[str]()
    order.add("new", rank=0.35, since=3.0)
    order.add("old", rank=0.35, since=1.0)
    order.add("newest", rank=0.35, since=4.0)
    order.add("came back", rank=0.35, since=2.0)
    done = [order.pop()[1] for _ in range(4)]
    assert done == ["newest", "old", "came back", "new"]


def test_no_rank_waits_for_ever():
    """However much comes that may take less."""
    order = FairOrder[str]()
    order.add("long", rank=0.6, since=1.0)
    for number in range(HOSTILE):
        order.add("short", rank=0.35, since=2.0 + number)
    done = list[str]()
    while "long" not in done:
        done.append(order.pop()[1])
        order.add("short", rank=0.35, since=100.0 + len(done))
    assert len(done) == 3


def test_nobody_saves_up_by_staying_away():
    order = FairOrder[str]()
    for turn in range(100):
        order.add(f"a{turn}", owner="a")
        order.add(f"stays{turn}", owner="stays")
    for _ in range(150):
        order.spend(order.pop()[0], 1.0)
    for turn in range(20):
        order.add(f"b{turn}", owner="b")
    following = [order.pop() for _ in range(1)]
    order.spend(following[0][0], 1.0)
    for _ in range(29):
        following.append(order.pop())
        order.spend(following[-1][0], 1.0)
    assert 9 <= sum(owner == "b" for owner, _ in following) <= 11


def test_in_the_order_of_coming_where_all_else_is_equal():
    order = FairOrder[int]()
    for number in range(10):
        order.add(number)
    assert [order.pop() for _ in range(10)] == [("", number) for number in range(10)]
    assert not len(order)


def test_what_was_used_is_forgotten_when_nobody_waits():
    order = FairOrder[str]()
    order.add("first", owner="a")
    order.spend(order.pop()[0], 100.0)
    order.add("second", owner="a")
    order.add("third", owner="b")
    assert order.pop() == ("a", "second")


def test_shorter_work_goes_first():
    order = FairOrder[str]()
    order.add("long", size=100)
    order.add("short", size=1)
    assert [order.pop()[1] for _ in range(2)] == ["short", "long"]


def test_what_is_long_has_its_turn_however_much_comes_that_is_short():
    order = FairOrder[str]()
    order.add("long", size=100)
    order.add("short", size=9)
    done = list[str]()
    while "long" not in done:
        done.append(order.pop()[1])
        order.add("short", size=9)
    assert len(done) in (22, 23), "two wait each time, and each has a half"
