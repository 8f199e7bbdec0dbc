"""What must hold for the records of a share group, checked whenever a broker delivers some, and at the end.

1. A record whose acknowledgement was answered with success is not delivered again.
2. A record that a member holds is not delivered while its lock lasts.
3. The deliveries of a record are counted: they rise at one leader with each of them, and over leaders past those of a
   release that was answered with success. There are never more than the limit.
4. Each record in the log ends accepted or rejected by a member, or is given up after as many deliveries as allowed.
5. With a dead-letter topic, each record that was given up, or whose rejection was answered, has a dead letter.

Leaders that another broker has followed, and that do not know of it yet, deliver records from memory, as Kafka's do:
the acknowledgements of those fail. Such deliveries count for 3 at the same leader only.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import trio

from warmlog.broker.api.share.fetching import FetchedShare, ShareFetch
from warmlog.broker.replication.peers.connection import PeerConnection
from warmlog.broker.share.partitions.delivery import Delivery
from warmlog.protocol.kafka.messages.share.fetch import ACCEPT, REJECT, RELEASE, RENEW, AcquiredRange

GROUP = "workers"
LOCK_S = 3.0
LIMIT = 4  # deliveries


class Lock:
    """A record that a member holds, from one leader, over one connection."""

    __slots__ = ("connection", "delivery", "member", "until_s")

    def __init__(self, member: str, delivery: Delivery, connection: PeerConnection | None, until_s: float) -> None:
        self.member = member
        self.delivery = delivery
        self.connection = connection
        self.until_s = until_s

    @property
    def holds(self) -> bool:
        """Whether the member may still rely on it."""
        connection = self.connection
        if trio.current_time() >= self.until_s or connection is None or not connection.is_open:
            return False
        sock: Any = connection._sock
        return not (sock._is_closed or sock._is_reset or sock._has_ended)


class Record:
    """What is known of one record."""

    __slots__ = ("answered", "count", "counted_by", "is_attempted", "lock", "most", "released")

    def __init__(self) -> None:
        self.answered: int | None = None  # the type of the acknowledgement that was answered with success
        self.is_attempted = False  # somebody may have accepted or rejected it
        self.released = 0  # deliveries before a release that was answered with success
        self.most = 0  # deliveries
        self.lock: Lock | None = None
        self.counted_by: Delivery | None = None
        self.count = 0  # the latest deliveries, at that leader


class ShareModel:
    """The records of one topic, for one group."""

    def __init__(
        self, partitions: int, problem: Callable[[str], None], is_stale: Callable[[Delivery], bool], topic: str
    ) -> None:
        """`is_stale`: whether another leader has been elected since."""
        self.records: list[defaultdict[int, Record]] = [defaultdict(Record) for _ in range(partitions)]
        self.connections: dict[tuple[str, int], PeerConnection] = {}  # by member and broker
        self.delivered = 0
        self.accepted = 0
        self._problem = problem
        self._is_stale = is_stale
        self._topic = topic

    # -- at the brokers --

    def acquired(self, broker: int, delivery: Delivery, member: str, ranges: Iterable[AcquiredRange]) -> None:
        """Check records that a broker delivers."""
        if delivery.partition.topic != self._topic or delivery.key.group != GROUP:
            return
        index, is_stale, now = delivery.partition.index, self._is_stale(delivery), trio.current_time()
        connection = self.connections.get((member, broker))
        for acquired in ranges:
            for offset in range(acquired.first_offset, acquired.last_offset + 1):
                self.delivered += 1
                record = self.records[index][offset]
                count = acquired.deliveries
                what = f"{self._topic}-{index} offset {offset}, delivery {count} to {member} by broker {broker}"
                if count > LIMIT:
                    self._problem(f"delivered too often: {what}")
                if record.lock is not None and record.lock.delivery is delivery and record.lock.holds:
                    self._problem(f"delivered while {record.lock.member} holds it: {what}")
                if record.counted_by is delivery and count <= record.count:
                    self._problem(f"deliveries fell from {record.count}: {what}")
                if not is_stale:
                    if record.answered is not None:
                        self._problem(f"delivered after acknowledgement {record.answered}: {what}")
                    if count <= record.released:
                        self._problem(f"deliveries fell, released after {record.released}: {what}")
                record.counted_by, record.count, record.most = delivery, count, max(record.most, count)
                record.lock = Lock(member, delivery, connection, now + LOCK_S)

    # -- at the members --

    def acknowledges(self, member: str, index: int, offset: int, kind: int) -> None:
        """Record that a member sends an acknowledgement."""
        record = self.records[index][offset]
        record.is_attempted |= kind in {ACCEPT, REJECT}
        if kind != RENEW:
            self._drop(record, member)

    def answered(self, member: str, index: int, offset: int, kind: int, count: int, sent_s: float) -> None:
        """Record that an acknowledgement was answered with success; `count`: deliveries of the record."""
        record = self.records[index][offset]
        if kind in {ACCEPT, REJECT}:
            self.accepted += record.answered is None
            record.answered = kind
        elif kind == RELEASE:
            record.released = max(record.released, count)
        elif record.lock is not None and record.lock.member == member:
            record.lock.until_s = max(record.lock.until_s, sent_s + LOCK_S)

    def dropped(self, member: str, index: int, offset: int) -> None:
        """Record that a member does not rely on a record any more."""
        self._drop(self.records[index][offset], member)

    @staticmethod
    def _drop(record: Record, member: str) -> None:
        if record.lock is not None and record.lock.member == member:
            record.lock = None

    # -- at the end --

    def missing(self, index: int, offset: int) -> str | None:
        """Return what is wrong with a record that no member is to get any more."""
        record = self.records[index].get(offset)
        if record is None:
            return "was never delivered"
        if not record.is_attempted and record.most < LIMIT:
            return f"was given up after {record.most} deliveries"
        return None

    def has_dead_letter(self, index: int, offset: int) -> bool:
        """Whether a record must have a dead letter: it was rejected, or nobody ever tried to accept it."""
        record = self.records[index][offset]
        return record.answered == REJECT or not record.is_attempted


@contextmanager
def watched(model: ShareModel, broker: Callable[[], int]) -> Iterator[None]:
    """Report deliveries to the model as brokers decide them; `broker`: which this task runs on."""
    acquire_from = ShareFetch._acquire_from

    def noted(self: ShareFetch, share: FetchedShare, delivery: Delivery, *arguments: Any) -> int:
        share.acquired = ()
        count = acquire_from(self, share, delivery, *arguments)
        model.acquired(broker(), delivery, self._wanted.member, share.acquired)
        return count

    with patch.object(ShareFetch, "_acquire_from", noted):
        yield
