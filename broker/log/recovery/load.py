"""Opening a log's directory: what is there, where it ends, and repair after an unclean stop.

Owns: the way from a directory to segments with a known end. Must not know appends or reads.

Clean: only the active segment is looked into, from its last index entry on; of the others nothing but name and size is
taken, so the cost does not grow with them. What does not fit (an index copied without its log, a torn file under a
clean marker) is repaired as after an unclean stop, for the active segment alone. If another broker may have written its
indexes (by its clean marker, or a recovery point that is not the log's end), a sample of them is checked, and they are
rebuilt where they follow another rule, as those of followers of older Kafka versions do.

Unclean: from the segment that holds the recovery point on, batches are scanned from the recovery point, CRCs verified,
both indexes made anew, and the log cut at the first byte that is not sound; segments after that go. An index is kept up
to the recovery point where it increases strictly and its last entry fits the log. The states of idempotent producers
come from the newest snapshot and the batches after it (`producer_replay`), of which the scan remembers what it met.
Where it met transactions, the transaction indexes of the scanned segments are made anew from there on
(`transaction_rebuild`).

Invariants:
1. Checkpoints are hints, clamped to what the log holds. But after an unclean stop a log that ends before its start
   offset has lost its end, and begins again at that offset: deleted offsets are not given out again. After a clean
   stop it was replaced by other files, and all of these are kept.
2. Nothing below the recovery point's index entry is rewritten.
3. A crash during recovery leaves a directory that the next recovery opens: logs are cut from the end, and what is made
   anew is made from the log.
4. What was cut is cut on the disk before the log is used: neither old bytes nor old names come back behind new records.
5. Nothing is cut because offsets are missing, but where it is known that they were there (`contiguity`): compaction
   and copies leave gaps, in and between segments.

Source: org.apache.kafka.storage.internals.log.LogLoader.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from random import Random
from typing import NamedTuple

from broker.log.append import Tail
from broker.log.config import LogConfig
from broker.log.descriptions import RecoveryReport
from broker.log.directory.checkpoint import LEADER_EPOCHS, read_epochs
from broker.log.errors import CheckpointError, IndexCorruptError
from broker.log.index.transaction import cut_aborted
from broker.log.io.directory_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_DIGITS,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    base_offset_of,
    segment_path,
)
from broker.log.io.disk import DirectoryEntry, Disk
from broker.log.io.files import OpenFiles
from broker.log.leader_epochs import LeaderEpochs
from broker.log.log_scan import walk_headers
from broker.log.producers.replay import NOTHING_SCANNED, Bounds, Scanned, rebuild_producers
from broker.log.producers.snapshot import ProducerSnapshots
from broker.log.producers.table import ProducerBudget, Producers
from broker.log.recovery.contiguity import Contiguity
from broker.log.recovery.rebuild import (
    Scan,
    check_from,
    cut_log,
    follows_rule,
    rebuild_indexes,
    remember_end,
    resume,
    rewrite_indexes,
    scan_segment,
)
from broker.log.recovery.rebuild_transactions import rebuild_scanned
from broker.log.recovery.swap import finish_swaps
from broker.log.segment import Segment
from broker.log.segments import Segments
from protocol.errors import ProtocolError
from protocol.records.layout import BatchHeader

_PASSING_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")
_SWAP_SUFFIXES = (CLEANED_SUFFIX, SWAP_SUFFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlace:
    """Where a log is and what it is opened with.

    `clock` gives ms since the epoch. `scanned` is called with the number of bytes that recovery has checked since its
    last call. All logs share a `budget`.
    """

    directory: str
    config: LogConfig
    files: OpenFiles
    clock: Callable[[], int]
    random: Random
    scanned: Callable[[int], None] = lambda _: None
    budget: ProducerBudget = field(default_factory=ProducerBudget)

    @property
    def disk(self) -> Disk:
        """What its files are on."""
        return self.files.disk

    def new_tail(self, base_offset: int) -> Tail:
        """The end of an empty segment, with the jitter by which it will roll earlier than others."""
        config = self.config
        most_ms = min(config.segment_jitter_ms, config.segment_ms)
        jitter_ms = self.random.randrange(most_ms) if most_ms else 0
        return Tail(base_offset, config, created_ms=self.clock(), jitter_ms=jitter_ms)

    def segment(self, base_offset: int, size: int, next_base_offset: int | None) -> Segment:
        """A segment whose files are there."""
        return Segment(
            self.files,
            self.directory,
            base_offset,
            size=size,
            next_base_offset=next_base_offset,
            index_interval_bytes=self.config.index_interval_bytes,
        )

    def start_over(self, segments: Sequence[Segment], offset: int) -> tuple[Segment, Tail]:
        """Let a log be one empty segment at an offset, and remove these; return it and its end. Raises OSError."""
        tail = self.new_tail(offset)
        fresh = Segment.create(self.files, self.directory, tail, self.config)
        for segment in reversed(segments):
            segment.removed = True
            segment.remove_files()
        return fresh, tail

    def rebuild_producers(
        self,
        snapshots: ProducerSnapshots,
        segments: Sequence[Segment],
        bounds: Bounds,
        *,
        scan_without: bool = True,
        scanned: Scanned = NOTHING_SCANNED,
    ) -> Producers:
        """Return the producers of a log that holds these offsets; see `producer_replay`. Blocking. Raises OSError."""
        producers = Producers(self.clock, self.budget)
        rebuild_producers(producers, snapshots, segments, bounds, scan_without=scan_without, scanned=scanned)
        return producers


class LoadedLog(NamedTuple):
    """An opened directory. `tail` is the end of the active segment; `made_files`: names that are not synced yet."""

    segments: Segments
    tail: Tail
    epochs: LeaderEpochs
    producers: Producers
    contiguity: Contiguity
    log_start_offset: int
    recovery_point: int
    made_files: bool
    report: RecoveryReport | None


@dataclass(slots=True)
class _Findings:
    """What recovery has done so far."""

    scanned_bytes: int = 0
    truncated_bytes: int = 0
    truncated_at: int | None = None
    reason: str | None = None
    scanned: list[int] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    rebuilt: list[int] = field(default_factory=list)
    rebuilt_times: list[int] = field(default_factory=list)
    rebuilt_transactions: list[int] = field(default_factory=list)
    snapshots: list[int] = field(default_factory=list)
    lost_epochs: bool = False
    producers: Scanned = NOTHING_SCANNED
    leftovers: list[str] = field(default_factory=list)


def load_log(place: LogPlace, *, recovery_point: int, log_start_offset: int, clean: bool) -> LoadedLog:
    """Open a directory, making it if it is not there. Blocking: for a worker, or the start. Raises OSError.

    `recovery_point` and `log_start_offset` are what the checkpoints say, `clean` whether the last stop was. If it was,
    a recovery point that is not the end of the log says that other files were put here since.
    """
    return _Loader(place).load(recovery_point, log_start_offset, clean=clean)


class _Loader:
    """One opening of one directory."""

    def __init__(self, place: LogPlace) -> None:
        self._place = place
        self._disk = place.disk
        self._contiguity = Contiguity(place.disk, place.directory)
        self._segments: list[Segment] = []
        self._snapshots: list[int] = []
        self._findings = _Findings()
        self._is_new = False

    def load(self, recovery_point: int, log_start_offset: int, *, clean: bool) -> LoadedLog:
        started_ms = self._place.clock()
        self._list()
        if not self._segments:
            return self._begin(max(0, log_start_offset))
        self._drop_stray_segment()
        checkpointed = recovery_point
        tail = self._clean_tail(recovery_point) if clean else None
        was_sound = tail is not None
        if tail is None:
            recovery_point = self._segments[-1].base_offset if clean else max(0, recovery_point)
            tail = self._recover(recovery_point)
        if clean and checkpointed != tail.next_offset:
            self._contiguity.forget()  # a clean stop leaves both equal: other files were put here since
        if log_start_offset > tail.next_offset and clean:
            log_start_offset = 0  # everything was synced, so it is the start of files that were here before
        elif log_start_offset > tail.next_offset:
            tail, was_sound, recovery_point = self._start_over(log_start_offset), False, log_start_offset
        end = tail.next_offset
        start = max(log_start_offset, self._segments[0].base_offset)
        epochs = self._epochs(end, raised=not clean)
        epochs.truncate_from_start(start)
        producers = self._producers(Bounds(start, end), scan_without=not was_sound)
        if self._findings.reason is not None or self._findings.snapshots:
            self._disk.sync_directory(self._place.directory)  # else snapshots past the end come back behind new records
        return LoadedLog(
            segments=Segments(self._segments),
            tail=tail,
            epochs=epochs,
            producers=producers,
            contiguity=self._contiguity,
            log_start_offset=start,
            recovery_point=end if was_sound else min(recovery_point, end),
            made_files=not was_sound,  # by a process that was killed before their names were synced
            report=None if was_sound and not self._findings.rebuilt else self._report(recovery_point, started_ms),
        )

    def _begin(self, base_offset: int) -> LoadedLog:
        """A log with nothing in it."""
        place = self._place
        tail = place.new_tail(base_offset)
        segment = Segment.create(place.files, place.directory, tail, place.config)
        self._segments = [segment]
        return LoadedLog(
            segments=Segments([segment]),
            tail=tail,
            epochs=self._epochs(base_offset, raised=False),
            producers=self._producers(Bounds(base_offset, base_offset), scan_without=False),
            contiguity=self._contiguity,
            log_start_offset=base_offset,
            recovery_point=base_offset,
            made_files=True,
            report=None,
        )

    # -- what is there -------------------------------------------------------------------------------------------------

    def _list(self) -> None:
        """Find the segments; remove what was on its way out, and indexes without a log."""
        sizes: dict[int, int] = {}
        indexes: list[tuple[int, str]] = []
        for entry in self._settled_directory():
            name = entry.name
            base_offset = base_offset_of(name)
            if name.endswith(_PASSING_SUFFIXES):
                self._findings.leftovers.append(name)
                self._disk.unlink(f"{self._place.directory}/{name}")
            elif base_offset is not None:
                suffix = name[OFFSET_DIGITS:]
                if suffix == LOG_SUFFIX:
                    sizes[base_offset] = entry.size
                elif suffix in INDEX_SUFFIXES:
                    indexes.append((base_offset, suffix))
                elif suffix == SNAPSHOT_SUFFIX:
                    self._snapshots.append(base_offset)
        for base_offset, suffix in indexes:
            if base_offset not in sizes:
                self._findings.leftovers.append(f"{base_offset:0{OFFSET_DIGITS}d}{suffix}")
                self._disk.unlink(segment_path(self._place.directory, base_offset, suffix))
        indexed = {base_offset for base_offset, suffix in indexes if suffix == TRANSACTION_INDEX_SUFFIX}
        bases = sorted(sizes)
        self._segments = [
            self._place.segment(base, sizes[base], after) for base, after in zip_longest(bases, bases[1:])
        ]
        for segment in self._segments:
            segment.may_have_aborted = segment.base_offset in indexed

    def _settled_directory(self) -> list[DirectoryEntry]:
        """What is there once interrupted compactions are finished or undone."""
        entries = self._scan_directory()
        if finish_swaps(self._disk, self._place.directory, [entry.name for entry in entries]):
            self._findings.leftovers += [entry.name for entry in entries if entry.name.endswith(_SWAP_SUFFIXES)]
            entries = self._scan_directory()
        return entries

    def _scan_directory(self) -> list[DirectoryEntry]:
        directory = self._place.directory
        try:
            return self._disk.scan(directory, stat_suffix=LOG_SUFFIX)
        except FileNotFoundError:
            self._disk.make_directory(directory)
            self._is_new = True
            return []

    def _epochs(self, end: int, *, raised: bool) -> LeaderEpochs:
        """The leader epochs: those in the checkpoint, within the log, and those of scanned batches.

        The last one holds from the end on. After an unclean stop a new one begins: what was lost may have been read.
        """
        path = f"{self._place.directory}/{LEADER_EPOCHS}"
        entries: list[tuple[int, int]] = []
        try:
            entries = [] if self._is_new else read_epochs(self._disk, path)
        except CheckpointError:  # it is a hint; the batches know better
            self._findings.lost_epochs = True
        epochs = LeaderEpochs(entries)
        epochs.truncate_from_end(end)
        if not self._findings.epochs and (raised or not entries):
            self._findings.epochs += self._last_epoch()
        for epoch, first_offset in self._findings.epochs:
            if epoch > epochs.latest:
                epochs.assign(epoch, first_offset)
        if raised or epochs.latest < epochs.current:
            epochs.assign(epochs.current + raised, end)
        epochs.changed = list(epochs.entries) != entries
        return epochs

    def _last_epoch(self) -> list[tuple[int, int]]:
        """The leader epoch of the last batch, and its base offset: for a log whose active segment is empty."""
        last = next((segment for segment in reversed(self._segments) if segment.size), None)
        headers = [] if last is None else [header for _, header in self._walk_end(last)]
        return [(header.leader_epoch, header.base_offset) for header in headers[-1:]]

    def _producers(self, bounds: Bounds, *, scan_without: bool) -> Producers:
        snapshots = ProducerSnapshots(self._disk, self._place.directory, self._snapshots)
        producers = self._place.rebuild_producers(
            snapshots, self._segments, bounds, scan_without=scan_without, scanned=self._findings.producers
        )
        scanned = self._findings.producers
        if any(trail.has_transactions for _, trail in scanned.trails):
            self._findings.rebuilt_transactions += rebuild_scanned(snapshots, self._segments, bounds.start, scanned)
        self._findings.snapshots += snapshots.removed
        return producers

    # -- clean ---------------------------------------------------------------------------------------------------------

    def _clean_tail(self, checkpointed: int) -> Tail | None:
        """Return the end of the active segment by its indexes and the few batches after them.

        None if something does not fit. Indexes that another broker may have written are checked, and rebuilt unless
        they follow the rule of this one; the log stays as it is.
        """
        segment = self._segments[-1]
        scan = self._scan_clean(segment)
        is_foreign = checkpointed == 0 if scan is None else checkpointed != scan.tail.next_offset
        if is_foreign and segment.size and (scan is None or not follows_rule(segment)):
            segment.close()
            rebuild_indexes(segment, self._place.config)
            scan = self._scan_clean(segment)
            if scan is not None:
                self._findings.rebuilt.append(segment.base_offset)
        if scan is None:
            return None
        self._findings.epochs += scan.epochs
        return self._activate(segment, scan)

    def _scan_clean(self, segment: Segment) -> Scan | None:
        """Scan the active segment from its last index entry on; None if something does not fit."""
        try:
            offsets, times = segment.offset_index.entries, segment.time_index.entries
            self._check_whole(segment)
            tail = self._place.new_tail(segment.base_offset).without_indexing()
            scan = scan_segment(segment, resume(segment, tail, offsets, times), verified=False)
            segment.check_doubtful_times()
        except (IndexCorruptError, ProtocolError):
            return None
        return scan if scan.reason is None else None

    def _check_whole(self, segment: Segment) -> None:
        segment.offset_index.sanity_check(segment.base_offset + (1 << 31), segment.size)
        segment.time_index.sanity_check(segment.base_offset + (1 << 31))
        if not segment.offset_index.entries and segment.reaches_past_interval():
            raise IndexCorruptError(segment.base_offset, "it is empty, but the log is longer than its interval")

    def _activate(self, segment: Segment, scan: Scan) -> Tail:
        tail = scan.tail
        tail.configure(self._place.config)
        segment.close()
        segment.activate(self._place.config, tail)
        if self._findings.scanned:
            segment.doubt_indexes()
        remember_end(segment, tail)
        segment.reader.close()
        return tail

    # -- unclean -------------------------------------------------------------------------------------------------------

    def _drop_stray_segment(self) -> None:
        """Remove an empty last segment that begins inside the one before: its roll was never committed."""
        while len(self._segments) > 1 and not self._segments[-1].size:
            before, last = self._segments[-2:]
            if self._end_of(before) <= last.base_offset:
                return
            self._remove(last)
            before.next_base_offset = None

    def _end_of(self, segment: Segment) -> int:
        """The offset after a segment's last batch, by its index where that is sound."""
        end = segment.base_offset
        for _, header in self._walk_end(segment):
            end = header.next_offset
        return end

    def _walk_end(self, segment: Segment) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of the batches at the end of a segment that is not the last, as far as they are sound."""
        start = 0
        with suppress(IndexCorruptError, ProtocolError):
            start = segment.checked_offset_index().last().position
        with suppress(ProtocolError):
            yield from walk_headers(segment.reader.descriptor(), start, segment.size)
        segment.close()

    def _recover(self, recovery_point: int) -> Tail:
        """Scan from the segment that holds the recovery point on; gives the end of the last sound one."""
        first = max((i for i, s in enumerate(self._segments) if s.base_offset <= recovery_point), default=0)
        for index in range(first, len(self._segments)):
            segment = self._segments[index]
            scan = self._recover_segment(segment, recovery_point)
            scan = self._with_lost_end(scan, segment)
            if scan.reason is not None:
                self._truncate(segment, scan)
                break
        return self._activate(segment, scan)

    def _with_lost_end(self, scan: Scan, segment: Segment) -> Scan:
        """Return the scan, with a reason to end there if the segment is known to have lost its end."""
        end, following = scan.tail.next_offset, segment.next_base_offset
        if scan.reason is not None or following is None or following <= end:
            return scan
        known = self._contiguity.offset()
        if known is None or following <= known:
            return scan
        return scan._replace(reason=f"it ends at offset {end}, but ended at {following} when the next segment began")

    def _recover_segment(self, segment: Segment, recovery_point: int) -> Scan:
        place = self._place
        checked = check_from(segment, recovery_point, lambda: place.new_tail(segment.base_offset), place.scanned)
        scan, offsets, times, start = checked
        if segment is not self._segments[-1]:
            scan.time_entries.extend(scan.tail.last_time_entry())
        segment.close()
        cut_aborted(self._disk, segment.path(TRANSACTION_INDEX_SUFFIX), scan.tail.next_offset)
        differed, times_differed = rewrite_indexes(segment, scan, offsets, times)
        findings = self._findings
        segment.doubt_indexes()
        findings.rebuilt += [segment.base_offset] * differed
        findings.rebuilt_times += [segment.base_offset] * times_differed
        findings.scanned.append(segment.base_offset)
        findings.scanned_bytes += segment.size - scan.start
        findings.epochs += scan.epochs
        known = findings.producers
        findings.producers = Scanned(min(known.from_offset, start), [*known.trails, (segment, scan.trail)])
        return scan

    def _truncate(self, segment: Segment, scan: Scan) -> None:
        """End the log where a scan ended: the newest segments go first, and the file is cut when they are gone."""
        findings, end = self._findings, scan.tail.next_offset
        later = [other for other in self._segments if other.base_offset > segment.base_offset]
        for other in reversed(later):
            self._remove(other)
        if later:
            self._disk.sync_directory(self._place.directory)
        findings.truncated_bytes += segment.size - scan.tail.size
        findings.truncated_at, findings.reason = end, scan.reason
        cut_log(segment, scan.tail.size)
        segment.reader.descriptor().sync()

    def _remove(self, segment: Segment) -> None:
        self._findings.truncated_bytes += segment.size
        self._findings.removed.append(segment.base_offset)
        segment.remove_files()
        self._segments = [other for other in self._segments if other is not segment]

    def _start_over(self, log_start_offset: int) -> Tail:
        """Begin the log again, empty, at a start that lies past its end. Source: LogLoader.recoverLog.

        All that is left of it was deleted before, and none of the offsets in between is given out a second time.
        """
        findings = self._findings
        findings.truncated_at = self._segments[0].base_offset
        findings.reason = f"it ends before its start offset {log_start_offset}"
        findings.truncated_bytes += sum(segment.size for segment in self._segments)
        findings.removed += [segment.base_offset for segment in self._segments]
        fresh, tail = self._place.start_over(self._segments, log_start_offset)
        self._segments = [fresh]
        return tail

    def _report(self, recovery_point: int, started_ms: int) -> RecoveryReport:
        findings = self._findings
        return RecoveryReport(
            recovery_point=recovery_point,
            scanned_segments=len(findings.scanned),
            scanned_bytes=findings.scanned_bytes,
            truncated_bytes=findings.truncated_bytes,
            truncated_at=findings.truncated_at,
            truncation_reason=findings.reason,
            removed_segments=tuple(sorted(findings.removed)),
            rebuilt_indexes=tuple(findings.rebuilt),
            seconds=(self._place.clock() - started_ms) / 1000,
            rebuilt_time_indexes=tuple(findings.rebuilt_times),
            rebuilt_transaction_indexes=tuple(findings.rebuilt_transactions),
            removed_snapshots=tuple(sorted(findings.snapshots)),
            rebuilt_epochs=findings.lost_epochs,
            leftovers=tuple(sorted(findings.leftovers)),
        )
