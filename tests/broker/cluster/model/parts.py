"""The parts of a simulated cluster: a store without a network, and brokers with a log in a list."""

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from warmlog.broker.cluster.history import ScannedDirectory
from warmlog.broker.cluster.image import EMPTY, ClusterImage
from warmlog.broker.cluster.rules import LogEnd
from warmlog.broker.cluster.store import Changes, Deleted, KeyValue, Put, Range, StoreTransaction
from warmlog.broker.cluster.values import NO_EPOCH, Member, PartitionState
from warmlog.broker.log.index.leader_epochs import LeaderEpochs
from warmlog.broker.replication.leading.progress import Progress
from warmlog.protocol.partitions import TopicIdPartition

KEY = TopicIdPartition(UUID(int=1), 0)


class Cell:
    """A linearizable store without a network: keys, revisions, and all changes so far."""

    def __init__(self) -> None:
        self.items: dict[str, KeyValue] = {}
        self.changes: list[Changes] = []

    @property
    def revision(self) -> int:
        return len(self.changes)

    def commit(self, transaction: StoreTransaction) -> bool:
        for key, revision in transaction.compares:
            found = self.items.get(key)
            if (0 if found is None else found.mod_revision) != revision:
                return False
        events: list[KeyValue | Deleted] = []
        revision = self.revision + 1
        for operation in transaction.operations:
            if isinstance(operation, Put):
                old = self.items.get(operation.key)
                created = revision if old is None else old.create_revision
                self.items[operation.key] = KeyValue(operation.key, operation.value, created, revision)
                events.append(self.items[operation.key])
            elif self.items.pop(operation.key, None) is not None:
                events.append(Deleted(operation.key))
        self.changes.append(Changes(revision, tuple(events)))
        return True

    def contents(self) -> Range:
        return Range(self.revision, tuple(self.items.values()))


class Copy(NamedTuple):
    """A copy of the two data directories of a broker, made after a clean stop; the log lies in the second one."""

    remembered: int  # the latest registration, in the first one
    closed_in: int  # the epoch in the clean shutdown markers
    log: tuple[tuple[int, int], ...]


class Broker:
    """A broker with its log: (leader epoch, value) by offset."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.is_up = False
        self.epoch = self.since = NO_EPOCH
        self.remembered = NO_EPOCH  # the latest registration, in the first data directory
        self.closed_in: list[int | None] = [None, None]  # the epochs in the clean shutdown markers
        self.copy: Copy | None = None
        self.log: list[tuple[int, int]] = []
        self.epochs = LeaderEpochs()
        self.high_watermark = 0
        self.synced = 0
        self.image = ClusterImage(EMPTY)
        self.progress: Progress | None = None  # while it leads
        self.lost_in: int | None = None  # the leader epoch in which it noticed that it has lost records
        self.answers: dict[Member, LogEnd] = {}  # where logs ended, asked as controller
        self.asked_in: PartitionState | None = None  # the state of the partition then

    @property
    def me(self) -> Member:
        return Member(self.id, self.epoch)

    @property
    def state(self) -> PartitionState | None:
        return self.image.partitions.get(KEY)

    @property
    def directories(self) -> list[ScannedDirectory]:
        return [
            ScannedDirectory(f"{self.id}/{number}", UUID(int=10 * self.id + number), epoch)
            for number, epoch in enumerate(self.closed_in)
        ]

    def truncate(self, offset: int) -> None:
        del self.log[offset:]
        self.epochs.truncate_from_end(len(self.log))
        self.high_watermark = min(self.high_watermark, len(self.log))
        self.synced = min(self.synced, len(self.log))

    def append(self, records: Iterable[tuple[int, int]]) -> None:
        for record in records:
            self.epochs.assign(record[0], len(self.log))
            self.log.append(record)
