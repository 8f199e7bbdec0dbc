"""Values that describe a log, its segments, its reads and its recovery."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import Struct

from warmlog.broker.log.index.search import Section
from warmlog.broker.log.index.transaction import AbortedTransaction
from warmlog.broker.log.io.files import FileSlice


class LogRead(NamedTuple):
    """The result of a read.

    `slice` is None if there are no records to return. `segment_base_offset` and `position`: where the read begins, also
    in that case. `first_batch_incomplete`: the slice ends inside its first batch, which exceeds the requested
    size. `section` is the part of the offset index that was searched; None: no lookup, or an empty index. `aborted`:
    the aborted transactions of which the slice may hold records, if requested.
    """

    slice: FileSlice | None
    segment_base_offset: int
    position: int
    first_batch_incomplete: bool = False
    section: Section | None = None
    aborted: Sequence[AbortedTransaction] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """One segment: offsets [base_offset, next_offset), bytes, index entries in use, times in ms.

    `max_timestamp` is None if no record has a timestamp.
    """

    base_offset: int
    next_offset: int
    size: int
    offset_index_entries: int
    time_index_entries: int
    max_timestamp: int | None
    modified_ms: int
    active: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDescription:
    """One log and its segments, oldest first. Everything below `recovery_point` has been synced."""

    topic: str
    partition: int
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    recovery_point: int
    size: int
    failure: str | None  # why it rejects appends; None if it accepts them
    segments: tuple[SegmentFacts, ...]


class RecoveryReport(Struct, frozen=True, kw_only=True):
    """The recovery of a log. Sizes in bytes, segments by base offset, files by name.

    `truncated_at` is the offset of the first lost record. Indexes are rebuilt if they are missing or differ from the
    log; producer snapshots are removed if they are damaged or past the log's end. `rebuilt_epochs`: the checkpoint of
    leader epochs could not be read. `leftovers`: files of interrupted operations that were removed. `lost_offsets`: how
    many offsets past the end of the log are known to have been assigned.
    """

    recovery_point: int
    scanned_segments: int
    scanned_bytes: int
    truncated_bytes: int
    truncated_at: int | None
    truncation_reason: str | None
    removed_segments: tuple[int, ...]
    rebuilt_indexes: tuple[int, ...]
    seconds: float
    rebuilt_time_indexes: tuple[int, ...] = ()
    rebuilt_transaction_indexes: tuple[int, ...] = ()
    removed_snapshots: tuple[int, ...] = ()
    rebuilt_epochs: bool = False
    leftovers: tuple[str, ...] = ()
    lost_offsets: int = 0

    @property
    def did_something(self) -> bool:
        """Whether anything was scanned or changed; False for an empty log."""
        return bool(self.scanned_bytes or self.repairs)

    @property
    def lost_records(self) -> bool:
        """Whether acknowledged records may be lost: the log was truncated, or its end was once at a later offset."""
        return bool(self.truncated_bytes or self.removed_segments or self.lost_offsets)

    @property
    def repairs(self) -> int:
        """Number of repairs: truncations, segments, indexes, snapshots, checkpoints, leftovers."""
        rebuilt = (self.rebuilt_indexes, self.rebuilt_time_indexes, self.rebuilt_transaction_indexes)
        gone = (self.removed_segments, self.removed_snapshots, self.leftovers)
        return sum(map(len, (*rebuilt, *gone))) + bool(self.truncated_bytes) + self.rebuilt_epochs

    def summary(self) -> str:
        """Summarize the recovery for a log line."""
        did = [f"checked {self.scanned_bytes:,} bytes of {self.scanned_segments} segments in {self.seconds:.3f} s"]
        if self.truncated_bytes:
            did.append(
                f"truncated {self.truncated_bytes:,} bytes at offset {self.truncated_at} ({self.truncation_reason})"
            )
        if self.lost_offsets:
            did.append(f"lost {self.lost_offsets:,} offsets at the end, as far as is known")
        if self.removed_segments:
            did.append(f"removed segments {', '.join(map(str, self.removed_segments))}")
        rebuilt = {*self.rebuilt_indexes, *self.rebuilt_time_indexes, *self.rebuilt_transaction_indexes}
        if rebuilt:
            did.append(f"rebuilt the indexes of {len(rebuilt)} segments")
        if self.removed_snapshots:
            did.append(f"removed producer snapshots {', '.join(map(str, self.removed_snapshots))}")
        if self.rebuilt_epochs:
            did.append("rebuilt the leader epochs")
        if self.leftovers:
            did.append(f"completed or removed {len(self.leftovers)} unfinished files")
        return "; ".join(did)
