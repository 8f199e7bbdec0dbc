"""Partitions as they lie in a data directory, beside a broker that may be rolling, deleting, compacting.

Owns: which partitions there are, where their readable part ends, and the way from an offset or a time to a position.
Must not know: who asks (`positions`, `planning`), or what is in a batch.

1. Nothing is written, locked or mapped.
2. The last segment may be growing, and may end in half a batch: it is readable up to its last whole batch with a good
   CRC. A damaged batch with sound ones behind it is not its end: reading will say what is wrong with it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from broker.log.checkpoint import LOG_STARTS, RECOVERY_POINTS, read_offsets
from broker.log.directory_names import parse_partition_directory
from broker.log.disk import Disk
from broker.log.errors import CheckpointError
from protocol.errors import ProtocolError
from protocol.records.batch import BatchHeader
from protocol.records.reader import decode_batch
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.index_files import IndexedTime, OffsetEntries, TimeEntries
from warmlog.pipeline.log_file import CutError, LogFile
from warmlog.pipeline.segments import Segment, list_segments
from warmlog.pipeline.transactions import Transactions, find_transactions

ENTRIES_TRIED = 16  # of an index, backwards; one that is wrong further back is no help at all


@dataclass(frozen=True, kw_only=True)
class StoredPartition:
    """A partition's directory. `log_start` and `flushed_end`: what the checkpoints beside it tell, else None."""

    topic: str
    partition: int
    directory: str
    log_start: int | None = None
    flushed_end: int | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """By base offset, as they are at the first look. Raises PipelineError where there is none."""
        found = tuple(list_segments(self.directory))
        if not found:
            raise PipelineError(f"{self.directory}: no segments in it")
        return found

    @cached_property
    def start_offset(self) -> int:
        """The first offset that is there."""
        return max(self.segments[0].base_offset, self.log_start or 0)

    @cached_property
    def active_end(self) -> tuple[int, int]:
        """(offset, position) after the last batch of the last segment that can be read."""
        return readable_end(self.segments[-1])

    @cached_property
    def transactions(self) -> Transactions:
        """What is known of them up to the end of the readable part."""
        return find_transactions(self.directory, self.segments, self.active_end[1])

    def end_offset(self, *, flushed_only: bool = False, committed_only: bool = False) -> int:
        """The offset after the last one that can be read.

        `flushed_only`: of what a power cut leaves. `committed_only`: before the first transaction that is still open.
        """
        end = self.active_end[0]
        if flushed_only:
            end = min(end, self.flushed_end or 0)
        first_open = self.transactions.first_open if committed_only else None
        return end if first_open is None else min(end, first_open)

    def offset_at_time(self, timestamp_ms: int) -> int | None:
        """The offset of the first record at or past a time, as Kafka's ListOffsets finds it; None if all are earlier.

        Raises PipelineError where a batch that must be opened for it is damaged.
        """
        return _offset_at_time(self, timestamp_ms)

    def readable_size(self, segment: Segment) -> int:
        """How many bytes of a segment can be read."""
        return self.active_end[1] if segment is self.segments[-1] else segment.size


def find_partitions(path: str) -> list[StoredPartition]:
    """The partitions in a data directory, or the one that `path` is. Raises PipelineError."""
    directory = Path(path)
    if not directory.is_dir():
        raise PipelineError(f"{path}: {'not a directory' if directory.exists() else 'no such directory'}")
    own = parse_partition_directory(directory.absolute().name)
    if own is not None and own.moved is None and list_segments(path):
        return [_stored(directory.absolute(), own.topic, own.partition, *_checkpoints(directory.absolute().parent))]
    named = [(parse_partition_directory(entry.name), entry) for entry in directory.iterdir() if entry.is_dir()]
    starts, flushed = _checkpoints(directory)
    found = [
        _stored(entry.absolute(), name.topic, name.partition, starts, flushed)
        for name, entry in named
        if name is not None and name.moved is None
    ]
    if not found and not (directory / "meta.properties").exists():
        raise PipelineError(f"{path}: neither a data directory nor the directory of a partition")
    return sorted(found, key=lambda partition: (partition.topic, partition.partition))


def _stored(
    directory: Path, topic: str, partition: int, starts: dict[tuple[str, int], int], ends: dict[tuple[str, int], int]
) -> StoredPartition:
    return StoredPartition(
        topic=topic,
        partition=partition,
        directory=str(directory),
        log_start=starts.get((topic, partition)),
        flushed_end=ends.get((topic, partition)),
    )


def _checkpoints(data_dir: Path) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]:
    """Where logs start, and what of them is flushed; a partition that was copied alone has none beside it."""
    return _checkpoint(data_dir / LOG_STARTS), _checkpoint(data_dir / RECOVERY_POINTS)


def _checkpoint(path: Path) -> dict[tuple[str, int], int]:
    try:
        return read_offsets(Disk(), str(path))
    except CheckpointError:
        return {}  # a hint like every checkpoint, and the broker's to put right


# -- the end of a segment that is being written --


def readable_end(segment: Segment) -> tuple[int, int]:
    """(offset, position) after the last whole batch with a good CRC. Raises SegmentGoneError, OSError."""
    with segment.open() as file:
        offset, position = _last_confirmed(file, segment)
        while position < file.size:
            header = _batch_at_end(file, position)
            if header is None:
                break
            position += header.size
            offset = header.next_offset
        return offset, position


def _last_confirmed(file: LogFile, segment: Segment) -> tuple[int, int]:
    """(base offset, position) of the batch of the last entry that the log confirms, else of the segment."""
    entries = OffsetEntries(segment.path, segment.base_offset)
    confirmed = confirmed_entries(file, entries, len(entries) - 1)
    return next(((header.base_offset, position) for position, header in confirmed), (segment.base_offset, 0))


def _batch_at_end(file: LogFile, position: int) -> BatchHeader | None:
    """The header of the batch at a position; None if the readable part ends there."""
    try:
        header = file.header(position)
    except ProtocolError:
        return None
    try:
        file.batch(position, header)
    except CutError:
        return None
    except ProtocolError:
        return header if _goes_on(file, position, header) else None
    return header


def _goes_on(file: LogFile, position: int, header: BatchHeader) -> bool:
    """Whether a sound batch follows a damaged one, which then is no torn end."""
    try:
        following = file.header(position + header.size)
        file.batch(position + header.size, following)
    except ProtocolError:
        return False
    return following.base_offset >= header.next_offset


# -- from offsets and times to positions --


def confirmed_entries(file: LogFile, entries: OffsetEntries, slot: int) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of entries from a slot backwards, those that the log confirms; few are tried."""
    for tried in range(slot, max(slot - ENTRIES_TRIED, -1), -1):
        entry = entries[tried]
        try:
            header = file.header(entry.position) if 0 < entry.position < file.size else None
        except ProtocolError:
            continue
        if header is not None and header.last_offset == entry.last_offset:
            yield entry.position, header


def position_of(file: LogFile, segment: Segment, offset: int, end: int) -> int:
    """Where the batch that holds the offset begins, or the first one after it; `end` if there is none.

    A header that is broken ends the search: reading from there says what is wrong.
    """
    entries = OffsetEntries(segment.path, segment.base_offset)
    before = entries.slot_before_offset(offset)
    position = next((at for at, _ in confirmed_entries(file, entries, before)), 0)
    try:
        for at, header in file.headers(position, end):
            if header.next_offset > offset:
                return at
    except CutError:
        return end
    except ProtocolError:
        return position
    return end


def _offset_at_time(partition: StoredPartition, timestamp_ms: int) -> int | None:
    for segment in partition.segments:
        if segment is not partition.segments[-1] and _is_earlier(segment, timestamp_ms):
            continue
        with segment.open() as file:
            found = _find_time(file, segment, timestamp_ms, partition.readable_size(segment), partition.start_offset)
        if found is not None:
            return found
    return None


def _is_earlier(segment: Segment, timestamp_ms: int) -> bool:
    """Whether all of a sealed segment is earlier: by the last entry of its time index and the headers after it."""
    entries = TimeEntries(segment.path, segment.base_offset)
    if not len(entries) or entries[len(entries) - 1].timestamp >= timestamp_ms:
        return False
    with segment.open() as file:
        position = _confirmed_time(file, segment, entries[len(entries) - 1], segment.size)
        try:
            headers = file.headers(position, segment.size) if position is not None else ()
            return position is not None and all(header.max_timestamp < timestamp_ms for _, header in headers)
        except ProtocolError:
            return False


def _confirmed_time(file: LogFile, segment: Segment, entry: IndexedTime, end: int) -> int | None:
    """The position of the batch that an entry of the time index tells of; None where that is not there."""
    position = position_of(file, segment, entry.offset, end)
    try:
        header = file.header(position) if position < end else None
    except ProtocolError:
        return None
    if header is None or header.base_offset > entry.offset or header.max_timestamp != entry.timestamp:
        return None
    return position


def _find_time(file: LogFile, segment: Segment, timestamp_ms: int, end: int, start_offset: int) -> int | None:
    entry = TimeEntries(segment.path, segment.base_offset).last_before(timestamp_ms)
    position = _confirmed_time(file, segment, entry, end) if entry is not None else None
    try:
        for at, header in file.headers(position or 0, end):
            if header.max_timestamp < timestamp_ms or header.next_offset <= start_offset or header.is_control:
                continue
            buffer, start = file.batch(at, header)
            for record in decode_batch(buffer, start, header):
                if record.timestamp >= timestamp_ms and record.offset >= start_offset:
                    return record.offset
    except ProtocolError as error:
        raise PipelineError(f"{segment.path}: looking for a time: {error}") from error
    return None
