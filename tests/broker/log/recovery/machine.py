"""One log and its data directory on a disk that may lose its power, driven as a broker drives them.

Each verb does to the log what the broker does, and tells the ledger what a client would know by then.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random

from tests.broker.log.io.crashing_disk import CrashingDisk
from tests.broker.log.recovery.ledger import START_MS, Ledger, LogRecord, Stored, aborted_in, open_in, stored
from warmlog.broker.log.compaction.run import CleanerLimits, Compaction
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.descriptions import LogRead
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.log.index.transaction import read_aborted
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.producers.transactions import TransactionMarker
from warmlog.broker.partitions.epochs import assign_epoch
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.compaction.offset_map import OffsetMap
from warmlog.protocol.records.layout import TRANSACTIONAL_BIT
from warmlog.protocol.records.markers import EndMarker, Outcome, marker_batch
from warmlog.protocol.records.record import Row

KEY = ("words", 0)
PRODUCER_ID = 7

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=150, segment_index_bytes=240, delete_retention_ms=1000)


def build(ledger: Ledger, count: int, size: int, *, keys: int = 5, idempotent: bool = True) -> bytes:
    """A batch for the end of the log, with values that tell where they belong."""
    offsets = range(ledger.end, ledger.end + count)
    rows: list[Row] = []
    for offset in offsets:
        value = None if offset % 11 == 10 else b"%d:" % offset + b"v" * size  # here and there a tombstone
        headers = (("h", b"%d" % offset),) if offset % 3 == 0 else ()
        rows.append((START_MS + offset, b"k%d" % (offset % keys), value, headers))
    if not idempotent:
        return build_batch(rows)
    return build_batch(rows, producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=ledger.next_sequence(PRODUCER_ID))


class Machine:
    """The log of `words-0` in a data directory at `root`, which is made if it is not there."""

    def __init__(self, root: Path, ledger: Ledger, config: LogConfig = CONFIG) -> None:
        root.mkdir(exist_ok=True)
        self.disk = CrashingDisk(root)
        self.ledger = ledger
        self.config = replace(config, cleanup_policy="compact") if ledger.compacted else config
        self._cleaned: int | None = None
        self._directory: DataDirectory | None = None
        self._log: PartitionLog | None = None

    @property
    def log(self) -> PartitionLog:
        assert self._log is not None, "it is not started"
        return self._log

    @property
    def is_on(self) -> bool:
        """Whether it is started."""
        return self._log is not None

    @property
    def directory(self) -> DataDirectory:
        assert self._directory is not None, "it is not started"
        return self._directory

    # -- start and stop ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """As a broker starts."""
        self._directory = directory = DataDirectory.open(self.disk.root, node_id=1, disk=self.disk)
        directory.unmark_clean()
        path = Path(directory.partition_path("words-0"))
        is_new = str(path) not in self.disk._directories
        self._log = PartitionLog.open(
            path,
            topic="words",
            partition=0,
            config=self.config,
            files=OpenFiles(disk=self.disk),
            clock=lambda: self.ledger.now_ms,
            random=Random(1),
            recovery_point=directory.recovery_points.get(KEY, 0),
            log_start_offset=directory.log_starts.get(KEY, 0),
            clean=directory.was_clean,
        )
        assign_epoch(self._log, records_lost=not directory.was_clean and self._log.recovery is not None)
        if is_new:
            directory.sync_names()
        self._cleaned = directory.cleaner_points.get(KEY)
        if not directory.was_clean:
            directory.write_checkpoints([self.log])

    def stop(self) -> None:
        """As a broker stops."""
        self.log.close()
        self.ledger.was_flushed()
        self.checkpoint()
        self.directory.mark_clean()
        self.end()

    def end(self) -> None:
        """As a process that is killed."""
        if self._log is not None:
            self._log.close(clean=False)
        if self._directory is not None:
            self._directory.close()
        self._log = self._directory = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill(self) -> None:
        """As a broker that is killed and started again: the power stays on, so nothing acknowledged may be missing."""
        self.end()
        self.disk.forget_lost_syncs()
        self.start()
        self._check_nothing_is_missing()

    def reopen(self) -> None:
        """As a broker does with a log that has failed. Raises what that raises: then the log is as it was."""
        reopened = self.log.begin_reopening().make()
        self.log.finish_reopening(reopened)
        if reopened.reason is not None:
            assign_epoch(self.log, records_lost=True)
        reopened.close_replaced()
        self._check_nothing_is_missing()
        self.ledger.was_flushed()

    def _check_nothing_is_missing(self) -> None:
        ledger, possible = self.ledger, self.ledger.possible
        flushed, ledger.flushed = ledger.flushed, ledger.end
        self.check()
        ledger.flushed = min(flushed, ledger.end)
        ledger.possible |= possible

    # -- what a broker does with a log ---------------------------------------------------------------------------------

    def append(self, count: int = 1, size: int = 40, *, idempotent: bool = True) -> None:
        data = build(self.ledger, count, size, idempotent=idempotent)
        sent = stored(data, at_offset=self.log.offsets.log_end_offset)
        self.ledger.may_be(sent)
        planned = self.log.appends.append(data)
        assert planned.base_offset == sent[0].base_offset
        self.ledger.are(sent)

    def transact(self, producer_id: int, count: int = 1, size: int = 40) -> None:
        """Append a batch to the transaction of a producer, which begins one if none is open."""
        rows: list[Row] = [
            (START_MS + offset, b"k%d" % (offset % 5), b"%d:" % offset + b"t" * size, ())
            for offset in range(self.ledger.end, self.ledger.end + count)
        ]
        data = build_batch(
            rows,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=self.ledger.next_sequence(producer_id),
            attributes=TRANSACTIONAL_BIT,
        )
        sent = stored(data, at_offset=self.log.offsets.log_end_offset)
        self.ledger.may_be(sent)
        self.log.appends.append(data, guard=self.log.producers.guards.open(producer_id))
        self.ledger.are(sent)

    def end_transaction(self, producer_id: int, outcome: Outcome) -> None:
        """Append a marker, whether or not a transaction is open."""
        data = marker_batch(producer_id, 0, EndMarker(outcome, 0, self.ledger.now_ms))
        sent = stored(data, at_offset=self.log.offsets.log_end_offset)
        self.ledger.may_be(sent)
        self.log.appends.append_marker(TransactionMarker(producer_id, 0, 0, outcome))
        self.ledger.are(sent)

    def roll(self) -> None:
        self.log.rolls.roll()

    def flush(self) -> None:
        self.log.durability.flush()
        self.ledger.was_flushed()

    def checkpoint(self) -> None:
        self.directory.write_checkpoints([self.log])

    def truncate(self, back: int) -> None:
        """Cut so many records off the end, as a follower does; but not the batch that the log begins in."""
        least = self.ledger.batches[0].last_offset + 1 if self.ledger.batches else self.log.offsets.log_end_offset
        target = max(least, self.log.offsets.log_end_offset - back)
        self.ledger.was_cut(target)
        self.log.durability.lower_recovery_point(target)
        self.directory.write_checkpoints([self.log])
        try:
            self.log.truncation.truncate_to(target)
        except OSError:
            self.end()  # what is half cut is mended by a start
            raise
        self.ledger.check_producers(self.log.producers.capture())

    def delete_records(self, count: int) -> None:
        """Move the start, then have what lies before it go."""
        target = min(self.ledger.start + count, self.log.offsets.high_watermark)
        self.ledger.asked_start = target
        self.log.truncation.advance_start(target)
        self.directory.write_log_starts([self.log])
        self.ledger.start = target
        self.ledger.batches = [batch for batch in self.ledger.batches if batch.last_offset >= target]
        removed = self.log.old_segments.take_out()
        self.log.old_segments.unlink(self.log.old_segments.rename(removed))

    def compact(self, entries: int = 1000) -> None:
        cleaning = self.log.cleaning
        cleanable = cleaning.find(self._cleaned)
        if not cleanable.cleanable_bytes:
            return
        limits = CleanerLimits(
            dedupe_buffer_bytes=entries * 10 * OffsetMap.ENTRY_SIZE,
            load_factor=0.1,
            io_buffer_bytes=0,
            max_bytes_per_second=1e300,
        )
        self.ledger.stamped = max(self.ledger.stamped, cleanable.first_uncleanable_offset)
        run = Compaction(cleaning.job(cleanable, self.log.producers.capture(), limits), lambda _: None, self.disk)
        for group in run.run():
            swap = cleaning.plan_swap(group)
            cleaning.prepare_swap(swap)
            cleaning.commit_swap(swap)
            names = cleaning.finish_swap(swap)
            cleaning.end_swap(swap)
            self.log.old_segments.unlink(names)
        self._cleaned = run.summary().clean_offset
        self.directory.write_cleaner_points({KEY: self._cleaned})

    def let_time_pass(self) -> None:
        """Tombstones and markers that were compacted by now may go at the next compaction."""
        self.ledger.passed = self.ledger.stamped
        self.ledger.now_ms += self.config.delete_retention_ms

    # -- what is true --------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int = 1) -> LogRead:
        """As a broker does: indexes found corrupt are rebuilt, each once."""
        for _ in range(self.log.segment_count):
            try:
                return self.log.reads.read(offset, max_bytes, min_one_batch=True)
            except IndexCorruptError as error:
                self.log.reads.rebuild_indexes(error.base_offset)
        return self.log.reads.read(offset, max_bytes, min_one_batch=True)

    def found(self) -> list[Stored]:
        """The batches that a consumer finds, one read for each."""
        batches: list[Stored] = []
        offset = self.log.offsets.log_start_offset
        while offset < self.log.offsets.log_end_offset:
            piece = self.read(offset).slice
            if piece is None:
                break
            (batch,) = stored(piece.read_all())
            assert batch.last_offset >= offset
            batches.append(batch)
            offset = batch.last_offset + 1
        return batches

    def check(self) -> None:
        """Everything that must be true of a log that was opened: records, indexes, producers, epochs, leftovers."""
        log = self.log
        assert not log.failed
        found = self.found()
        self.ledger.check(found, start=log.offsets.log_start_offset, end=log.offsets.log_end_offset)
        assert log.offsets.log_start_offset <= log.offsets.high_watermark <= log.offsets.log_end_offset
        assert log.durability.recovery_point <= log.offsets.log_end_offset
        self.ledger.check_producers(log.producers.capture())
        assert all(batch.leader_epoch <= log.epochs.current for batch in found)
        self._check_times([record for batch in found for record in batch.records])
        self._check_offsets(found)
        self._check_transactions(found)
        names = [entry.name for entry in self.disk.scan(str(log.directory))]
        assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted", ".tmp"))], names

    def _check_offsets(self, found: Iterable[Stored]) -> None:
        """Each offset leads to its batch."""
        for batch in found:
            for offset in {max(batch.base_offset, self.log.offsets.log_start_offset), batch.last_offset}:
                piece = self.read(offset).slice
                assert piece is not None
                assert stored(piece.read_all())[0].identity == batch.identity

    def _check_times(self, records: list[LogRecord]) -> None:
        """Each time leads to the first record not earlier, and the largest one is known."""
        start = self.log.offsets.log_start_offset
        for timestamp in {record[1] for record in records if record[0] >= start}:
            at = self.log.reads.offset_for_time(timestamp)
            assert at is not None
            first = next(record for record in records if record[0] >= start and record[1] >= timestamp)
            assert (at.offset, at.timestamp) == first[:2], (at, first)
        largest = self.log.reads.largest_timestamp()
        if not self.ledger.start:
            assert (largest and largest.timestamp) == max((record[1] for record in records), default=None)

    def _check_transactions(self, found: list[Stored]) -> None:
        """Readers get each void batch that is there, and nothing past the end of the log."""
        names = [entry.name for entry in self.disk.scan(str(self.log.directory)) if entry.name.endswith(".txnindex")]
        told = [entry for name in names for entry in read_aborted(self.disk, f"{self.log.directory}/{name}", 0)]
        assert all(entry.last_offset < self.log.offsets.log_end_offset for entry in told), told
        first_open = next(iter(open_in(found)), self.log.offsets.high_watermark)
        stable, start = self.log.offsets.last_stable_offset, self.log.offsets.log_start_offset
        has_begun_before = stable == start and self.log.producers.open_transactions  # its first records are deleted
        assert stable == max(first_open, start) or has_begun_before, (stable, first_open, start)
        markers = aborted_in(found)
        for batch in found:
            if batch.base_offset in markers:
                entries = [each for each in told if each.producer_id == batch.producer_id]
                last = markers[batch.base_offset]
                assert any(each.first_offset <= batch.base_offset and each.last_offset == last for each in entries), (
                    batch[:2],
                    told,
                )
        if self.ledger.compacted:
            offsets = {batch.base_offset for batch in found if batch.is_transactional and batch.records}
            assert offsets & set(self.ledger.aborted) <= set(markers), "its marker has gone before it"
