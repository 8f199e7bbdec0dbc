"""The rules of share group state: the record that a request writes, and the effect of a record. No clock, no I/O.

    request ──► initialized, written, read ──► a record, or none ──► replayed ──► the next state

States are immutable: every record makes a new one, so a change whose record was not stored can be undone.

Source: org.apache.kafka.coordinator.share.ShareCoordinatorShard (4.4).
"""

from typing import NamedTuple

from warmlog.broker.share.state.batches import combine, has_overlaps
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.share.state import (
    UNKNOWN_COUNT,
    UNKNOWN_EPOCH,
    UNKNOWN_OFFSET,
    SharePartitionInEpoch,
    SharePartitionToInitialize,
    SharePartitionToWrite,
    StateBatch,
)
from warmlog.protocol.kafka.share_state_records import ShareRecord, ShareSnapshot, ShareUpdate

MAX_BATCHES = 20_000  # batches of a state; a snapshot of them has 400 KB. A leader has at most 10,000 offsets in flight

MAX_DISORDER = 2_000  # batches of a write that may be in any order: 2 ms. Leaders send them in order


class RefusedError(Exception):
    """A request for a share-partition is refused."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


class ShareState(NamedTuple):
    """The state of a share-partition: the contents of a snapshot, and a counter of this broker.

    `leader_epoch` and `state_epoch` are the highest ever seen; `updates`: the number of update records since the last
    snapshot, None before the first one.
    """

    content: ShareSnapshot
    leader_epoch: int
    state_epoch: int
    updates: int | None = None


def replayed(state: ShareState | None, record: ShareRecord, updates_per_snapshot: int) -> ShareState:
    """Return the state after a record."""
    if isinstance(record, ShareSnapshot):
        if state is None:
            return ShareState(record, record.leader_epoch, record.state_epoch)
        return ShareState(
            record,
            max(state.leader_epoch, record.leader_epoch),
            max(state.state_epoch, record.state_epoch),
            0 if state.updates is not None and state.updates >= updates_per_snapshot else state.updates,
        )
    if state is None:  # its snapshot is missing
        content = ShareSnapshot(
            snapshot_epoch=record.snapshot_epoch,
            state_epoch=0,
            leader_epoch=record.leader_epoch,
            start_offset=record.start_offset,
            delivery_complete_count=record.delivery_complete_count,
            batches=combine((), record.batches, record.start_offset),
        )
        return ShareState(content, record.leader_epoch, 0, 0)
    content = state.content
    start_offset = content.start_offset if record.start_offset == UNKNOWN_OFFSET else record.start_offset
    content = ShareSnapshot(
        snapshot_epoch=content.snapshot_epoch,
        state_epoch=content.state_epoch,
        leader_epoch=content.leader_epoch if record.leader_epoch == UNKNOWN_EPOCH else record.leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=record.delivery_complete_count,
        created_ms=content.created_ms,
        written_ms=content.written_ms,
        batches=combine(content.batches, record.batches, start_offset),
    )
    updates = 0 if state.updates is None else state.updates + 1
    return ShareState(content, max(state.leader_epoch, record.leader_epoch), state.state_epoch, updates)


def check_index(partition: int) -> None:
    """Raise RefusedError for a negative partition index."""
    if partition < 0:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "the partition must not be negative")


def initialized(state: ShareState | None, request: SharePartitionToInitialize, now_ms: int) -> ShareSnapshot:
    """Return the record that initializes a state. Raises RefusedError."""
    check_index(request.partition)
    if request.state_epoch < 0:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "the state epoch must not be negative")
    if state is not None and state.state_epoch > request.state_epoch:
        raise _fenced_state(state, request.state_epoch)
    return ShareSnapshot(
        snapshot_epoch=0 if state is None else state.content.snapshot_epoch + 1,
        state_epoch=request.state_epoch,
        leader_epoch=0,
        start_offset=request.start_offset,
        delivery_complete_count=UNKNOWN_COUNT if request.start_offset == UNKNOWN_OFFSET else 0,
        created_ms=now_ms,
        written_ms=now_ms,
    )


def written(
    state: ShareState | None, request: SharePartitionToWrite, now_ms: int, updates_per_snapshot: int
) -> ShareRecord:
    """Return the record that writes batches. Raises RefusedError."""
    check_index(request.partition)
    if request.leader_epoch < 0 or request.state_epoch < 0:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "epochs must not be negative")
    if state is None:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "the share-partition has no state to write to")
    if state.leader_epoch > request.leader_epoch:
        raise _fenced_leader(state, request.leader_epoch)
    if state.state_epoch > request.state_epoch:
        raise _fenced_state(state, request.state_epoch)
    for batch in request.batches:
        if batch.last_offset < batch.first_offset:
            raise RefusedError(ErrorCode.INVALID_REQUEST, "a batch of states ends before it begins")
    if len(request.batches) > MAX_DISORDER and has_overlaps(request.batches):
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"more than {MAX_DISORDER} batches overlap, or are not in order")
    if len(state.content.batches) + len(request.batches) > MAX_BATCHES:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"the state would have more than {MAX_BATCHES} batches")
    start_offset, count = _progress(state.content, request.start_offset, request.delivery_complete_count)
    return _changed(
        state,
        start_offset=start_offset,
        delivery_complete_count=count,
        leader_epoch=state.content.leader_epoch,
        batches=request.batches,
        now_ms=now_ms,
        updates_per_snapshot=updates_per_snapshot,
    )


def read(
    state: ShareState | None, request: SharePartitionInEpoch, now_ms: int, updates_per_snapshot: int
) -> tuple[ShareSnapshot, ShareRecord | None]:
    """Return the state, and the record that stores a new leader epoch. Raises RefusedError."""
    check_index(request.partition)
    if request.leader_epoch < 0:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "the leader epoch must not be negative")
    if state is None:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "the share-partition has no state to read")
    if state.leader_epoch > request.leader_epoch:
        raise _fenced_leader(state, request.leader_epoch)
    content = state.content
    if state.leader_epoch == request.leader_epoch:
        return content, None
    return content, _changed(
        state,
        start_offset=content.start_offset,
        delivery_complete_count=content.delivery_complete_count,
        leader_epoch=request.leader_epoch,
        batches=(),
        now_ms=now_ms,
        updates_per_snapshot=updates_per_snapshot,
    )


def cold_snapshot(state: ShareState, now_ms: int) -> ShareSnapshot:
    """Return a snapshot of a long unchanged state, so that its older records can be deleted."""
    content = state.content
    return ShareSnapshot(
        snapshot_epoch=content.snapshot_epoch + 1,
        state_epoch=content.state_epoch,
        leader_epoch=content.leader_epoch,
        start_offset=content.start_offset,
        delivery_complete_count=content.delivery_complete_count,
        created_ms=content.created_ms,
        written_ms=now_ms,
        batches=content.batches,
    )


def _progress(content: ShareSnapshot, start_offset: int, count: int) -> tuple[int, int]:
    """Return the start offset, which never decreases, and its count of completed deliveries."""
    if start_offset > content.start_offset:
        return start_offset, count
    if start_offset == content.start_offset:
        return start_offset, max(count, content.delivery_complete_count)
    return content.start_offset, content.delivery_complete_count


def _changed(
    state: ShareState,
    *,
    start_offset: int,
    delivery_complete_count: int,
    leader_epoch: int,
    batches: tuple[StateBatch, ...],
    now_ms: int,
    updates_per_snapshot: int,
) -> ShareRecord:
    """Return an update, or a snapshot if there have been enough updates."""
    content = state.content
    if (state.updates or 0) < updates_per_snapshot:
        return ShareUpdate(
            snapshot_epoch=content.snapshot_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=delivery_complete_count,
            batches=combine((), batches, start_offset),
        )
    return ShareSnapshot(
        snapshot_epoch=content.snapshot_epoch + 1,
        state_epoch=content.state_epoch,
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=delivery_complete_count,
        created_ms=now_ms,
        written_ms=now_ms,
        batches=combine(content.batches, batches, start_offset),
    )


def _fenced_leader(state: ShareState, epoch: int) -> RefusedError:
    message = f"the leader epoch is {state.leader_epoch}, and {epoch} is older"
    return RefusedError(ErrorCode.FENCED_LEADER_EPOCH, message)


def _fenced_state(state: ShareState, epoch: int) -> RefusedError:
    message = f"the state epoch is {state.state_epoch}, and {epoch} is older"
    return RefusedError(ErrorCode.FENCED_STATE_EPOCH, message)
