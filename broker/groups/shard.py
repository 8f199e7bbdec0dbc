"""The groups of one partition of `__consumer_offsets` with their offsets, for one term of that partition.

A shard whose term is over cannot be found any more. Whoever still refers to it changes nothing but the shard.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorShard.
"""

from collections.abc import Callable

import trio

from warmlog.broker.coordinator_log.term import Term
from warmlog.broker.groups.offsets import Offsets
from warmlog.broker.groups.pending_offsets import PendingOffset, PendingOffsets, Transaction
from warmlog.broker.groups.state import Group
from warmlog.protocol.records.markers import Outcome

ENDED_PER_STEP = 500  # offsets of a transaction, applied between two checkpoints: about 1 ms
FREED_PER_STEP = 1000  # offsets, between two checkpoints: less than 1 ms


class GroupShard:
    """The groups of one log partition. Belongs to the event loop."""

    __slots__ = ("_new_group", "groups", "loaded_to", "offsets", "pending", "term")

    def __init__(self, term: Term, new_group: Callable[[str], Group]) -> None:
        """Begin without groups. `new_group` returns one without members."""
        self.term = term
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()
        self.pending = PendingOffsets()
        self.loaded_to = 0  # the records of the log below have been loaded
        self._new_group = new_group

    def get(self, name: str) -> Group | None:
        """Return a group, or None."""
        return self.groups.get(name)

    def create(self, name: str) -> Group:
        """Create a group."""
        group = self.groups[name] = self._new_group(name)
        return group

    def offset_bytes(self, name: str) -> int:
        """Return about how many bytes a group's offsets hold, committed and pending."""
        return self.offsets.bytes_of(name) + self.pending.bytes_of(name)

    # -- transactions --

    def put_pending(self, producer_id: int, pending: PendingOffset) -> None:
        """Add an offset of a transaction that is in the log, or apply the transaction's outcome."""
        outcome = self.pending.outcome_of(producer_id, pending.record_offset)
        if outcome is None:
            self.pending.put(producer_id, pending)
        elif outcome is Outcome.COMMIT:
            self._commit(pending)

    def end_transaction(self, producer_id: int, marker_offset: int, outcome: Outcome) -> Transaction | None:
        """Apply a marker to the first of the transaction's offsets; return the transaction if there are more."""
        if marker_offset < self.loaded_to:
            return None  # loaded with the records before it, and only now reported
        transaction = self.pending.end(producer_id, marker_offset, outcome)
        if transaction is None:
            return None
        self._apply(transaction, outcome)
        return transaction if len(transaction) else None

    async def apply_in_steps(self, transaction: Transaction, outcome: Outcome) -> None:
        """Apply a marker to all offsets of a transaction."""
        while len(transaction):
            await trio.lowlevel.checkpoint()
            self._apply(transaction, outcome)

    def _apply(self, transaction: Transaction, outcome: Outcome) -> None:
        for pending in self.pending.take(transaction, ENDED_PER_STEP):
            if outcome is Outcome.COMMIT:
                self._commit(pending)

    def _commit(self, pending: PendingOffset) -> None:
        if pending.group not in self.groups:
            self.create(pending.group)
        self.offsets.put(*pending)

    # -- the end --

    async def free(self) -> None:
        """Free the offsets in steps: a million at once would hold the event loop."""
        while self.offsets.forget(FREED_PER_STEP) or self.pending.forget(FREED_PER_STEP):
            await trio.lowlevel.checkpoint()
