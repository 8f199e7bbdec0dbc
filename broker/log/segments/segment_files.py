"""The files of one segment: their names, descriptors and indexes, and how they are synced, closed and removed.

    <base>.log        batches end to end, base offsets increasing
    <base>.index      offset index, entries of 8 bytes
    <base>.timeindex  time index, entries of 12 bytes
    <base>.txnindex   aborted transactions, only if there are any

`Segment` adds the lookups. Nothing of a sealed segment is open before its first use.
"""

from collections.abc import Sequence
from contextlib import suppress

from warmlog.broker.log.errors import IndexCorruptError, MisplacedBatchError
from warmlog.broker.log.index.offset import OffsetIndex, OffsetPosition
from warmlog.broker.log.index.time import TimeIndex
from warmlog.broker.log.index.transaction import AbortedTransaction, TransactionIndex
from warmlog.broker.log.io.directory_names import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_path,
)
from warmlog.broker.log.io.disk import Disk, sync_file
from warmlog.broker.log.io.files import Descriptor, File, OpenFiles
from warmlog.broker.log.io.residency import GatedFile
from warmlog.broker.log.segments.log_scan import BatchEnd, BatchLocation, find_batch, read_header_at, timed

INDEXES_SYNCED_BYTES = 1 << 20  # recovery checks this much in about the time of a sync, a millisecond


class SegmentFiles:
    """A segment's files, which exist. `next_base_offset` is the base offset of the next segment, None if active."""

    __slots__ = (
        "_indexes_synced_size",
        "_offset_index",
        "_time_index",
        "_transaction_index",
        "base_offset",
        "directory",
        "extra_suffix",
        "index_interval_bytes",
        "may_have_aborted",
        "next_base_offset",
        "open_files",
        "reader",
        "removed",
        "size",
        "synced",
        "writer",
    )

    def __init__(
        self,
        open_files: OpenFiles,
        directory: str,
        base_offset: int,
        *,
        size: int,
        next_base_offset: int | None,
        index_interval_bytes: int,
    ) -> None:
        self.open_files = open_files
        self.directory = directory
        self.base_offset = base_offset
        self.next_base_offset = next_base_offset
        self.size = size
        self.index_interval_bytes = index_interval_bytes
        self.extra_suffix = ""  # suffix of all files while a segment is being swapped in or removed
        self.synced = False
        self.removed = False  # removed from the log, so its files may be missing
        self.reader = File(open_files, self.path(LOG_SUFFIX), writable=False)
        self.writer: File | None = None
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._transaction_index: TransactionIndex | None = None
        self.may_have_aborted = True  # False if there is no transaction index
        self._indexes_synced_size = 0  # size of the log when its indexes were last synced

    # -- names ---------------------------------------------------------------------------------------------------------

    def path(self, suffix: str) -> str:
        """Return the path of the file with a suffix."""
        return segment_path(self.directory, self.base_offset, suffix) + self.extra_suffix

    def use_names(self, extra_suffix: str, other_suffix: str | None = None) -> None:
        """Expect `extra_suffix` at the end of all file names, or `other_suffix` while the files are being renamed.

        For the event loop. Open descriptors stay valid.
        """
        self.extra_suffix = extra_suffix
        for suffix, named in (
            (OFFSET_INDEX_SUFFIX, self.offset_index),
            (TIME_INDEX_SUFFIX, self.time_index),
        ):
            named.use_names(self.path(suffix), self._other_path(suffix, other_suffix))
        if self._transaction_index is not None or self.may_have_aborted:
            self.transaction_index.use_names(
                self.path(TRANSACTION_INDEX_SUFFIX), self._other_path(TRANSACTION_INDEX_SUFFIX, other_suffix)
            )
        self.reader.path = self.path(LOG_SUFFIX)
        self.reader.other_path = self._other_path(LOG_SUFFIX, other_suffix)

    def _other_path(self, suffix: str, other_suffix: str | None) -> str | None:
        if other_suffix is None:
            return None
        return segment_path(self.directory, self.base_offset, suffix) + other_suffix

    @property
    def disk(self) -> Disk:
        """The disk that holds the files."""
        return self.open_files.disk

    @property
    def is_untrimmed(self) -> bool:
        """Whether it was sealed, but `trim` and `close_writers` have not followed yet."""
        return self.next_base_offset is not None and self.writer is not None

    @property
    def end_of_offsets(self) -> int:
        """The end offset of a sealed segment: the base offset of the next one."""
        assert self.next_base_offset is not None, "the segment is active"
        return self.next_base_offset

    # -- indexes -------------------------------------------------------------------------------------------------------

    @property
    def offset_index(self) -> OffsetIndex:
        """The offset index, unchecked."""
        index = self._offset_index  # read once: another thread may reset it
        if index is None:
            index = OffsetIndex(self.open_files, self.path(OFFSET_INDEX_SUFFIX), self.base_offset, capacity_size=0)
            index.seal()
            self._offset_index = index
        return index

    @property
    def time_index(self) -> TimeIndex:
        """The time index, unchecked."""
        index = self._time_index
        if index is None:
            index = TimeIndex(self.open_files, self.path(TIME_INDEX_SUFFIX), self.base_offset, capacity_size=0)
            index.seal()
            self._time_index = index
        return index

    @property
    def transaction_index(self) -> TransactionIndex:
        """The transaction index, which may have no file."""
        index = self._transaction_index
        if index is None:
            index = TransactionIndex(self.open_files, self.path(TRANSACTION_INDEX_SUFFIX), self.base_offset)
            self._transaction_index = index
        return index

    def forget_transactions(self) -> None:
        """Read the transaction index again, after it was created, replaced or truncated."""
        self.may_have_aborted = True
        if self._transaction_index is not None:
            self._transaction_index.forget()

    def add_aborted(self, aborted: Sequence[AbortedTransaction]) -> bool:
        """Append to the active segment's transaction index, all or nothing; return whether this created the file.

        Raises OSError.
        """
        is_created = self.transaction_index.append(aborted, is_new=not self.may_have_aborted)
        self.may_have_aborted = True
        return is_created

    def doubt_indexes(self) -> None:
        """Make the next `sync` include the index files, even if they were not changed through these objects."""
        self.offset_index.doubt()
        self.time_index.doubt()
        self._indexes_synced_size = -INDEXES_SYNCED_BYTES

    # -- descriptors ---------------------------------------------------------------------------------------------------

    def append_descriptor(self) -> Descriptor:
        """Return the open log file of the active segment, for appends. Raises OSError."""
        assert self.writer is not None, "only the active segment is appended to"
        return self.writer.descriptor()

    def trim(self) -> None:
        """Truncate the files of a sealed segment to their content. For a worker. Raises OSError."""
        self.offset_index.trim()
        self.time_index.trim()
        writer = self.writer
        if writer is not None:  # release the blocks preallocated past the end
            writer.descriptor().truncate(self.size)

    def close_writers(self) -> None:
        """Close the write descriptors of a sealed segment."""
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.close()
        self.offset_index.close_writer()
        self.time_index.close_writer()

    def sync(self) -> None:
        """Sync the log file, and the indexes if they have changed. For a worker. Raises OSError."""
        self._sync_log()
        self.offset_index.sync()
        self.time_index.sync()

    def sync_end(self) -> None:
        """Sync the log of the active segment, and its indexes only after INDEXES_SYNCED_BYTES more of log.

        Recovery rebuilds offset and time index entries lost in a power cut, but not those of the transaction index.
        For a worker. Raises OSError.
        """
        if self.size - self._indexes_synced_size >= INDEXES_SYNCED_BYTES:
            self._indexes_synced_size = self.size
            self.sync()
        else:
            self._sync_log()

    def _sync_log(self) -> None:
        """Sync the log file and the transaction index, if any: recovery trusts both below the recovery point."""
        (self.writer or self.reader).descriptor().sync()
        with suppress(FileNotFoundError):
            sync_file(self.disk, self.path(TRANSACTION_INDEX_SUFFIX))

    def close(self) -> None:
        """Close the files; they are opened again on their next use."""
        for closable in (self.reader, self.writer, self._offset_index, self._time_index):
            if closable is not None:
                closable.close()
        if self._transaction_index is not None:
            self._transaction_index.forget()

    def remove_files(self) -> None:
        """Unlink all files of this base offset; a slice that is being sent keeps its descriptor. Raises OSError.

        The log file is removed last: an index without it means that it was lost (`recovery.listing`).
        """
        self.close()
        for suffix in (*INDEX_SUFFIXES, SNAPSHOT_SUFFIX, LOG_SUFFIX):
            with suppress(FileNotFoundError):
                self.disk.unlink(self.path(suffix))

    def modified_ms(self) -> int:
        """Return when the log file was last written, in ms since the epoch. Raises OSError."""
        try:
            return self.disk.modified_ms(self.reader.path)
        except FileNotFoundError:
            if self.reader.other_path is None:
                raise
            return self.disk.modified_ms(self.reader.other_path)

    # -- batches -------------------------------------------------------------------------------------------------------

    def scan_from(self, offset: int, start: OffsetPosition) -> BatchLocation | None:
        """Scan from an index entry on for the batch that contains an offset or follows it. Raises IndexCorruptError."""
        position = start.position
        entry = BatchEnd(position, start.offset if position else None)
        descriptor, residency = self.reader.descriptor(), self.open_files.residency
        file: Descriptor | GatedFile = descriptor
        if residency.must_not_wait:
            file = GatedFile(residency, descriptor, passing=start.offset < offset and position > 0)
        try:
            return find_batch(file, offset, entry, self.size)
        except MisplacedBatchError as error:
            raise IndexCorruptError(self.base_offset, str(error)) from error

    def max_timestamp_of(self, last_offset: int) -> int | None:
        """Return the largest timestamp of the batch with this last offset, or None. Reads an index interval."""
        location = self.scan_from(last_offset, self.offset_index.lookup(last_offset))
        if location is None:
            return None
        file = self.reader.descriptor()
        header = timed(file, location.position, read_header_at(file, location.position))
        return header.max_timestamp if header.last_offset == last_offset else None
