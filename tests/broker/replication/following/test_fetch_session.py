"""The client's half of a session against the broker's own: both must hold the same partitions."""

from random import Random
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from warmlog.broker.api.fetch.session import FetchSession as BrokerSession
from warmlog.broker.api.fetch.session import FetchSessionError
from warmlog.broker.api.fetch.sessions import FetchSessions
from warmlog.broker.replication.following.fetch_session import MAX_EPOCH, FetchResponseError, FetchSession
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.messages.records.fetch import (
    KafkaFetchedPartition,
    KafkaFetchPartition,
    KafkaFetchRequest,
    KafkaFetchResponse,
)

TOPICS = 3
INDEXES = 3
RECORDS = memoryview(b"records")


def wanted(topic: int, index: int, offset: int = 0, *, by_id: bool = True) -> KafkaFetchPartition:
    topic_id = bytes([topic + 1]) * 16 if by_id else NO_TOPIC_ID
    return KafkaFetchPartition(topic=f"t{topic}", topic_id=topic_id, partition=index, offset=offset)


def found(asked: KafkaFetchPartition, *, by_id: bool = True, records: memoryview = RECORDS) -> KafkaFetchedPartition:
    """What a broker returns, which names topics in one way only."""
    return KafkaFetchedPartition(
        topic="" if by_id else asked.topic,
        topic_id=asked.topic_id if by_id else NO_TOPIC_ID,
        partition=asked.partition,
        records=records,
    )


class Broker:
    """The broker's session code, without logs: answers a fetch with chosen partitions of its session."""

    def __init__(self, slots: int, *, by_id: bool) -> None:
        self.by_id = by_id
        self.sessions = FetchSessions(slots=slots, clock=lambda: 0.0, random=Random(1))

    def held(self, session_id: int) -> dict[tuple[Any, Any], KafkaFetchPartition]:
        session = self.sessions._sessions[session_id]
        return {
            (topic, index): entry.requested  # type: ignore[misc]
            for topic, indexes in session._topics.items()
            for index, entry in indexes.items()
        }

    def answer(self, request: KafkaFetchRequest, chosen: Random) -> KafkaFetchResponse:
        assert request.uses_topic_ids == self.by_id
        if request.session_epoch in {0, -1}:
            self.sessions.remove(request.session_id)
            session = BrokerSession(uses_topic_ids=self.by_id)
            for _ in session.follow(request.partitions, merges=True):
                pass
            self.sessions.register(session)
            partitions = [found(one, by_id=self.by_id) for one in request.partitions]
            return KafkaFetchResponse(partitions=tuple(partitions), session_id=session.id)
        try:
            session = self.sessions.find(request.session_id, request.session_epoch, uses_topic_ids=self.by_id)
            session.advance()
            for _ in self.sessions.update(session, request.partitions, request.forgotten):
                pass
        except FetchSessionError as error:
            return KafkaFetchResponse(partitions=(), error=error.code)
        if not session.id:
            return KafkaFetchResponse(partitions=())
        changed = [one for one in self.held(session.id).values() if chosen.random() < 0.5]
        return KafkaFetchResponse(
            partitions=tuple([found(one, by_id=self.by_id) for one in changed]), session_id=session.id
        )


class Sessions(RuleBasedStateMachine):
    """Any order of changes, fetches, lost requests, lost responses and evictions."""

    @initialize(by_id=st.booleans(), slots=st.sampled_from((0, 1, 100, 100)))
    def begin(self, by_id: bool, slots: int) -> None:
        self.by_id = by_id
        self.broker = Broker(slots, by_id=by_id)
        self.session = FetchSession(uses_topic_ids=by_id)
        self.wanted: dict[Any, KafkaFetchPartition] = {}
        self.is_agreed = False
        self.unanswered = 0  # full fetches that the broker has answered in vain
        for index in range(INDEXES):
            self.set(0, index, 0)
        self.fetch(0)

    @rule(topic=st.integers(0, TOPICS - 1), index=st.integers(0, INDEXES - 1), offset=st.integers(0, 2))
    def set(self, topic: int, index: int, offset: int) -> None:
        partition = wanted(topic, index, offset, by_id=self.by_id)
        self.session.set(partition)
        self.wanted[self.session.key_of(partition)] = partition
        self.is_agreed = False

    @rule(topic=st.integers(0, TOPICS - 1), index=st.integers(0, INDEXES - 1))
    def remove(self, topic: int, index: int) -> None:
        key = self.session.key_of(wanted(topic, index, by_id=self.by_id))
        self.session.remove(key)
        self.wanted.pop(key, None)
        self.is_agreed = False

    @rule(index=st.integers(0, INDEXES - 1), offset=st.integers(0, 2), seed=st.integers(0, 1000))
    def change_and_fetch(self, index: int, offset: int, seed: int) -> None:
        self.set(0, index, offset)
        self.fetch(seed)

    @rule(index=st.integers(0, INDEXES - 1), seed=st.integers(0, 1000))
    def remove_and_fetch(self, index: int, seed: int) -> None:
        self.remove(0, index)
        self.fetch(seed)

    @rule(index=st.integers(0, INDEXES - 1), seed=st.integers(0, 1000))
    def change_mind_and_fetch(self, index: int, seed: int) -> None:
        self.remove(0, index)
        self.set(0, index, 0)
        self.fetch(seed)

    @rule(seed=st.integers(0, 1000))
    def fetch(self, seed: int) -> None:
        was_incremental = self.session.is_incremental
        is_evicted = was_incremental and self.session.id not in self.broker.sessions._sessions
        response = self.broker.answer(self.session.request(), Random(seed))
        fetched = self.session.take(response)
        assert response.error is (ErrorCode.FETCH_SESSION_ID_NOT_FOUND if is_evicted else ErrorCode.NONE)
        for one in fetched:
            assert self.wanted[self.session.key_of(one.requested)] == one.requested
        if response.error is ErrorCode.NONE:
            assert len(fetched) == len(response.partitions)
            assert was_incremental or len(fetched) == len(self.wanted)
        else:
            assert not self.session.is_incremental
        self.is_agreed = response.error is ErrorCode.NONE and response.session_id != 0

    @rule()
    def lose_request(self) -> None:
        self.session.request()
        self.session.lose()
        self.is_agreed = False

    @rule(seed=st.integers(0, 1000))
    def lose_response(self, seed: int) -> None:
        request = self.session.request()
        self.broker.answer(request, Random(seed))
        self.unanswered += request.session_epoch == 0
        self.session.lose()
        self.is_agreed = False

    @rule()
    def evict_and_fetch(self) -> None:
        self.broker.sessions.remove(self.session.id)
        self.is_agreed = False
        self.fetch(0)

    @rule()
    def last_epoch(self) -> None:
        if self.session.is_incremental and self.session.id in self.broker.sessions._sessions:
            self.session.epoch = self.broker.sessions._sessions[self.session.id].epoch = MAX_EPOCH
            self.fetch(0)
            self.fetch(0)

    @invariant()
    def both_hold_the_same(self) -> None:
        assert {key: self.session.wants(key) for key in self.wanted} == self.wanted
        assert len(self.session) == len(self.wanted)
        if self.is_agreed:
            assert self.broker.held(self.session.id) == self.wanted

    @invariant()
    def no_session_is_left_behind(self) -> None:
        """The client closes every session whose id it has learned."""
        assert len(self.broker.sessions) <= 1 + self.unanswered


TestSessions = Sessions.TestCase


def opened(*partitions: KafkaFetchPartition) -> FetchSession:
    session = FetchSession(uses_topic_ids=True)
    for one in partitions:
        session.set(one)
    session.take(KafkaFetchResponse(partitions=tuple(found(one) for one in session.request().partitions), session_id=7))
    return session


def test_an_incremental_request_names_only_changes() -> None:
    session = opened(wanted(0, 0), wanted(0, 1), wanted(1, 0))
    session.set(wanted(0, 1, offset=5))
    session.remove(session.key_of(wanted(1, 0)))
    request = session.request()
    assert (request.session_id, request.session_epoch) == (7, 1)
    assert request.partitions == (wanted(0, 1, offset=5),)
    assert [(one.topic_id, one.partitions) for one in request.forgotten] == [(b"\x02" * 16, (0,))]


def test_a_change_that_is_taken_back_is_not_sent() -> None:
    session = opened(wanted(0, 0), wanted(0, 1))
    session.set(wanted(0, 1, offset=5))
    session.set(wanted(0, 1))
    session.remove(session.key_of(wanted(0, 0)))
    session.set(wanted(0, 0))
    request = session.request()
    assert (request.partitions, request.forgotten) == ((), ())


def test_partitions_with_records_move_behind_the_others() -> None:
    session = FetchSession(uses_topic_ids=True)
    for index in range(3):
        session.set(wanted(0, index))
    none = memoryview(b"")
    answers = [found(wanted(0, 0)), found(wanted(0, 1), records=none), found(wanted(0, 2), records=none)]
    session.request()
    session.take(KafkaFetchResponse(partitions=tuple(answers)))
    assert [one.partition for one in session.request().partitions] == [1, 2, 0]


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        (KafkaFetchResponse(partitions=(found(wanted(0, 0)),) * 2, session_id=7), "twice"),
        (KafkaFetchResponse(partitions=(found(wanted(2, 0)),), session_id=7), "not in the session"),
        (KafkaFetchResponse(partitions=(), session_id=8), "session 8 instead of 7"),
    ],
)
def test_a_response_that_contradicts_the_session_starts_a_new_one(response: KafkaFetchResponse, problem: str) -> None:
    session = opened(wanted(0, 0), wanted(0, 1))
    session.request()
    with pytest.raises(FetchResponseError, match=problem):
        session.take(response)
    again = session.request()
    assert (again.session_id, again.session_epoch) == (7, 0)
    assert len(again.partitions) == 2


@pytest.mark.parametrize("count", [0, 1])
def test_a_full_response_must_have_every_partition(count: int) -> None:
    session = FetchSession(uses_topic_ids=True)
    session.set(wanted(0, 0))
    session.set(wanted(0, 1))
    request = session.request()
    with pytest.raises(FetchResponseError, match=f"{count} partitions, not the 2"):
        session.take(KafkaFetchResponse(partitions=tuple(found(one) for one in request.partitions[:count])))


def test_a_negative_session_id_is_refused() -> None:
    session = FetchSession(uses_topic_ids=True)
    session.set(wanted(0, 0))
    session.request()
    with pytest.raises(FetchResponseError, match="id -3"):
        session.take(KafkaFetchResponse(partitions=(found(wanted(0, 0)),), session_id=-3))


@pytest.mark.parametrize(
    ("error", "session_id"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 7),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 7),
    ],
)
def test_an_error_of_the_session_starts_a_new_one(error: ErrorCode, session_id: int) -> None:
    session = opened(wanted(0, 0))
    session.request()
    assert session.take(KafkaFetchResponse(partitions=(), error=error)) == []
    again = session.request()
    assert (again.session_id, again.session_epoch, len(again.partitions)) == (session_id, 0, 1)


def test_a_response_for_a_partition_changed_meanwhile_is_dropped() -> None:
    session = opened(wanted(0, 0), wanted(0, 1))
    session.request()
    session.set(wanted(0, 0, offset=9))
    session.remove(session.key_of(wanted(0, 1)))
    answer = KafkaFetchResponse(partitions=(found(wanted(0, 0)), found(wanted(0, 1))), session_id=7)
    assert session.take(answer) == []
    assert session.request().partitions == (wanted(0, 0, offset=9),)


def test_a_partition_without_an_id_is_refused_where_ids_are_used() -> None:
    with pytest.raises(ValueError, match="no topic id"):
        FetchSession(uses_topic_ids=True).set(wanted(0, 0, by_id=False))
