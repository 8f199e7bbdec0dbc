"""The client's half of an incremental fetch session, without I/O (KIP-227).

    full fetch, epoch 0         names every partition. The response has all of them, and the id of a session, or
                                NO_SESSION if the broker has too many; then the next fetch is full again
    incremental, epoch n        names changes since the last fetch only: partitions added, removed, or at another
                                offset. The response has only what changed at the broker; epoch n + 1 comes next
    an error of the session     the next fetch is full, and closes the old session, which the broker may still have
    a lost response             the same: it is unknown whether the broker has counted the request

Invariants:
1. A partition is identified by topic id and index, or by topic name and index where the peer has no ids, so that a
   recreated topic is another topic.
2. After every response that `take` accepted, the broker's set of partitions is the one sent to it.
3. While a session lasts, a fetch costs work for changed partitions only.
4. Partitions whose records arrived move behind the others, so that none starves if every fetch is full.

Source: org.apache.kafka.clients.FetchSessionHandler.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.messages.records.fetch import (
    FINAL_SESSION_EPOCH,
    INITIAL_SESSION_EPOCH,
    NO_SESSION,
    ForgottenPartitions,
    KafkaFetchedPartition,
    KafkaFetchPartition,
    KafkaFetchRequest,
    KafkaFetchResponse,
)

FetchKey: TypeAlias = tuple[str | bytes, int]  # topic id or name, partition
MAX_EPOCH: Final = (1 << 31) - 1


class FetchResponseError(Exception):
    """A response contradicts the session: it has partitions that were not requested, or lacks requested ones."""


class Fetched(NamedTuple):
    """A partition of a response, and how it was requested."""

    requested: KafkaFetchPartition
    result: KafkaFetchedPartition


class FetchSession:
    """The partitions to fetch from one broker, and the broker's state of the session.

    Call `request`, send it, and pass the response to `take`; if none arrives, call `lose`. One request at a time.
    Change partitions between requests: within a session the broker reports offsets once, and a response that arrives
    for a changed partition is dropped.
    """

    def __init__(self, *, uses_topic_ids: bool) -> None:
        self.uses_topic_ids = uses_topic_ids
        self.id = NO_SESSION
        self.epoch = INITIAL_SESSION_EPOCH
        self._wanted: OrderedDict[FetchKey, KafkaFetchPartition] = OrderedDict()
        self._changed: dict[FetchKey, None] = {}  # wanted, and changed since the broker was last informed
        self._known: dict[FetchKey, KafkaFetchPartition] = {}  # the session's state at the broker
        self._removed: dict[FetchKey, KafkaFetchPartition] = {}  # in the broker's session, but no longer wanted
        self._sent: dict[FetchKey, KafkaFetchPartition] | None = None  # in the request that has no response yet

    def __len__(self) -> int:
        return len(self._wanted)

    def __contains__(self, key: FetchKey) -> bool:
        return key in self._wanted

    @property
    def is_incremental(self) -> bool:
        """Whether the next request names changes only."""
        return self.epoch not in {INITIAL_SESSION_EPOCH, FINAL_SESSION_EPOCH}

    def key_of(self, partition: KafkaFetchPartition | KafkaFetchedPartition) -> FetchKey:
        """Return the key of a partition in the session."""
        return (partition.topic_id if self.uses_topic_ids else partition.topic), partition.partition

    def wants(self, key: FetchKey) -> KafkaFetchPartition | None:
        """Return how a partition is to be fetched; None if it is not followed."""
        return self._wanted.get(key)

    def set(self, partition: KafkaFetchPartition) -> None:
        """Add a partition, or change its fetch offset."""
        if self.uses_topic_ids and partition.topic_id == NO_TOPIC_ID:
            raise ValueError(f"{partition.topic} has no topic id")
        key = self.key_of(partition)
        self._wanted[key] = partition
        self._removed.pop(key, None)
        if self._known.get(key) == partition:
            self._changed.pop(key, None)
        else:
            self._changed[key] = None

    def remove(self, key: FetchKey) -> None:
        """Stop fetching a partition."""
        self._wanted.pop(key, None)
        self._changed.pop(key, None)
        known = self._known.get(key)
        if known is not None:
            self._removed[key] = known

    def request(self, make: Callable[..., KafkaFetchRequest] = KafkaFetchRequest) -> KafkaFetchRequest:
        """Return the next request. `make` is called with the partitions and the session, and adds the limits."""
        assert self._sent is None
        if self.is_incremental:
            named = {key: self._wanted[key] for key in self._changed}
            forgotten = _forgotten(self._removed.values())
            for key in self._removed:
                del self._known[key]
        else:
            named, forgotten = dict(self._wanted), ()
            self._known = {}
        self._known.update(named)
        self._changed, self._removed, self._sent = {}, {}, named
        return make(
            partitions=tuple(named.values()),
            forgotten=forgotten,
            session_id=self.id,
            session_epoch=self.epoch,
            uses_topic_ids=self.uses_topic_ids,
        )

    def take(self, response: KafkaFetchResponse) -> list[Fetched]:
        """Accept the response to the request; return those of its partitions that are still wanted as requested.

        Raises FetchResponseError. After that, and after an error of the response, the next request is a full one.
        """
        assert self._sent is not None
        sent, self._sent = self._sent, None
        if response.error is not ErrorCode.NONE:
            # an unknown session need not be closed
            self._start_again(is_gone=response.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            return []
        results = {self.key_of(result): result for result in response.received}
        problem = self._problem(sent, results, response)
        if problem:
            self._start_again(is_gone=False)
            raise FetchResponseError(problem)
        self._advance(response.session_id)
        return [fetched for key, result in results.items() if (fetched := self._fetched(key, result)) is not None]

    def lose(self) -> None:
        """Record that the request got no response."""
        self._sent = None
        self._start_again(is_gone=False)

    def _problem(
        self,
        sent: dict[FetchKey, KafkaFetchPartition],
        results: dict[FetchKey, KafkaFetchedPartition],
        response: KafkaFetchResponse,
    ) -> str:
        """Return what is wrong with a response, or an empty text."""
        if len(results) != len(response.partitions):
            return "a fetch response has a partition twice"
        if self.is_incremental:
            if response.session_id not in {self.id, NO_SESSION}:
                return f"a fetch response of session {response.session_id} instead of {self.id}"
            if any(key not in self._known for key in results):
                return "a fetch response has a partition that is not in the session"
        elif results.keys() != sent.keys():
            return f"a full fetch response has {len(results)} partitions, not the {len(sent)} of the request"
        elif response.session_id < 0:
            return f"a fetch session with the id {response.session_id}"
        return ""

    def _fetched(self, key: FetchKey, result: KafkaFetchedPartition) -> Fetched | None:
        """Return a partition of a response, unless it was removed or changed since the request."""
        requested = self._known.get(key)
        if requested is None or self._wanted.get(key) != requested:
            return None
        if len(result.records):
            self._wanted.move_to_end(key)
        return Fetched(requested, result)

    def _advance(self, session_id: int) -> None:
        """Count an accepted request."""
        if session_id == NO_SESSION:
            self.id, self.epoch = NO_SESSION, INITIAL_SESSION_EPOCH
        elif self.is_incremental:
            self.epoch = 1 if self.epoch == MAX_EPOCH else self.epoch + 1
        else:
            self.id, self.epoch = session_id, 1

    def _start_again(self, *, is_gone: bool) -> None:
        """Make the next request a full one, which closes the broker's session unless that is gone."""
        self.epoch = INITIAL_SESSION_EPOCH
        if is_gone:
            self.id = NO_SESSION


def _forgotten(partitions: Iterable[KafkaFetchPartition]) -> tuple[ForgottenPartitions, ...]:
    """Group removed partitions by topic."""
    topics: dict[tuple[str, bytes], list[int]] = {}
    for partition in partitions:
        topics.setdefault((partition.topic, partition.topic_id), []).append(partition.partition)
    return tuple(
        [
            ForgottenPartitions(topic=topic, topic_id=topic_id, partitions=tuple(indexes))
            for (topic, topic_id), indexes in topics.items()
        ]
    )
