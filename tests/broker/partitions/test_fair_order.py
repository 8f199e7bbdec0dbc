"""Work in an order in which no source gets more than the others, however much of it waits or is in progress."""

from collections import Counter

from warmlog.broker.partitions.fair_order import FairOrder


def test_work_in_progress_counts_when_it_is_measured() -> None:
    order: FairOrder[int] = FairOrder()
    for number in range(100):
        order.add("greedy", number)
    taken = [order.take() for _ in range(3)]
    for work in taken:
        order.served(work, 0.1)
    order.add("other", 0)
    assert order.take().source == "other"


def test_sources_are_served_alike_although_each_takes_several_at_a_time() -> None:
    order: FairOrder[int] = FairOrder()
    seconds = {"slow": 0.1, "quick": 0.01}
    for number in range(3000):
        for source in seconds:
            order.add(source, number)
    received: Counter[str] = Counter()
    for _ in range(200):
        for work in [order.take() for _ in range(4)]:
            order.served(work, seconds[str(work.source)])
            received[str(work.source)] += int(1000 * seconds[str(work.source)])
    assert abs(received["slow"] - received["quick"]) <= 4 * 100


def test_work_that_was_not_begun_costs_nothing() -> None:
    order: FairOrder[int] = FairOrder()
    for source in ("one", "two"):
        order.add(source, 0)
    works = [order.take(), order.take()]
    assert [work.source for work in works] == ["one", "two"]
    order.served(works[0], 0.1)
    order.served(works[1], 0.0)
    order.add("one", 1)
    order.add("two", 0)
    assert order.take().source == "two"
