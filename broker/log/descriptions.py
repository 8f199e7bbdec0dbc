"""What a log tells about itself and its reads: values only.

Owns: their shape. Must not know how they come about, or who shows them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import Struct

from broker.log.index.search import Section
from broker.log.index.transaction import AbortedTransaction
from broker.log.io.files import FileSlice


class LogRead(NamedTuple):
    """What a read found.

    `slice` is None where there is nothing to give. `segment_base_offset` and `position` say where the read begins, also
    then. `first_batch_incomplete`: the slice ends inside its first batch, which is larger than what was asked for.
    `section` is the part of the offset index that was searched; None: no lookup, or an empty index. `aborted`: the
    aborted transactions of which the slice may hold records, where they were asked for.
    """

    slice: FileSlice | None
    segment_base_offset: int
    position: int
    first_batch_incomplete: bool = False
    section: Section | None = None
    aborted: Sequence[AbortedTransaction] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """One segment: offsets [base_offset, next_offset), bytes, index entries in use, times in ms (None.

    No record has one).
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
    """One log and its segments, oldest first. `recovery_point`: what lies below it has been synced."""

    topic: str
    partition: int
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    recovery_point: int
    size: int
    failure: str | None  # why it takes no appends; None: it does
    segments: tuple[SegmentFacts, ...]


class RecoveryReport(Struct, frozen=True, kw_only=True):
    """What recovery did to a log. Sizes in bytes, segments by their base offsets, files by their names.

    `truncated_at` is the offset of the first record that is gone. Rebuilt are indexes that were missing or did not say
    what the log says; snapshots of producers that were damaged, or past the end, went. `rebuilt_epochs`: the leader
    epochs' checkpoint could not be read. `leftovers`: files that were on their way in or out.
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

    @property
    def did_something(self) -> bool:
        """Whether anything was looked at or changed: of an empty log nothing is."""
        return bool(self.scanned_bytes or self.repairs)

    @property
    def repairs(self) -> int:
        """How many things had to be put right: cuts, segments, indexes, snapshots, checkpoints, leftovers."""
        rebuilt = (self.rebuilt_indexes, self.rebuilt_time_indexes, self.rebuilt_transaction_indexes)
        gone = (self.removed_segments, self.removed_snapshots, self.leftovers)
        return sum(map(len, (*rebuilt, *gone))) + bool(self.truncated_bytes) + self.rebuilt_epochs
