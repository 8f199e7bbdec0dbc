"""Open a log's directory: find its segments and its end, and repair it after an unclean stop.

After a clean stop only the end of the active segment is read, from its last index entry on. Of sealed segments only the
names and sizes are read, so the cost of opening does not grow with them. If the active segment's indexes do not match
its log (an index copied without its log, a torn file despite the clean marker), that segment is recovered as after an
unclean stop. If another broker may have written the indexes (its clean marker is present, or the recovery point is not
the log's end), a sample of entries is checked, and they are rebuilt if they follow another rule, as those written by
followers of older Kafka versions do.

After an unclean stop the log is scanned from the recovery point on (`unclean`). Producer states come from the newest
snapshot and the batches after it (`producers.replay`); batches that the scan has read are not read again. If the scan
found transactions or a transaction index, which may have zeros, the transaction indexes of the scanned segments are
rebuilt, too (`rebuild_transactions`).

Invariants:
1. Checkpoints are hints, limited to the offsets of the log. But after an unclean stop, a log that ends before its start
   offset has lost its end and restarts at that offset: deleted offsets are not assigned again. After a clean stop, the
   files of such a log have been replaced, and all of the new ones are kept. A log that ends before its recovery point
   has lost flushed records, and is not opened until they are restored or the loss is accepted.
2. Nothing below the recovery point's index entry is rewritten.
3. A crash during recovery leaves a directory that the next recovery can open: logs are cut from the end, and everything
   that is rebuilt is rebuilt from the log.
4. A truncation is on the disk before the log is used: neither old bytes nor old file names come back behind new
   records.
5. Missing offsets alone are no reason to cut a log, unless they are known to have existed (`contiguity`): compaction
   and copies leave gaps, in segments and between them.

Source: org.apache.kafka.storage.internals.log.LogLoader.
"""

import logging
from typing import NamedTuple

from warmlog.broker.log.descriptions import RecoveryReport
from warmlog.broker.log.directory.accepted_loss import ACCEPT_LOSS, forget_acceptance, how_to_accept
from warmlog.broker.log.directory.checkpoint import LEADER_EPOCHS, read_epochs
from warmlog.broker.log.errors import CheckpointError, IndexCorruptError, MissingFilesError
from warmlog.broker.log.index.leader_epochs import LeaderEpochs
from warmlog.broker.log.io.directory_names import TRANSACTION_INDEX_SUFFIX
from warmlog.broker.log.producers.snapshot import ProducerSnapshots
from warmlog.broker.log.producers.table import Producers
from warmlog.broker.log.recovery.context import LogContext
from warmlog.broker.log.recovery.contiguity import Contiguity
from warmlog.broker.log.recovery.findings import Findings
from warmlog.broker.log.recovery.listing import list_directory
from warmlog.broker.log.recovery.rebuild import (
    Scan,
    follows_rule,
    rebuild_indexes,
    remember_end,
    resume,
    scan_segment,
)
from warmlog.broker.log.recovery.rebuild_transactions import rebuild_scanned
from warmlog.broker.log.recovery.unclean import UncleanRecovery, refuse_lost_end, walk_end
from warmlog.broker.log.segments.index_audit import check_active_indexes, check_doubtful_times
from warmlog.broker.log.segments.segment import Segment
from warmlog.broker.log.segments.segment_map import Segments
from warmlog.broker.log.segments.tail import Tail
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.records.record import MAX_INT64

logger = logging.getLogger(__name__)


class LoadedLog(NamedTuple):
    """An opened log. `tail` is the end of the active segment; `made_files`: directory entries are not synced yet.

    `stable_offset`: transactions that begin below it ended below the recovery point.
    """

    segments: Segments
    tail: Tail
    epochs: LeaderEpochs
    producers: Producers
    contiguity: Contiguity
    log_start_offset: int
    recovery_point: int
    made_files: bool
    stable_offset: int
    report: RecoveryReport | None


def load_log(
    context: LogContext, *, recovery_point: int, log_start_offset: int, clean: bool, known_end: int | None = None
) -> LoadedLog:
    """Open a log's directory, creating it if it is missing. Blocking: call it in a worker or at startup.

    `recovery_point` and `log_start_offset` come from the checkpoints; `clean`: the last stop was clean. After a clean
    stop, a recovery point that is not the end of the log means that other files were put there since.

    `known_end`: the largest offset in the checkpoints; a log that was flushed must have files then, and restarts
    there if their loss was accepted. None: such a log is created empty.

    Raises MissingFilesError if a log file was lost, and OSError.
    """
    loader = _Loader(context)
    loaded = loader.load(recovery_point, log_start_offset, clean=clean, known_end=known_end)
    if loader.accepts_loss:
        forget_acceptance(context.disk, context.directory)
        logger.warning(
            "%s: serving the log without its missing files, because it had a file %s", context.directory, ACCEPT_LOSS
        )
    return loaded


class _Loader:
    """Opens one directory once."""

    def __init__(self, context: LogContext) -> None:
        self._context = context
        self._disk = context.disk
        self._contiguity = Contiguity(context.disk, context.directory)
        self._findings = Findings()
        self._segments: list[Segment] = []
        self._snapshots: list[int] = []
        self._is_new = False
        self.accepts_loss = False
        self._stable_offset = MAX_INT64

    def load(self, recovery_point: int, log_start_offset: int, *, clean: bool, known_end: int | None) -> LoadedLog:
        started_ms = self._context.clock()
        self._findings.known_end = 0 if known_end is None else known_end
        self._segments, self._snapshots, self._is_new, self.accepts_loss = list_directory(
            self._context, self._findings, recovery_point=recovery_point, log_start_offset=log_start_offset
        )
        if not self._segments:
            return self._create(self._new_start(recovery_point, max(0, log_start_offset), known_end))
        for segment in self._segments:
            segment.contiguous_from = self._contiguity.offset
        unclean = UncleanRecovery(self._context, self._segments, self._contiguity, self._findings)
        unclean.drop_uncommitted_roll()
        checkpointed = recovery_point
        flushed = recovery_point if recovery_point > log_start_offset and not self.accepts_loss else 0
        tail = self._clean_tail(recovery_point, flushed) if clean else None
        was_sound = tail is not None
        if tail is None:
            recovery_point = self._segments[-1].base_offset if clean else max(0, recovery_point)
            tail = self._activate(*unclean.recover(recovery_point, flushed))
        if self.accepts_loss or (clean and checkpointed != tail.next_offset):
            self._contiguity.forget()  # a clean stop leaves both equal: files were replaced since
        if self.accepts_loss and known_end is not None and known_end > tail.next_offset:
            tail, was_sound, recovery_point = self._skip_to(known_end), False, known_end
        if log_start_offset > tail.next_offset and clean:
            log_start_offset = 0  # everything was synced, so it is the start of files that were here before
        elif log_start_offset > tail.next_offset:
            self._remove_snapshots()
            tail, was_sound, recovery_point = unclean.start_over(log_start_offset), False, log_start_offset
        end = tail.next_offset
        start = max(log_start_offset, self._segments[0].base_offset)
        epochs = self._epochs(end, recovered=not clean)
        epochs.truncate_from_start(start)
        epochs.truncate_from_end(end)  # an empty log has none
        producers = self._producers(end, scan_without=not was_sound)
        report = None
        if not was_sound or self._findings.rebuilt:
            report = self._findings.report(recovery_point, end, (self._context.clock() - started_ms) / 1000)
        return LoadedLog(
            segments=Segments(self._segments),
            tail=tail,
            epochs=epochs,
            producers=producers,
            contiguity=self._contiguity,
            log_start_offset=start,
            recovery_point=end if was_sound else min(recovery_point, end),
            made_files=not was_sound,  # the killed process may not have synced the names of its files
            stable_offset=end if was_sound else min(recovery_point, self._stable_offset),
            report=report,
        )

    def _new_start(self, recovery_point: int, log_start_offset: int, known_end: int | None) -> int:
        """Return the offset at which a log without files begins. Raises MissingFilesError if its files are lost."""
        if known_end is None or self._is_new:
            return log_start_offset
        if self.accepts_loss:
            return max(log_start_offset, known_end)
        if recovery_point > log_start_offset:
            directory = self._context.directory
            raise MissingFilesError(
                f"{directory} has no log files, but had records up to {recovery_point - 1}: {how_to_accept(directory)}"
            )
        return log_start_offset

    def _skip_to(self, offset: int) -> Tail:
        """End the log with an empty segment at an offset, so that offsets of lost records are not assigned again."""
        context, last = self._context, self._segments[-1]
        tail = context.new_tail(offset)
        fresh = Segment.create(context.files, context.directory, tail, context.config)
        if last.size:
            last.seal(offset)
            last.trim()
            last.close_writers()
            rebuild_indexes(last, context.config)
        else:
            last.removed = True
            last.remove_files()
            self._segments.remove(last)
        self._segments.append(fresh)
        self._disk.sync_directory(context.directory)
        return tail

    def _create(self, base_offset: int) -> LoadedLog:
        """Create an empty log that begins at an offset."""
        context = self._context
        tail = context.new_tail(base_offset)
        segment = Segment.create(context.files, context.directory, tail, context.config)
        self._segments = [segment]
        epochs = self._epochs(base_offset, recovered=False)
        epochs.truncate_from_end(0)  # their records are gone
        return LoadedLog(
            segments=Segments([segment]),
            tail=tail,
            epochs=epochs,
            producers=self._producers(base_offset, scan_without=False),
            contiguity=self._contiguity,
            log_start_offset=base_offset,
            recovery_point=base_offset,
            made_files=True,
            stable_offset=base_offset,
            report=None,
        )

    def _epochs(self, end: int, *, recovered: bool) -> LeaderEpochs:
        """Return the checkpoint's leader epochs within the log, and those of scanned batches.

        `current` is the largest in the checkpoint, even if it has no records. `recovered`: after an unclean stop the
        checkpoint may lack the epochs of the last batches.
        """
        path = f"{self._context.directory}/{LEADER_EPOCHS}"
        entries: list[tuple[int, int]] = []
        try:
            entries = [] if self._is_new else read_epochs(self._disk, path)
        except CheckpointError:  # the checkpoint is a hint: the batches decide
            self._findings.lost_epochs = True
        epochs = LeaderEpochs(entries)
        epochs.truncate_from_end(end)
        if not self._findings.epochs and (recovered or not entries):
            self._findings.epochs += self._last_epoch()
        for epoch, first_offset in self._findings.epochs:
            if epoch > epochs.latest:
                epochs.assign(epoch, first_offset)
        epochs.changed = list(epochs.entries) != entries
        return epochs

    def _remove_snapshots(self) -> None:
        """Remove the producer snapshots: the records between them and the new start of the log are lost."""
        snapshots = ProducerSnapshots(self._disk, self._context.directory, self._snapshots)
        snapshots.remove_all()
        self._snapshots = []
        self._findings.snapshots += snapshots.removed

    def _last_epoch(self) -> list[tuple[int, int]]:
        """Return the leader epoch and base offset of the last batch, for a log whose active segment is empty."""
        last = next((segment for segment in reversed(self._segments) if segment.size), None)
        headers = [] if last is None else [header for _, header in walk_end(last)]
        return [(header.leader_epoch, header.base_offset) for header in headers[-1:]]

    def _producers(self, end: int, *, scan_without: bool) -> Producers:
        snapshots = ProducerSnapshots(self._disk, self._context.directory, self._snapshots)
        scanned = self._findings.producers
        producers = self._context.rebuild_producers(
            snapshots, self._segments, end, scan_without=scan_without, scanned=scanned
        )
        self._findings.snapshots += snapshots.removed
        try:
            if any(trail.has_transactions or _has_transaction_index(segment) for segment, trail in scanned.trails):
                rebuilt = rebuild_scanned(snapshots, self._segments, scanned)
                self._findings.rebuilt_transactions += rebuilt.base_offsets
                self._stable_offset = rebuilt.stable_offset
            if self._findings.reason is not None or self._findings.snapshots:  # else these come back behind new records
                self._disk.sync_directory(self._context.directory)
        except OSError:
            producers.release()
            raise
        return producers

    def _clean_tail(self, checkpointed: int, flushed: int) -> Tail | None:
        """Return the end of the active segment by its indexes and the few batches after them; None if they mismatch.

        Raises MissingFilesError if the log ends before `flushed`.

        Indexes that another broker may have written are checked, and rebuilt unless they follow this broker's rule; the
        log file is not changed.
        """
        segment = self._segments[-1]
        scan = self._scan_clean(segment)
        if scan is not None:
            refuse_lost_end(segment, scan.tail.next_offset, flushed)
        is_foreign = checkpointed == 0 if scan is None else checkpointed != scan.tail.next_offset
        if is_foreign and segment.size and (scan is None or not follows_rule(segment)):
            segment.close()
            rebuild_indexes(segment, self._context.config)
            scan = self._scan_clean(segment)
            if scan is not None:
                self._findings.rebuilt.append(segment.base_offset)
        if scan is None:
            return None
        self._findings.epochs += scan.epochs
        return self._activate(segment, scan)

    def _scan_clean(self, segment: Segment) -> Scan | None:
        """Scan the active segment from its last index entry on; return None if indexes and log do not match."""
        try:
            offsets, times = segment.offset_index.entries, segment.time_index.entries
            check_active_indexes(segment)
            tail = self._context.new_tail(segment.base_offset).without_indexing()
            scan = scan_segment(segment, resume(segment, tail, offsets, times), verified=False)
            check_doubtful_times(segment)
        except (IndexCorruptError, ProtocolError):
            return None
        return scan if scan.reason is None else None

    def _activate(self, segment: Segment, scan: Scan) -> Tail:
        tail = scan.tail
        tail.configure(self._context.config)
        segment.close()
        segment.activate(self._context.config, tail)
        if self._findings.scanned:
            segment.doubt_indexes()
        remember_end(segment, tail)
        segment.reader.close()
        return tail


def _has_transaction_index(segment: Segment) -> bool:
    """Return whether there is such a file. Raises OSError."""
    try:
        segment.disk.modified_ms(segment.path(TRANSACTION_INDEX_SUFFIX))
    except FileNotFoundError:
        return False
    return True
