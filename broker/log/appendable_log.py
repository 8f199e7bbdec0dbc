"""A log that takes appends: plan, write and commit batches, and roll to new segments.

Invariants:
1. An append is planned, written, committed, in this order. Plans queue, each assuming that those before it succeed.
   When a step fails, `abandon` drops them all, and nothing of them is visible or stays in the file.
2. The log end offset and the active segment's size move together, in `commit`.
3. Batches are stored as received, except that base offset and leader epoch are written into a copy of the header, and
   that timestamps and codec are changed if the topic's settings require it. Copies are stored as fetched.
"""

from warmlog.broker.log.append import Buffer, PlannedAppend
from warmlog.broker.log.appender import PreparedRoll
from warmlog.broker.log.flush import FlushPlan
from warmlog.broker.log.io.shared_writes import FileWrite, SharedWrites
from warmlog.broker.log.log_state import HighWatermarkSource, LogState
from warmlog.broker.log.producers.copies import LargestTimestamps, largest_timestamps
from warmlog.broker.log.producers.transactions import Origin, TransactionMarker
from warmlog.broker.log.segments.segment import Segment
from warmlog.protocol.records.compression import DEFAULT_MAX_DECOMPRESSED_SIZE
from warmlog.protocol.records.reencode import Reencoding
from warmlog.protocol.records.validation import NeedsReencodingError

_END = HighWatermarkSource.END  # bound once, as in `log_state`


class AppendableLog(LogState):
    """The write side of a log. For the event loop, unless marked "for a worker"."""

    __slots__ = ()

    # -- append --------------------------------------------------------------------------------------------------------

    def plan(
        self, records: Buffer, *, reencoded: bool = False, origin: Origin = Origin.CLIENT, guard: int = 0
    ) -> PlannedAppend:
        """Validate batches and assign offsets and a position. `records` must not change until `commit`.

        A client may begin a transaction only with a valid `guard` (`Producers.guards`). A plan with a `roll` must be
        the first of its write, after `prepare_roll` and `commit_roll`.

        Raises LogFailedError, NoRoomError, RecordListTooLargeError; the ProtocolErrors of
        `protocol.records.validation.check_batches` (BatchTooLargeError: a batch exceeds `max.message.bytes`);
        NeedsReencodingError if the records must go through `reencode` first.
        """
        self._check_service()
        return self._appender.plan(records, self._epochs.current, reencoded=reencoded, origin=origin, guard=guard)

    def plan_marker(self, marker: TransactionMarker) -> PlannedAppend:
        """Assign an offset and a position to a transaction marker, as `plan` does for batches.

        Raises LogFailedError, NoRoomError, InvalidProducerEpochError, TransactionCoordinatorFencedError.
        """
        self._check_service()
        return self._appender.plan_marker(marker, self._epochs.current)

    def plan_copy(
        self, records: Buffer, leader_epoch: int | None = None, timestamps: LargestTimestamps | None = None
    ) -> list[PlannedAppend]:
        """Plan batches fetched from the leader, with the offsets, leader epochs and gaps that they have there.

        They are in order, and the last may be cut off: it is left out, as are batches of later epochs than the leader's
        (None: any). Producers and transactions are followed without validation. Each plan has the batches that fit in
        one segment; there are none if no batch is whole. `records` must not change until the commit.

        Raises LogFailedError, NoRoomError; CorruptBatchError, UnsupportedMagicError, InvalidRecordError for batches
        that are damaged or do not follow the log end; UnknownTimestampError if `timestamps` (of
        `copies.largest_timestamps`) are needed. Nothing is planned then.
        """
        self._check_service()
        return self._appender.plan_copy(records, leader_epoch, timestamps)

    def _check_service(self) -> None:
        if self._closed or self._appender.writer.failure is not None:
            raise self._refusal()
        if self.is_full:
            raise self.space_status.refuse()

    @property
    def is_full(self) -> bool:
        """Whether appends are refused, because the disk is full."""
        return self.space_status.is_short and not self.uses_reserve

    @property
    def keeps_codecs(self) -> bool:
        """Whether batches are stored in the codec in which they are received, never recompressed."""
        return self._appender.rules.codec is None

    def reencoding(self, records: Buffer, *, max_decompressed_size: int = DEFAULT_MAX_DECOMPRESSED_SIZE) -> Reencoding:
        """Return the work to turn batches into what this log stores: decompressed, validated, and in its codec.

        Do it in a worker, unless the batches are small.
        """
        return Reencoding(
            records, self._appender.rules, self._context.clock(), max_decompressed_size=max_decompressed_size
        )

    def write(self, planned: list[PlannedAppend]) -> None:
        """Write all plans, in order, to the active segment's file, or none. For a worker, unless they are small.

        Raises OSError, after truncating the file to its previous size; then call `abandon`.
        """
        writes = SharedWrites()
        self.end_write(self.begin_write(planned, writes), writes)

    def begin_write(self, planned: list[PlannedAppend], writes: SharedWrites) -> FileWrite:
        """Begin a `write` beside those of other logs; `end_write` follows. Raises OSError; then call `abandon`."""
        if self.is_full:  # became so after they were planned
            raise self.space_status.full()
        return self._appender.begin_write(planned, writes)

    def end_write(self, write: FileWrite, writes: SharedWrites) -> None:
        """End a `write`. Raises OSError, after truncating the file to its previous size; then call `abandon`."""
        self._appender.end_write(write, writes)

    def commit(self, planned: list[PlannedAppend]) -> None:
        """Make written plans part of the log: index entries, sizes, log end offset, high watermark.

        Raises OSError if an index entry could not be written, after undoing the write; then call `abandon`.
        """
        appender = self._appender
        self._durability.appended_bytes += appender.commit(planned)
        if appender.has_new_names:
            appender.has_new_names = False
            self._durability.names_made()
        self.log_end_offset = end = self._appender.committed.next_offset
        if self.high_watermark_source is _END:
            self._show(end)

    def abandon(self) -> None:
        """Drop every plan that is not committed."""
        self._appender.abandon()

    def append(self, records: Buffer, *, origin: Origin = Origin.CLIENT, guard: int = 0) -> PlannedAppend:
        """Plan, roll if needed, write and commit in one call. Blocking; for tools and tests.

        Raises the errors of these steps.
        """
        try:
            planned = self.plan(records, origin=origin, guard=guard)
        except NeedsReencodingError:
            opened = self.reencoding(records).run(lambda: False)
            assert opened is not None, "it is never over"
            planned = self.plan(opened, reencoded=True, origin=origin, guard=guard)
        return self._append(planned)

    def append_copy(self, records: Buffer, leader_epoch: int | None = None) -> list[PlannedAppend]:
        """Append batches fetched from the leader, as `append` does for batches of clients."""
        return [self._append(planned) for planned in self.plan_copy(records, leader_epoch, largest_timestamps(records))]

    def append_marker(self, marker: TransactionMarker) -> PlannedAppend:
        """Append a transaction marker, as `append` does for batches."""
        return self._append(self.plan_marker(marker))

    def _append(self, planned: PlannedAppend) -> PlannedAppend:
        try:
            if planned.roll is not None:
                self.finish_roll(self.commit_roll(self.prepare_roll(planned)))
            self.write([planned])
            self.commit([planned])
        except OSError:
            self.abandon()
            raise
        return planned

    def forget_expired_producers(self, most: int) -> bool:
        """Drop up to `most` producers that were idle for `producer.id.expiration.ms`; return whether there are more.

        Both the broker's clock and the timestamps of the records must say so: a client that copies old records is not
        idle.
        """
        limit_ms = self._context.clock() - self.config.producer_id_expiration_ms
        return self.producers.forget_idle(limit_ms, limit_ms, most=most)

    # -- roll ----------------------------------------------------------------------------------------------------------

    def prepare_roll(self, planned: PlannedAppend) -> PreparedRoll:
        """Create the files of the segment that a plan begins. For a worker.

        A copy may leave a gap before it. Recovery cannot tell that from a lost end of the segment before, which is
        synced first. Raises OSError; then call `abandon`.
        """
        assert planned.new_tail is not None, "the plan rolls"
        if planned.new_tail.base_offset > self.log_end_offset:
            self._plan_flush().sync()
        return self._appender.prepare_roll(planned.new_tail)

    def _plan_flush(self) -> FlushPlan:
        context, stable = self._context, self._end_of_transactions()
        return self._durability.begin(self._segments, self.log_end_offset, stable, context.directory, context.disk)

    def commit_roll(self, prepared: PreparedRoll) -> Segment:
        """Make the new segment active; return the sealed one, for `finish_roll`.

        Raises OSError if the sealed segment's last time index entry could not be written; then nothing has rolled, and
        `abandon` must be called.
        """
        sealed = self._appender.commit_roll(prepared)
        self._durability.names_made()
        return sealed

    def finish_roll(self, sealed: Segment) -> None:
        """Truncate a sealed segment's files to their content, and sync them. For a worker.

        Raises OSError; a failed sync fails the log.
        """
        if self._closed:
            return
        self._appender.snapshots.write_taken()
        try:
            sealed.trim()
            self._durability.turns.take(sealed.sync)
        except FileNotFoundError:
            if not self._closed:  # otherwise the directory has been renamed for deletion
                raise
        sealed.synced = True
        sealed.close_writers()

    def roll(self) -> None:
        """Begin a new segment now, unless the active one is empty. Nothing may be planned. Blocking. Raises OSError."""
        if self._segments.active.size:
            self.finish_roll(self.commit_early_roll(self.prepare_early_roll()))

    def prepare_early_roll(self) -> PreparedRoll:
        """Create the files of a segment that begins at the log end without a plan. For a worker. Raises OSError.

        Continue with `commit_early_roll` once nothing is planned, or with `PreparedRoll.forget`; the log end must not
        have moved.
        """
        return self._appender.prepare_roll(self._context.new_tail(self.log_end_offset))

    def commit_early_roll(self, prepared: PreparedRoll) -> Segment:
        """Commit a roll as `commit_roll` does, and let later plans use the new segment. Raises OSError."""
        sealed = self.commit_roll(prepared)
        self.abandon()
        return sealed

    @property
    def is_roll_near(self) -> bool:
        """Whether the first roll since the log was opened is near, so that `announce_roll` is due."""
        tail = self._appender.committed
        return tail.size * 2 > tail.segment_bytes and not self._appender.contiguity.is_ready

    def announce_roll(self) -> None:
        """Durably record what the first roll would otherwise have to wait for. For a worker. Raises OSError."""
        self._appender.contiguity.include(self._segments.active.base_offset)

    def request_roll(self) -> None:
        """Let the next plan begin a new segment, whatever the size of the active one."""
        self._appender.request_roll()
