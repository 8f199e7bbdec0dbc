"""Read a partition's directory beside a broker that may be rolling, deleting or compacting it.

The last segment may be growing and may end with an incomplete batch. It is readable up to its last whole batch with a
valid CRC. A damaged batch followed by valid ones is not its end but damage, which reading reports.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from socket import gethostname

from warmlog.broker.log.directory.checkpoint import (
    HIGH_WATERMARKS,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    read_offsets,
    read_topic_id,
)
from warmlog.broker.log.directory.identity import META_PROPERTIES
from warmlog.broker.log.errors import CheckpointError
from warmlog.broker.log.io.directory_names import PartitionName, encode_topic_id, parse_partition_directory
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.segments.log_scan import CutError
from warmlog.inspect.errors import InspectError, MissingDirectoryError
from warmlog.inspect.index_files import OffsetEntries
from warmlog.inspect.log_file import LogFile, Segment, list_segments
from warmlog.inspect.lookup import confirmed_entries, first_offset_at_time, position_of
from warmlog.inspect.transactions import Transactions, find_transactions
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.batch import BatchHeader

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, kw_only=True)
class StoredPartition:
    """A partition's directory.

    `log_start`, `flushed_end`, `high_watermark`: offsets from the checkpoints beside it, or None. Records from the high
    watermark on are not read: they may not be on all in-sync replicas. It is None if there are no other replicas, since
    the checkpoint is then older than the log.

    Segments and everything derived from them are read once, at first use.
    """

    topic: str
    partition: int
    directory: str
    log_start: int | None = None
    flushed_end: int | None = None
    high_watermark: int | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The segments by base offset. Raises SegmentGoneError if the directory is gone, OSError."""
        return tuple(listed_segments(self.directory))

    @cached_property
    def topic_id(self) -> str | None:
        """The topic id in URL-safe base64, or None if `partition.metadata` is missing or unreadable."""
        return stored_topic_id(self.directory)

    @cached_property
    def start_offset(self) -> int:
        """The log start offset."""
        first = self.segments[0].base_offset if self.segments else 0
        return max(first, self.log_start or 0)

    @cached_property
    def active_end(self) -> tuple[int, int]:
        """(offset, position) after the last readable batch of the last segment."""
        return readable_end(self.segments[-1]) if self.segments else (self.start_offset, 0)

    @property
    def log_end_offset(self) -> int:
        """The offset after the last readable record, committed or not."""
        return self.active_end[0]

    @cached_property
    def transactions(self) -> Transactions:
        """Aborted and open transactions up to the end of the readable part."""
        return find_transactions(self.directory, self.segments, self.active_end[1])

    def end_offset(self, *, flushed_only: bool = False, committed_only: bool = False) -> int:
        """Return the offset after the last record to read.

        `flushed_only`: up to the recovery point. `committed_only`: up to the first transaction that is still open.
        """
        end = self.log_end_offset
        if self.high_watermark is not None:
            end = max(min(end, self.high_watermark), self.start_offset)
        if flushed_only:
            end = min(end, self.flushed_end or 0)
        first_open = self.transactions.first_open if committed_only else None
        return end if first_open is None else min(end, first_open)

    def offset_at_time(self, timestamp_ms: int) -> int | None:
        """Return the offset of the first record at or after a time, like ListOffsets, or None if all are earlier.

        Raises InspectError if a batch that must be opened is damaged.
        """
        return first_offset_at_time(self.segments, self.readable_size, timestamp_ms, self.start_offset)

    def epoch_before(self, offset: int) -> int | None:
        """Return an upper bound of the leader epochs of records before an offset, or None if unknown."""
        header = self.batch_at(offset - 1) if offset > self.start_offset else None
        return None if header is None or header.leader_epoch < 0 else header.leader_epoch

    def batch_at(self, offset: int) -> BatchHeader | None:
        """Return the header of the first batch that ends after an offset, or None without a readable one."""
        first = max((at for at, candidate in enumerate(self.segments) if candidate.base_offset <= offset), default=0)
        for segment in self.segments[first:]:
            end = self.readable_size(segment)
            with segment.open() as file:
                position = position_of(file, segment, offset, end)
                try:
                    if position < end:
                        return file.header(position)
                except ProtocolError:
                    return None
        return None

    def bytes_between(self, start: int, end: int) -> int:
        """Return the readable bytes of the segments that hold offsets from `start` to before `end`."""
        total = 0
        for at, segment in enumerate(self.segments):
            following = self.segments[at + 1].base_offset if at + 1 < len(self.segments) else end
            if segment.base_offset < end and following > start:
                total += self.readable_size(segment)
        return total

    def readable_size(self, segment: Segment) -> int:
        """Return the number of readable bytes of a segment."""
        return self.active_end[1] if segment is self.segments[-1] else segment.size


def stored_topic_id(directory: str) -> str | None:
    """Return the topic id in a partition's directory, or None if it is missing or unreadable. Raises OSError."""
    try:
        topic_id = read_topic_id(Disk(), f"{directory}/{PARTITION_METADATA}")
    except CheckpointError:
        return None
    return None if topic_id is None else encode_topic_id(topic_id)


def listed_segments(directory: str) -> list[Segment]:
    """List a partition's segments; the list is empty if the partition was deleted from an existing data directory.

    Raises MissingDirectoryError if the data directory does not exist either (not mounted), SegmentGoneError, OSError.
    """
    try:
        return list_segments(directory)
    except FileNotFoundError:
        check_data_directory(Path(directory).parent)
        return []


def check_data_directory(path: Path) -> None:
    """Raise MissingDirectoryError unless a data directory exists at a path.

    An empty directory does not count, since an unmounted file system leaves one.
    """
    if not is_data_directory(path):
        raise MissingDirectoryError(f"{path}: no data directory on {gethostname()}: is it mounted there?")


def is_data_directory(path: Path) -> bool:
    """Return whether a directory is a broker's data directory, or holds directories of partitions."""
    if not path.is_dir():
        return False
    if (path / META_PROPERTIES).exists():
        return True
    return any(parse_partition_directory(entry.name) is not None and entry.is_dir() for entry in path.iterdir())


def find_partitions(path: str) -> list[StoredPartition]:
    """Find the partitions in a data directory; `path` may also be the directory of one partition.

    Raises MissingDirectoryError, InspectError for another kind of directory, OSError.
    """
    directory = Path(path).absolute()
    own = parse_partition_directory(directory.name)
    if not directory.is_dir():
        if directory.exists():
            raise InspectError(f"{path}: not a directory")
        if own is not None and is_data_directory(directory.parent):
            return []  # the partition was deleted
        raise MissingDirectoryError(f"{path}: no such directory on {gethostname()}: is it mounted there?")
    if own is not None and own.moved is None and _is_partition(directory):
        return [_stored(directory, own, _checkpoints(directory.parent))]
    checkpoints = _checkpoints(directory)
    named = [(parse_partition_directory(entry.name), entry) for entry in directory.iterdir() if entry.is_dir()]
    partitions = [_stored(entry, name, checkpoints) for name, entry in named if name is not None and name.moved is None]
    if not partitions and not is_data_directory(directory):
        what = "neither a data directory nor the directory of a partition"
        if not any(directory.iterdir()):
            raise MissingDirectoryError(f"{path}: {what}, but empty: is it mounted on {gethostname()}?")
        raise InspectError(f"{path}: {what}")
    return sorted(partitions, key=lambda partition: (partition.topic, partition.partition))


def _is_partition(directory: Path) -> bool:
    """Return whether a directory named like a partition is one, since a data directory may also be called `data-1`."""
    return bool(list_segments(str(directory))) or (
        not is_data_directory(directory) and is_data_directory(directory.parent)
    )


def _stored(directory: Path, name: PartitionName, checkpoints: tuple[Offsets, Offsets, Offsets]) -> StoredPartition:
    log_start, flushed_end, high_watermark = (offsets.get((name.topic, name.partition)) for offsets in checkpoints)
    return StoredPartition(
        topic=name.topic,
        partition=name.partition,
        directory=str(directory),
        log_start=log_start,
        flushed_end=flushed_end,
        high_watermark=high_watermark,
    )


def _checkpoints(data_dir: Path) -> tuple[Offsets, Offsets, Offsets]:
    """Read log start offset, recovery point and high watermark; all are missing if only the partition was copied."""
    checkpoints = (_checkpoint(data_dir / name) for name in (LOG_STARTS, RECOVERY_POINTS, HIGH_WATERMARKS))
    return next(checkpoints), next(checkpoints), next(checkpoints)


def _checkpoint(path: Path) -> Offsets:
    try:
        return read_offsets(Disk(), str(path))
    except CheckpointError:
        return {}  # checkpoints are hints; the broker repairs them


# -- the end of a segment that is being written --


def readable_end(segment: Segment) -> tuple[int, int]:
    """Return (offset, position) after the last whole batch with a valid CRC. Raises SegmentGoneError, OSError."""
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
    """Return (base offset, position) of the batch of the last index entry that the log confirms."""
    entries = OffsetEntries(segment.path, segment.base_offset)
    confirmed = confirmed_entries(file, entries, len(entries) - 1)
    return next(((header.base_offset, position) for position, header in confirmed), (segment.base_offset, 0))


def _batch_at_end(file: LogFile, position: int) -> BatchHeader | None:
    """Return the header of the batch at a position, or None if the readable part ends there."""
    try:
        header = file.header(position)
    except ProtocolError:
        return None
    try:
        file.batch(position, header)
    except CutError:
        return None
    except ProtocolError:
        return header if _continues(file, position, header) else None
    return header


def _continues(file: LogFile, position: int, header: BatchHeader) -> bool:
    """Return whether a valid batch follows a damaged one, which is then not a torn end."""
    try:
        following = file.header(position + header.size)
        file.batch(position + header.size, following)
    except ProtocolError:
        return False
    return following.base_offset >= header.next_offset
