"""The groups of one partition of `__consumer_offsets` with their offsets, for one term of that partition.

After its term a shard cannot be looked up. A task that still refers to it changes nothing but the shard.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorShard.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import trio

from warmlog.broker.coordinator.term import Term
from warmlog.broker.groups.classic.state import ClassicGroup
from warmlog.broker.groups.group import Group
from warmlog.broker.groups.offsets import Offsets
from warmlog.broker.groups.pending_offsets import PendingOffset, PendingOffsets, PendingTransaction
from warmlog.broker.groups.topic import ConsumerGroupRow, GroupRow, ShareGroupRow, StoredOffset, StreamsGroupRow
from warmlog.protocol.kafka.group_records import StoredGroup
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.markers import Outcome

ENDED_PER_STEP = 500  # offsets of a transaction applied between two checkpoints: about 1 ms
CREATED_PER_STEP = 500  # groups between two checkpoints
FREED_PER_STEP = 1000  # offsets between two checkpoints: less than 1 ms


Obsolete: TypeAlias = dict[str, list[TopicPartition]]  # topics and partitions by group


class GroupShard:
    """The groups of one log partition. Belongs to the event loop."""

    __slots__ = (
        "_new_group",
        "_was_deleted",
        "groups",
        "obsolete",
        "offsets",
        "pending",
        "rows",
        "share_rows",
        "stored",
        "streams_rows",
        "term",
    )

    def __init__(
        self, term: Term, new_group: Callable[[str], ClassicGroup], was_deleted: Callable[[bytes], bool]
    ) -> None:
        """Begin without groups. `new_group` returns one without members.

        `was_deleted` returns whether the topic with an id was deleted.
        """
        self.term = term
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()
        self.pending = PendingOffsets()
        self.stored: dict[str, StoredGroup] = {}  # replayed but not restored yet
        self.rows: dict[str, list[tuple[int, ConsumerGroupRow]]] = {}  # the same for consumer groups, with offsets
        self.share_rows: dict[str, list[ShareGroupRow]] = {}  # the same for share groups
        self.streams_rows: dict[str, list[StreamsGroupRow]] = {}  # the same for streams groups
        self.obsolete: Obsolete = {}  # offsets of deleted topics, which were not replayed
        self._new_group = new_group
        self._was_deleted = was_deleted
        if not term.is_empty:
            self.pending.begin_loading()

    def get(self, name: str) -> Group | None:
        """Return a group, or None."""
        return self.groups.get(name)

    def create(self, name: str) -> ClassicGroup:
        """Create a group with offsets only, as classic groups begin."""
        group = self.groups[name] = self._new_group(name)
        return group

    def offset_bytes(self, name: str) -> int:
        """Estimate the bytes of a group's offsets, committed and pending."""
        return self.offsets.bytes_of(name) + self.pending.bytes_of(name)

    # -- replay --

    def replay(self, name: str, row: GroupRow, offset: int) -> None:
        """Apply the latest record of a group or of an offset."""
        if isinstance(row, StoredGroup):
            self.stored[name] = row
        elif isinstance(row, ConsumerGroupRow):
            self.rows.setdefault(name, []).append((offset, row))
        elif isinstance(row, ShareGroupRow):
            self.share_rows.setdefault(name, []).append(row)
        elif isinstance(row, StreamsGroupRow):
            self.streams_rows.setdefault(name, []).append(row)
        elif not self._is_obsolete(name, row):
            self.offsets.put(name, *row, offset)

    def replay_pending(self, producer_id: int, name: str, row: GroupRow, offset: int) -> None:
        """Apply an offset of an open transaction."""
        if isinstance(row, StoredOffset) and not self._is_obsolete(name, row):
            self.put_pending(producer_id, PendingOffset(name, *row, offset))

    def _is_obsolete(self, name: str, row: StoredOffset) -> bool:
        """Return whether an offset's topic was deleted: an earlier coordinator ended before writing the tombstone."""
        is_obsolete = self._was_deleted(row.value.topic_id)
        if is_obsolete:
            self.obsolete.setdefault(name, []).append((row.topic, row.partition))
        return is_obsolete

    def create_missing(self) -> Iterator[None]:
        """Create the groups that only have offsets."""
        for number, name in enumerate([*self.offsets.groups(), *self.pending.groups()]):
            if name not in self.groups:
                self.create(name)
            if number % CREATED_PER_STEP == 0:
                yield

    # -- transactions --

    def put_pending(self, producer_id: int, pending: PendingOffset) -> None:
        """Add a stored offset of a transaction, or apply the transaction's outcome."""
        outcome = self.pending.outcome_of(producer_id, pending.record_offset)
        if outcome is None:
            self.pending.put(producer_id, pending)
        elif outcome is Outcome.COMMIT:
            self._commit(pending)

    def end_transaction(self, producer_id: int, marker_offset: int, outcome: Outcome) -> PendingTransaction | None:
        """Apply a marker to a transaction's first offsets; return the transaction if there are more."""
        if marker_offset < self.term.loaded_to:
            return None  # loaded with the records before it, and reported only now
        transaction = self.pending.end(producer_id, marker_offset, outcome)
        if transaction is None:
            return None
        self._apply(transaction, outcome)
        return transaction if len(transaction) else None

    async def apply_in_steps(self, transaction: PendingTransaction, outcome: Outcome) -> None:
        """Apply a marker to all offsets of a transaction."""
        while len(transaction):
            await trio.lowlevel.checkpoint()
            self._apply(transaction, outcome)

    def _apply(self, transaction: PendingTransaction, outcome: Outcome) -> None:
        for pending in self.pending.take(transaction, ENDED_PER_STEP):
            if outcome is Outcome.COMMIT:
                self._commit(pending)

    def _commit(self, pending: PendingOffset) -> None:
        if pending.group not in self.groups:
            self.create(pending.group)
        self.offsets.put(*pending)

    # -- the end --

    def free(self) -> Iterator[None]:
        """Free the offsets in steps."""
        while self.offsets.forget(FREED_PER_STEP) or self.pending.forget(FREED_PER_STEP):
            yield
        while self.stored:
            self.stored.popitem()
            if len(self.stored) % FREED_PER_STEP == 0:
                yield
        for rows in (self.rows, self.share_rows, self.streams_rows):
            while rows:
                rows.popitem()
                yield
