"""One log: batches in at the end, slices out from anywhere. The face of the storage engine.

Owns: what is true of a log at this moment (its segments, its end, what is planned on top of it), and the order of steps
in which that changes. Must not know: trio, metrics, wire formats, other logs.

Who may call what: everything belongs to the loop and touches memory only (a commit adds at most three small pwrites),
but for what is marked "for a worker". Those may run beside the loop's plan, commit and read of the same log; `write`,
`prepare_roll` and `finish_roll` one at a time.

Invariants:
1. An append is planned, written, committed, in this order. Plans queue: each assumes those before it succeed. When one
   fails, `abandon` forgets them all, and nothing of them is visible or stays in the file.
2. Readers see committed batches only: `log_end_offset` and the active segment's size move in `commit`, together.
3. The records of a batch are those received, and so is its header but for base offset and leader epoch, which are
   stamped on a copy of it, and for times and codec where the topic says so.
4. log start <= last stable offset <= high watermark <= log end, recovery point <= log end. The last stable offset is
   the first offset of the oldest open transaction, or the high watermark if none is open below it. The high watermark
   is the log end, but for a log that syncs every append (`flush.messages` = 1): there it follows the recovery point, so
   that nobody reads what a power cut could take back. It never goes back, whatever becomes of the setting.
5. After a failed fsync, or a failed write that was not for want of room, the log takes no more data: its file may not
   hold what memory believes. Reads go on. It is in service again when its end was made anew (`reopening`).
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from random import Random
from typing import Self

from broker.log.append import Buffer, PlannedAppend, RollReason
from broker.log.appender import Appender, PreparedRoll
from broker.log.compaction.plan import Cleaning
from broker.log.config import LogConfig
from broker.log.describe import describe_segment
from broker.log.descriptions import LogDescription, LogRead, RecoveryReport
from broker.log.directory.checkpoint import LEADER_EPOCHS, write_epochs
from broker.log.directory.disk_reserve import Room
from broker.log.errors import LogFailedError, OffsetOutOfRangeError
from broker.log.explain import LogSnapshot, take_snapshot
from broker.log.flush import Durability, FlushPlan, SyncTurns
from broker.log.index.time import TimestampOffset
from broker.log.io.directory_names import deleted_directory
from broker.log.io.files import OpenFiles
from broker.log.io.page_faults import PageFaults
from broker.log.io.residency import Residency
from broker.log.log_view import LogBounds, LogView
from broker.log.moving import LogMove, MovedLog, MoveEnd, MoveSource
from broker.log.producers.replay import Bounds
from broker.log.producers.snapshot import ProducerSnapshots
from broker.log.producers.table import ProducerBudget, Producers
from broker.log.producers.transactions import Origin, TransactionMarker
from broker.log.reading import aborted_in, read_slice
from broker.log.recovery.index_repair import IndexRepair
from broker.log.recovery.load import LoadedLog, load_log
from broker.log.recovery.place import LogPlace
from broker.log.recovery.rebuild_transactions import rebuild_sealed
from broker.log.recovery.reopen import FailedLog, Reopened, Reopening
from broker.log.recovery.truncate import cut_segments
from broker.log.removal import OldSegments
from broker.log.segment import Segment
from broker.log.segments import Segments
from broker.log.time_search import TimeView, first_at_or_past, largest
from protocol.records.compression import DEFAULT_MAX_DECOMPRESSED_SIZE
from protocol.records.reencode import reencode_batches
from protocol.records.validation import NeedsReencodingError

__all__ = [
    "FlushPlan",
    "LogFailedError",
    "LogRead",
    "OffsetOutOfRangeError",
    "PartitionLog",
    "PlannedAppend",
    "PreparedRoll",
    "RollReason",
]


class PartitionLog:
    """One partition's log. Made by `open`; see the module's docstring for who may call what."""

    __slots__ = (
        "_appender",
        "_closed",
        "_durability",
        "_epochs",
        "_indexes",
        "_place",
        "_segments",
        "cleaning",
        "flush_messages",
        "high_watermark",
        "last_stable_offset",
        "log_end_offset",
        "log_start_offset",
        "old_segments",
        "partition",
        "recovery",
        "room",
        "topic",
        "uses_reserve",
    )

    topic: str
    partition: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    flush_messages: int  # the setting: so many records past the recovery point are synced at once
    room: Room  # on its disk
    uses_reserve: bool  # whether appends are tried also while that is short
    recovery: RecoveryReport | None  # what opening had to repair; None after a clean stop

    def __init__(self, place: LogPlace, loaded: LoadedLog, *, topic: str, partition: int) -> None:
        """Over an opened directory; use `open`."""
        self.topic = topic
        self.partition = partition
        self._place = place
        self._segments = loaded.segments
        self._appender = Appender(place, loaded.segments, loaded.tail, loaded.producers, loaded.contiguity)
        self._epochs = loaded.epochs
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.tail.next_offset
        self.flush_messages = place.config.flush_messages
        synced = max(loaded.recovery_point, loaded.log_start_offset)
        self._show(synced if self.shows_synced_only else self.log_end_offset)
        self.recovery = loaded.report
        turns = SyncTurns(self._appender.writer)
        stable = min(loaded.stable_offset, self._end_of_transactions())
        self._durability = Durability(loaded.recovery_point, stable, new_names=loaded.made_files, turns=turns)
        self._closed = False
        self.room = Room()
        self.uses_reserve = False
        self._indexes = IndexRepair(lambda: self._segments)
        self.old_segments = OldSegments(self._view, self._indexes)
        self.cleaning = Cleaning(self._view, self._indexes)

    @classmethod
    def open(
        cls,
        directory: str | PathLike[str],
        *,
        topic: str,
        partition: int,
        config: LogConfig,
        files: OpenFiles,
        clock: Callable[[], int],
        random: Random,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        clean: bool,
        room: Room | None = None,
        uses_reserve: bool = False,
        scanned: Callable[[int], None] = lambda _: None,
        budget: ProducerBudget | None = None,
    ) -> Self:
        """Open a log's directory, making it if it is not there. Blocking. Raises OSError.

        `clock` gives ms since the epoch. `recovery_point` and `log_start_offset` are the checkpoints' words, `clean`
        whether the last stop was: if so, nothing but the end of the active segment is looked at; if not, the log is
        recovered from the recovery point, and `recovery` says what that did; meanwhile `scanned` is called with the
        number of bytes checked since its last call. `room` is its disk's; with `uses_reserve`, appends are tried there
        even if it is short.
        """
        path = fspath(directory)
        place = LogPlace(
            directory=path,
            config=config,
            files=files,
            clock=clock,
            random=random,
            scanned=scanned,
            budget=budget or ProducerBudget(),
        )
        loaded = load_log(place, recovery_point=recovery_point, log_start_offset=log_start_offset, clean=clean)
        log = cls(place, loaded, topic=topic, partition=partition)
        log.room = room or Room()
        log.uses_reserve = uses_reserve
        if loaded.report is not None:
            log.checkpoint_epochs()  # an epoch that has written nothing yet is known from nowhere else
        if log.high_watermark < log.log_end_offset:
            with suppress(OSError):  # then the log has failed, which is told by who finds that, and mended later
                log.flush()
        return log

    # -- what is true --------------------------------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        """Where its files are."""
        return Path(self._place.directory)

    @property
    def config(self) -> LogConfig:
        """The settings in force."""
        return self._place.config

    @property
    def residency(self) -> Residency:
        """Whom it asks what is in memory."""
        return self._place.files.residency

    @property
    def page_faults(self) -> PageFaults:
        """Where its faults are counted, with those of the other logs."""
        return self._place.files.page_faults

    @property
    def size(self) -> int:
        """The bytes of all log files together."""
        return self._segments.size

    @property
    def segment_count(self) -> int:
        """How many segments there are."""
        return len(self._segments)

    @property
    def first_base_offset(self) -> int:
        """The base offset of the oldest segment that a start would find."""
        return self.old_segments.first_base_offset

    @property
    def active_base_offset(self) -> int:
        """Where the segment begins that is appended to: all others are sealed."""
        return self._segments.active.base_offset

    @property
    def leader_epoch(self) -> int:
        """The epoch that new batches are stamped with."""
        return self._epochs.current

    @property
    def producers(self) -> Producers:
        """The idempotent producers of what it holds."""
        return self._appender.producers

    @property
    def failed(self) -> bool:
        """Whether the log is out of service for appends until it is opened anew."""
        return self._appender.writer.failure is not None

    @property
    def failure(self) -> str | None:
        """Why the log is out of service; None while it is in service."""
        return self._appender.writer.failure

    @property
    def shows_synced_only(self) -> bool:
        """Whether the high watermark moves with syncs, and not with appends."""
        return self.flush_messages == 1

    @property
    def recovery_point(self) -> int:
        """What lies below this offset has been synced."""
        return self._durability.recovery_point

    @property
    def unflushed_bytes(self) -> int:
        """Bytes appended since the last sync began."""
        return self._durability.unflushed_bytes

    def reconfigure(self, config: LogConfig) -> None:
        """Take new settings; they hold from the next append on.

        Where `flush.messages` is no longer 1, what waits for its sync can be read at once.
        """
        self._place = replace(self._place, config=config)
        self._appender.reconfigure(self._place)
        self.flush_messages = config.flush_messages
        if not self.shows_synced_only and not self.failed:
            self._show(self.log_end_offset)

    def fail(self, reason: object) -> None:
        """Take the log out of service for appends. For a sync that failed; write failures do it themselves."""
        self._appender.writer.fail(reason)

    # -- append --------------------------------------------------------------------------------------------------------

    def plan(
        self, records: Buffer, *, reencoded: bool = False, origin: Origin = Origin.CLIENT, guard: int = 0
    ) -> PlannedAppend:
        """Check batches and give them offsets and a position. `records` must not change until `commit`.

        A client may begin a transaction only with a valid `guard` (`Producers.guards`).

        A plan with a `roll` must be the first of its write, after `prepare_roll` and `commit_roll`. Raises
        LogFailedError, NoRoomError, RecordListTooLargeError, and the ProtocolErrors of
        `protocol.records.validation.check_batches`, of which BatchTooLargeError is for a batch over
        `max.message.bytes`. Raises NeedsReencodingError if the records must go through `reencode` first.
        """
        self._check_service()
        return self._appender.plan(records, self._epochs.current, reencoded=reencoded, origin=origin, guard=guard)

    def plan_marker(self, marker: TransactionMarker) -> PlannedAppend:
        """Give a transaction's marker its offset and position, as `plan` does for batches.

        Raises LogFailedError, NoRoomError, InvalidProducerEpochError, TransactionCoordinatorFencedError.
        """
        self._check_service()
        return self._appender.plan_marker(marker, self._epochs.current)

    def _check_service(self) -> None:
        if self._closed or self._appender.writer.failure is not None:
            raise self._refusal()
        if self.room.is_short and not self.uses_reserve:
            raise self.room.refuse()

    @property
    def keeps_codecs(self) -> bool:
        """Whether batches are stored in the codec in which they come, and never compressed here."""
        return self._appender.rules.codec is None

    def reencode(self, records: Buffer, *, max_decompressed_size: int = DEFAULT_MAX_DECOMPRESSED_SIZE) -> Buffer:
        """Return batches as this log keeps them: decompressed and checked by its rules, in its codec.

        For a worker, unless the size is a small one. Raises the ProtocolErrors of
        `protocol.records.reencode.reencode_batches`.
        """
        return reencode_batches(
            records, self._appender.rules, self._place.clock(), max_decompressed_size=max_decompressed_size
        )

    def write(self, planned: list[PlannedAppend]) -> None:
        """Write plans, in order, to the active segment's file. On the loop if it is little, else for a worker.

        All or nothing: a failure cuts the file back to where it was. Raises OSError; then `abandon` what is planned.
        """
        if self.room.is_short and not self.uses_reserve:  # planned before it was
            raise self.room.full()
        self._appender.write(planned)

    def commit(self, planned: list[PlannedAppend]) -> None:
        """Let what was written be the log: index entries, sizes, log end, high watermark.

        Raises OSError if an index entry could not be written: then the log is as if nothing had been written; `abandon`
        what is planned.
        """
        appender = self._appender
        self._durability.appended_bytes += appender.commit(planned)
        if appender.has_new_names:
            appender.has_new_names = False
            self._durability.names_made()
        self.log_end_offset = end = self._appender.committed.next_offset
        if not self.shows_synced_only:
            self._show(end)

    def _show(self, high_watermark: int) -> None:
        """Let readers see records up to here, and readers of committed records up to the first unstable offset."""
        self.high_watermark = self.last_stable_offset = high_watermark
        producers = self._appender.producers
        if producers.open_transactions or producers.unstable:
            first_unstable = producers.first_unstable_offset(high_watermark)
            if first_unstable is not None:
                self.last_stable_offset = min(high_watermark, max(first_unstable, self.log_start_offset))

    def _end_of_transactions(self) -> int:
        """Return where the oldest open transaction begins; the log end without any."""
        return next(iter(self._appender.producers.open_transactions.values()), self.log_end_offset)

    def abandon(self) -> None:
        """Forget every plan that is not committed."""
        self._appender.abandon()

    def append(self, records: Buffer, *, origin: Origin = Origin.CLIENT, guard: int = 0) -> PlannedAppend:
        """Plan, roll if needed, write and commit in one call. Blocking; for tools and tests.

        Raises what the steps raise.
        """
        try:
            planned = self.plan(records, origin=origin, guard=guard)
        except NeedsReencodingError:
            planned = self.plan(self.reencode(records), reencoded=True, origin=origin, guard=guard)
        return self._append(planned)

    def append_marker(self, marker: TransactionMarker) -> PlannedAppend:
        """Append a transaction's marker, as `append` does with batches."""
        return self._append(self.plan_marker(marker))

    def _append(self, planned: PlannedAppend) -> PlannedAppend:
        try:
            if planned.roll is not None:
                self._roll(self.prepare_roll(planned))
            self.write([planned])
            self.commit([planned])
        except OSError:
            self.abandon()
            raise
        return planned

    def _refusal(self) -> LogFailedError:
        why = "it is closed" if self._closed else self._appender.writer.failure
        return LogFailedError(f"{self.topic}-{self.partition} is out of service: {why}")

    def forget_expired_producers(self, most: int) -> bool:
        """Forget producers that have been idle for `producer.id.expiration.ms`, some at a time; tell if there are more.

        Idle by our clock, and by their records' own times: who copies records of last year is at work.
        """
        limit_ms = self._place.clock() - self.config.producer_id_expiration_ms
        return self.producers.forget_idle(limit_ms, limit_ms, most=most)

    # -- roll ----------------------------------------------------------------------------------------------------------

    def prepare_roll(self, planned: PlannedAppend) -> PreparedRoll:
        """Make the files of the segment that a plan begins. For a worker.

        Raises OSError; then `abandon` what is planned.
        """
        assert planned.new_tail is not None, "the plan rolls"
        return self._appender.prepare_roll(planned.new_tail)

    def commit_roll(self, prepared: PreparedRoll) -> Segment:
        """Let the new segment be the active one; gives the sealed one, for `finish_roll`.

        Raises OSError if the old one's last time could not be written: then there was no roll; `abandon` what is
        planned.
        """
        sealed = self._appender.commit_roll(prepared)
        self._durability.names_made()
        return sealed

    def finish_roll(self, sealed: Segment) -> None:
        """Trim a sealed segment's files to what they hold, and sync them. For a worker. Raises OSError.

        A failed sync puts the log out of service.
        """
        if self._closed:
            return
        self._appender.snapshots.write_taken()
        try:
            sealed.trim()
            self._sync(sealed.sync)
        except FileNotFoundError:
            if not self._closed:  # else the directory was moved away meanwhile, to be deleted
                raise
        sealed.synced = True
        sealed.close_writers()

    def roll(self) -> None:
        """Begin a new segment now, if the active one holds anything. Nothing may be planned. Blocking.

        Raises OSError.
        """
        if self._segments.active.size:
            self.finish_roll(self.commit_early_roll(self.prepare_early_roll()))

    def prepare_early_roll(self) -> PreparedRoll:
        """Make the files of a segment that begins at the log end, which no plan asks for. For a worker. Raises OSError.

        Once no plan is open, `commit_early_roll` or `PreparedRoll.forget`; the log end must not have moved.
        """
        return self._appender.prepare_roll(self._place.new_tail(self.log_end_offset))

    def commit_early_roll(self, prepared: PreparedRoll) -> Segment:
        """As `commit_roll`, with nothing planned: later plans are for the new segment. Raises OSError."""
        sealed = self.commit_roll(prepared)
        self.abandon()
        return sealed

    @property
    def is_roll_near(self) -> bool:
        """Whether the first roll since the log was opened is near: `announce_roll` is due."""
        tail = self._appender.committed
        return tail.size * 2 > tail.segment_bytes and not self._appender.contiguity.is_ready

    def announce_roll(self) -> None:
        """Write down, durably, what the first roll must wait for. For a worker. Raises OSError."""
        self._appender.contiguity.include(self._segments.active.base_offset)

    def request_roll(self) -> None:
        """Have the next append that is planned begin a new segment, whatever its size."""
        self._appender.request_roll()

    def is_untrimmed(self, base_offset: int) -> bool:
        """Tell whether a segment is active, or sealed without `finish_roll` having come to its end."""
        segment = self._segments.get(base_offset)
        return segment is not None and (segment.next_base_offset is None or segment.is_untrimmed)

    def _roll(self, prepared: PreparedRoll) -> None:
        self.finish_roll(self.commit_roll(prepared))

    # -- read ----------------------------------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        isolation_end: int | None = None,
        min_one_message: bool = False,
        with_aborted: bool = False,
    ) -> LogRead:
        """A slice of at most `max_bytes` that begins with the batch that holds `offset`, or the next one after a gap.

        Nothing at or past `isolation_end` (None: the log end) is in it. At or past that bound, or with `max_bytes` 0,
        there is no slice, but a position. `min_one_message`: the first batch is whole, even if it is larger than asked
        for. The slice may end inside a batch. `with_aborted`: also find the aborted transactions of the slice.

        Raises OffsetOutOfRangeError, ValueError for a negative `max_bytes`, IndexCorruptError (see `rebuild_indexes`),
        OSError.
        """
        if self._closed:
            raise self._refusal()
        if max_bytes < 0:
            raise ValueError(f"max_bytes is negative: {max_bytes}")
        log_end = self.log_end_offset
        if not self.log_start_offset <= offset <= log_end:
            raise OffsetOutOfRangeError(offset, self.log_start_offset, log_end)
        bound = None if isolation_end is None or isolation_end >= log_end else isolation_end
        search = self._place.config.index_search
        segments = self._segments
        if offset == log_end:
            return LogRead(None, segments.active.base_offset, segments.active.size)
        found = read_slice(segments, offset, max_bytes, bound=bound, search=search, min_one_message=min_one_message)
        if with_aborted and found.slice is not None:
            aborted = aborted_in(segments, offset, found, log_end)
            if aborted:
                found = found._replace(aborted=aborted)
        return found

    def snapshot(self) -> LogSnapshot:
        """The log as it is now, for who explains the way of a fetch, in a worker. Memory only."""
        return take_snapshot(
            self._segments, self.log_start_offset, self.log_end_offset, self._place.config.index_search
        )

    def has_changed(self, snapshot: LogSnapshot) -> bool:
        """Whether the segments have changed since a snapshot: files may have been removed or renamed."""
        return self.layout is not snapshot.segments

    @property
    def layout(self) -> object:
        """What is another object as soon as a segment comes or goes: a file that is missing while it stays is lost."""
        return self._segments.snapshot

    # -- time ----------------------------------------------------------------------------------------------------------

    def offset_for_time(self, timestamp: int, *, isolation_end: int | None = None) -> TimestampOffset | None:
        """The first record at or past a time (ms), with its own time and leader epoch; None if there is none.

        For a worker; safe beside appends and rolls. Corrupt indexes of sealed segments are rebuilt. Raises OSError,
        ProtocolError for a batch that cannot be opened, and IndexCorruptError for the active segment.
        """
        return self._indexes.run(
            lambda: first_at_or_past(self._time_view(isolation_end), timestamp), self._place.config
        )

    def largest_timestamp(self) -> TimestampOffset | None:
        """The first record that has the largest timestamp; None if none has a time. As `offset_for_time`."""
        return self._indexes.run(lambda: largest(self._time_view(None)), self._place.config)

    def _time_view(self, isolation_end: int | None) -> TimeView:
        end = self.log_end_offset
        return TimeView(
            segments=self._segments.snapshot,
            start_offset=self.log_start_offset,
            end_offset=end if isolation_end is None else min(end, isolation_end),
            search=self._place.config.index_search,
        )

    # -- indexes -------------------------------------------------------------------------------------------------------

    def rebuild_indexes(self, base_offset: int) -> None:
        """Rebuild a sealed segment's indexes from its log, after IndexCorruptError. For a worker. Raises OSError.

        An active segment has to be sealed before.
        """
        self._indexes.rebuild(base_offset, self._place.config)
        with self._indexes.moving:
            segment = self._segments.get(base_offset)
            if segment is not None and segment.may_have_aborted and not self.is_untrimmed(base_offset):
                snapshots = ProducerSnapshots(self._place.disk, self._place.directory)
                snapshots.find()
                rebuild_sealed(snapshots, self._segments.snapshot, self.log_start_offset, segment)

    # -- flush ---------------------------------------------------------------------------------------------------------

    def begin_flush(self) -> FlushPlan:
        """What must be synced for all that is committed now to be durable; then `plan.sync()` in a worker."""
        place, stable = self._place, self._end_of_transactions()
        return self._durability.begin(self._segments, self.log_end_offset, stable, place.directory, place.disk)

    def finish_flush(self, plan: FlushPlan) -> None:
        """A plan was synced: move the recovery point. Where syncing failed, call `fail` instead."""
        self._durability.finish(plan, self._segments.active)
        if self.shows_synced_only and self.recovery_point > self.high_watermark:
            self._show(self.recovery_point)

    def flush(self) -> None:
        """Begin, sync and finish in one call. Blocking; for tools and tests.

        Raises OSError, and the log has failed then.
        """
        plan = self.begin_flush()
        plan.sync()
        self.finish_flush(plan)

    def _sync(self, sync: Callable[[], None]) -> None:
        """Sync; a failure puts the log out of service."""
        self._durability.turns.take(sync)

    # -- reopening -----------------------------------------------------------------------------------------------------

    def begin_reopening(self) -> Reopening:
        """What is to be done to a failed log; `make` in a worker, then `finish_reopening`.

        Nobody may be inside the log, or rearrange its segments meanwhile.
        """
        assert self.failed, "a log in service has nothing in doubt"
        self.abandon()
        bounds = Bounds(self.log_start_offset, self.log_end_offset)
        failed = FailedLog(self._place, self._segments.snapshot, bounds, self.recovery_point, self._appender.snapshots)
        return Reopening(failed, self._indexes.moving)

    def finish_reopening(self, reopened: Reopened) -> None:
        """The log is what was made of it, all of it durable, and in service again.

        Where something was cut, a new leader epoch begins. `reopened.close_replaced` follows.
        """
        end = reopened.tail.next_offset
        self._segments = Segments(reopened.segments)
        self.log_end_offset = end
        producers = self.producers if reopened.producers is None else reopened.producers
        self._appender.restart(self._segments, reopened.tail, producers)
        self._show(end)
        self._durability.reopened(end, self._end_of_transactions())
        if reopened.reason is not None:
            self._epochs.truncate_from_end(end)
            self.raise_leader_epoch()
        self._appender.writer.restore()

    # -- moving --------------------------------------------------------------------------------------------------------

    def begin_move(self, data_directory: str) -> LogMove:
        """Begin to move the log to another data directory; see `moving` for the steps that follow. Memory only."""
        source = MoveSource(self.topic, self.partition, self._place, lambda: self._segments, self._indexes.moving)
        return LogMove(source, data_directory)

    def end_of_move(self) -> MoveEnd:
        """What the last step of a move needs: nothing may be written until `finish_move`, or until that has failed."""
        return MoveEnd(
            log_end_offset=self.log_end_offset,
            producers=self.producers.capture(),
            epochs=self._epochs.entries,
            snapshots=self._appender.snapshots,
        )

    def finish_move(self, moved: MovedLog, room: Room) -> Sequence[Segment]:
        """Let the log be in its new directory, all of it durable; return the old segments, to be closed in a worker.

        `room` is that of the new disk. What is planned stays good: offsets and positions are the same.
        """
        old, active = self._segments, moved.segments.active
        self._place = replace(self._place, directory=moved.directory)
        active.activate(self._place.config, self._appender.committed)
        active.recent = old.active.recent
        self._segments = moved.segments
        for segment in old.snapshot:
            segment.removed = True
        self._appender.relocate(self._place, moved.segments)
        self._durability.reopened(self.log_end_offset, self._end_of_transactions())
        self._epochs.changed = False
        self.room = room
        if self.shows_synced_only:
            self._show(self.log_end_offset)
        return old.snapshot

    # -- start ---------------------------------------------------------------------------------------------------------

    def advance_start(self, offset: int) -> bool:
        """Let the log begin at `offset`, unless it begins there or later already; whether it moved.

        Segments that lie before it stay until `old_segments.take_out`. Raises OffsetOutOfRangeError past the high
        watermark.
        """
        if not 0 <= offset <= self.high_watermark:
            raise OffsetOutOfRangeError(offset, self.log_start_offset, self.high_watermark)
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self._show(self.high_watermark)
        self._epochs.truncate_from_start(offset)
        return True

    def _view(self) -> LogView:
        """Return the log as retention and compaction see it.

        Compaction leaves the records of open transactions alone, and all that a power cut can lose or reopen.
        """
        cleanable_end = min(self.last_stable_offset, self._durability.stable_offset)
        bounds = LogBounds(self.log_start_offset, self.high_watermark, cleanable_end, self.log_end_offset)
        return LogView(bounds, self._segments, self._place, self._appender.contiguity)

    # -- leader epochs -------------------------------------------------------------------------------------------------

    def raise_leader_epoch(self) -> int:
        """Begin a new leader epoch at the log end; gives it."""
        self._epochs.assign(self._epochs.current + 1, self.log_end_offset)
        return self._epochs.current

    def epoch_of(self, offset: int) -> int:
        """The leader epoch in which an offset was or will be written; -1 if that is not known."""
        return self._epochs.epoch_of(offset)

    def end_offset_of_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch not above the one asked for; (-1, -1) if that is not known.

        KIP-279.
        """
        return self._epochs.end_offset(epoch, self.log_end_offset)

    def checkpoint_epochs(self) -> None:
        """Write the leader epochs if they have changed; not synced, batches tell them too. For a worker.

        Raises OSError.
        """
        if self._epochs.changed:
            self._epochs.changed = False  # before the write: what changes meanwhile is for the next one
            try:
                path = f"{self._place.directory}/{LEADER_EPOCHS}"
                write_epochs(self._place.disk, path, self._epochs.entries)
            except FileNotFoundError:
                pass  # the directory was moved away meanwhile, to be deleted
            except OSError:
                self._epochs.changed = True
                raise

    # -- cut and end ---------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Cut every batch with a record at or past `offset`; a new leader epoch begins. Blocking. Raises OSError.

        The log then ends after the last batch left. For a follower whose leader has another history; no append may be
        planned, and no worker may use the log. At or past the log end nothing is cut.

        Below the recovery point, call `lower_recovery_point` and write the checkpoint first: recovery repairs a
        truncation that a crash interrupted, or records appended after it, only past the checkpointed recovery point.
        """
        if offset >= self.log_end_offset:
            return
        self._durability.names_made()
        try:
            self._cut(offset)
        except OSError as error:
            self.fail(error)
            raise
        self._epochs.truncate_from_end(self.log_end_offset)
        self.raise_leader_epoch()
        self.checkpoint_epochs()

    def _cut(self, offset: int) -> None:
        self._segments, tail = cut_segments(self._place, self._segments, offset, self._appender.contiguity)
        end = tail.next_offset
        self.log_end_offset = end
        self.log_start_offset = min(self.log_start_offset, end)
        self._appender.restart(self._segments, tail, self._rebuild_producers())
        self._show(min(self.high_watermark, end))
        self._durability.truncated(end, self._end_of_transactions())
        # Segments, and above all snapshots of producers, must not come back behind new records.
        self._place.disk.sync_directory(self._place.directory)

    def lower_recovery_point(self, offset: int) -> None:
        """Lower the recovery point to the segment that a truncation to this offset is about to cut.

        The log will end where that segment's last whole batch below the offset ends, which is not read here.
        """
        holder = self._segments.floor(offset)
        end = offset if holder is None else holder.base_offset
        self._durability.truncated(end, end)

    def _rebuild_producers(self) -> Producers:
        snapshots = self._appender.snapshots
        snapshots.find()
        bounds = Bounds(self.log_start_offset, self.log_end_offset)
        return self._place.rebuild_producers(snapshots, self._segments.snapshot, bounds)

    def close(self, *, clean: bool = True) -> None:
        """Write the last time entry, sync, trim the indexes and close the files. Blocking, idempotent. Raises OSError.

        With `clean` False, or once the log has failed, files are closed as they are.
        """
        if self._closed:
            return
        try:
            if clean and not self.failed:
                self._settle()
                self.checkpoint_epochs()
        finally:
            self._closed = True
            self.producers.release()
            for segment in self._segments.snapshot:
                segment.close()

    def _settle(self) -> None:
        """Make everything durable and trim all indexes."""
        for segment in self._segments.snapshot:
            if (
                segment.is_untrimmed
            ):  # the broker stops before its `finish_roll` came, or while it runs: twice is no harm
                self.finish_roll(segment)
        active = self._segments.active
        self._appender.write_last_time()
        if self._appender.snapshot_producers():
            self._durability.names_made()
        self.flush()
        active.offset_index.seal()
        active.time_index.seal()
        active.trim()
        self._sync(active.sync)

    def delete(self) -> Path:
        """Close the log and move its directory to a name that marks it as deleted; gives that. Raises OSError.

        Its files are then to be unlinked, at leisure. Who is sending a slice goes on.
        """
        self.close(clean=False)
        source = self.directory
        target = source.with_name(deleted_directory(self.topic, self.partition))
        self._place.disk.rename(str(source), str(target))
        return target

    # -- description ---------------------------------------------------------------------------------------------------

    def describe(self) -> LogDescription:
        """The log and its segments. For a worker: the times of closed segments are read from their indexes.

        Raises OSError.
        """
        end = self.log_end_offset
        return LogDescription(
            topic=self.topic,
            partition=self.partition,
            leader_epoch=self.leader_epoch,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
            log_end_offset=end,
            recovery_point=self.recovery_point,
            size=self.size,
            failure=self.failure,
            segments=self._indexes.run(
                lambda: tuple(describe_segment(segment, end) for segment in self._segments.snapshot), self._place.config
            ),
        )
