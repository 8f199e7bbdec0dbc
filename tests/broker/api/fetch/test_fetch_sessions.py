"""The cache of fetch sessions: its bounds, and which are evicted. net/kafka/test_sessions.py has sessions in use."""

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.broker.api.fetch import sessions as fetch_sessions
from warmlog.broker.api.fetch.session import MAX_EPOCH, STEP, FetchSession, FetchSessionError
from warmlog.broker.api.fetch.sessions import EVICTION_S, ClosedPartitions, FetchSessions
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.records.fetch import ForgottenPartitions, KafkaFetchPartition


class Rig:
    """A cache and the time."""

    def __init__(self, slots: int) -> None:
        self.now = 1000.0
        self.cache = FetchSessions(slots=slots, clock=lambda: self.now, random=Random(7))

    def create(self, partitions: int) -> int:
        session = FetchSession()
        drain(session.follow([asked(index) for index in range(partitions)]))
        self.cache.register(session)
        return session.id

    def session(self, session_id: int, epoch: int = 1) -> FetchSession:
        return self.cache.find(session_id, epoch, uses_topic_ids=False)

    def use(self, session_id: int, *more: KafkaFetchPartition) -> None:
        drain(self.cache.update(self.session(session_id), more, ()))

    def has(self, session_id: int) -> bool:
        try:
            self.session(session_id)
        except FetchSessionError:
            return False
        return True


def drain(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


def asked(index: int) -> KafkaFetchPartition:
    return KafkaFetchPartition(topic="t", partition=index, offset=0)


def test_ids_are_not_zero_and_not_taken() -> None:
    rig = Rig(slots=50)
    ids = [rig.create(1) for _ in range(50)]
    assert len(set(ids)) == 50
    assert min(ids) > 0
    assert max(ids) < 1 << 31


def test_a_full_cache_gives_no_session_while_all_are_young() -> None:
    rig = Rig(slots=1)
    first = rig.create(1)
    rig.now += EVICTION_S
    assert rig.create(1000) == 0
    assert rig.has(first)


def test_a_session_that_was_not_used_for_two_minutes_gives_way() -> None:
    rig = Rig(slots=2)
    unused, used = rig.create(5), rig.create(5)
    rig.now += EVICTION_S
    rig.use(used)
    rig.now += 1
    new = rig.create(1)
    assert new
    assert not rig.has(unused)
    assert rig.has(used)
    assert rig.cache.evicted == 1


def test_the_smallest_of_the_old_sessions_gives_way_to_a_larger_one() -> None:
    rig = Rig(slots=3)
    small, large = rig.create(2), rig.create(9)
    rig.now += EVICTION_S + 1
    young = rig.create(1)
    rig.use(small)
    rig.use(large)
    assert rig.create(2) == 0  # as small as the smallest old one is not larger
    assert rig.create(3) != 0
    assert not rig.has(small)
    assert rig.has(large)
    assert rig.has(young)


def test_what_counts_is_the_size_at_the_last_use() -> None:
    rig = Rig(slots=1)
    only = rig.create(1)
    rig.now += EVICTION_S + 1
    rig.use(only, *map(asked, range(5)))
    assert rig.create(4) == 0
    assert rig.create(6) != 0


def test_a_session_that_grows_past_the_bound_of_all_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "MAX_PARTITIONS", 10)
    rig = Rig(slots=5)
    first, second = rig.create(4), rig.create(4)
    assert rig.create(3) == 0
    with pytest.raises(FetchSessionError) as refused:
        rig.use(second, *map(asked, range(4, 7)))
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert rig.has(first)
    assert not rig.has(second)
    assert rig.cache.partition_count == 4


def test_the_epoch_after_the_last_is_the_first() -> None:
    session = FetchSession()
    session.epoch = MAX_EPOCH
    assert session.advance() == 1


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(("create", "use", "forget", "remove", "wait")), st.integers(0, 5), st.integers(0, 200)
        ),
        max_size=60,
    )
)
def test_counts_and_bounds_hold_whatever_is_done(steps: list[tuple[str, int, int]]) -> None:
    """Invariant 1, against a plain dict of sizes for the sessions that are still there."""
    rig, sizes = Rig(slots=3), {0: 0}
    for what, which, amount in steps:
        known = sorted(sizes)
        chosen = known[which % len(known)]
        if what == "wait":
            rig.now += amount
        elif what == "create":
            sizes[rig.create(amount)] = amount
        elif what == "remove":
            rig.cache.remove(chosen)
        elif rig.has(chosen):
            session = rig.session(chosen)
            if what == "use":
                drain(rig.cache.update(session, list(map(asked, range(amount))), ()))
                sizes[chosen] = max(sizes[chosen], amount)
            else:
                forgotten = ForgottenPartitions(topic="t", partitions=tuple(range(amount, 300)))
                drain(rig.cache.update(session, (), (forgotten,)))
                sizes[chosen] = min(sizes[chosen], amount)
        there = {session_id: size for session_id, size in sizes.items() if rig.has(session_id)}
        assert len(rig.cache) == len(there) <= 3
        assert rig.cache.partition_count == sum(there.values())
        assert {session_id: len(rig.session(session_id)) for session_id in there} == there


def test_the_partitions_of_a_closed_session_are_removed_and_freed_a_step_at_a_time() -> None:
    session, closed = FetchSession(), ClosedPartitions()
    drain(session.follow([asked(index) for index in range(3 * STEP)]))
    order, pending = session.order, session.pending
    closed.add(session)
    assert not len(session)
    assert not session.order
    left = []
    while len(closed):
        left.append((len(closed), len(order), len(pending)))
        closed.detach()
    assert left == [(2 * STEP,) * 3, (STEP,) * 3]
    assert not order
    assert not pending
