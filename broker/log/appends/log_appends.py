"""Appends to one log: plan, write and commit batches.

Invariants:
1. An append is planned, written, committed, in this order. Plans queue, each assuming that those before it succeed.
   When a step fails, `abandon` drops them all, and nothing of them is visible or stays in the file.
2. The log end offset and the active segment's size move together, in `commit`.
3. Batches are stored as received, except that base offset and leader epoch are written into a copy of the header, and
   that timestamps and codec are changed if the topic's settings require it. Copies are stored as fetched.
"""

from typing import Final

from warmlog.broker.log.appends.appender import Appender
from warmlog.broker.log.appends.durability import Durability
from warmlog.broker.log.appends.planned import Buffer, PlannedAppend
from warmlog.broker.log.appends.rolls import LogRolls
from warmlog.broker.log.directory.disk_reserve import SpaceStatus
from warmlog.broker.log.io.shared_writes import FileWrite, SharedWrites
from warmlog.broker.log.log_state import HighWatermarkSource, LogOffsets, LogState
from warmlog.broker.log.producers.copies import LargestTimestamps, largest_timestamps
from warmlog.broker.log.producers.transactions import Origin, TransactionMarker
from warmlog.protocol.records.compression import DEFAULT_MAX_DECOMPRESSED_SIZE
from warmlog.protocol.records.reencode import Reencoding
from warmlog.protocol.records.validation import NeedsReencodingError

_END: Final = HighWatermarkSource.END  # bound once, as in `log_state`


class LogAppends:
    """The appends of one log. For the event loop, unless marked "for a worker".

    `space_status` is that of the log's disk; `uses_reserve`: accept appends even if space is short.
    """

    __slots__ = ("_appender", "_durability", "_offsets", "_rolls", "_state", "space_status", "uses_reserve")

    def __init__(
        self,
        state: LogState,
        offsets: LogOffsets,
        appender: Appender,
        durability: Durability,
        rolls: LogRolls,
        *,
        space_status: SpaceStatus,
        uses_reserve: bool,
    ) -> None:
        self._state = state
        self._offsets = offsets
        self._appender = appender
        self._durability = durability
        self._rolls = rolls
        self.space_status = space_status
        self.uses_reserve = uses_reserve

    def plan(
        self, records: Buffer, *, reencoded: bool = False, origin: Origin = Origin.CLIENT, guard: int = 0
    ) -> PlannedAppend:
        """Validate batches and assign offsets and a position. `records` must not change until `commit`.

        A client may begin a transaction only with a valid `guard` (`Producers.guards`). A plan with a `roll` must be
        the first of its write, after `LogRolls.prepare` and `commit`.

        Raises LogFailedError, NoSpaceError, RecordListTooLargeError; the ProtocolErrors of
        `protocol.records.validation.check_batches` (BatchTooLargeError: a batch exceeds `max.message.bytes`);
        NeedsReencodingError if the records must go through `reencode` first.
        """
        self._check_service()
        return self._appender.plan(records, self._state.epochs.current, reencoded=reencoded, origin=origin, guard=guard)

    def plan_marker(self, marker: TransactionMarker) -> PlannedAppend:
        """Assign an offset and a position to a transaction marker, as `plan` does for batches.

        Raises LogFailedError, NoSpaceError, InvalidProducerEpochError, TransactionCoordinatorFencedError.
        """
        self._check_service()
        return self._appender.plan_marker(marker, self._state.epochs.current)

    def plan_copy(
        self, records: Buffer, leader_epoch: int | None = None, timestamps: LargestTimestamps | None = None
    ) -> list[PlannedAppend]:
        """Plan batches fetched from the leader, with the offsets, leader epochs and gaps that they have there.

        The batches are in order. A last batch that is cut off is omitted, and so is everything from a batch with a
        later epoch than the leader's (None: any) on. Producers and transactions are followed without validation. Each
        plan has the batches that fit in one segment; there are none if no batch is whole. `records` must not change
        until the commit.

        Raises LogFailedError, NoSpaceError; CorruptBatchError, UnsupportedMagicError, InvalidRecordError for batches
        that are damaged or do not follow the log end; UnknownTimestampError if `timestamps` (of
        `copies.largest_timestamps`) are needed. Nothing is planned then.
        """
        self._check_service()
        return self._appender.plan_copy(records, leader_epoch, timestamps)

    def _check_service(self) -> None:
        if self._state.closed or self._state.failure is not None:
            raise self._state.refusal()
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
        """Return the function that converts batches to this log's form: decompressed, validated, and in its codec.

        Call it in a worker, unless the batches are small.
        """
        return Reencoding(
            records, self._appender.rules, self._state.context.clock(), max_decompressed_size=max_decompressed_size
        )

    def write(self, planned: list[PlannedAppend]) -> None:
        """Write all plans, in order, to the active segment's file, or none. For a worker, unless they are small.

        Raises OSError, after truncating the file to its previous size; then call `abandon`.
        """
        writes = SharedWrites()
        self.end_write(self.begin_write(planned, writes), writes)

    def begin_write(self, planned: list[PlannedAppend], writes: SharedWrites) -> FileWrite:
        """Begin a `write` concurrently with other logs; `end_write` follows. Raises OSError; then call `abandon`."""
        if self.is_full:  # it failed after they were planned
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
        offsets = self._offsets
        offsets.log_end_offset = end = appender.committed.next_offset
        if offsets.high_watermark_source is _END:
            offsets.show(end)

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
                rolls = self._rolls
                rolls.finish(rolls.commit(rolls.prepare(planned)))
            self.write([planned])
            self.commit([planned])
        except OSError:
            self.abandon()
            raise
        return planned

    def forget_expired_producers(self, most: int) -> bool:
        """Drop up to `most` producers that were idle for `producer.id.expiration.ms`; return whether there are more.

        Both the broker's clock and the records' timestamps count: a client that copies old records is not idle.
        """
        limit_ms = self._state.context.clock() - self._state.context.config.producer_id_expiration_ms
        return self._state.producers.forget_idle(limit_ms, limit_ms, most=most)
