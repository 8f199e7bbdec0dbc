"""Append batches at the end of the active segment, and roll to a new one.

    plan      validate, assign offsets and position, decide on a roll    memory only; plans queue
    write     one write to the log file                                  on the event loop if small, else in a worker
    commit    index entries, sizes                                       memory, and at most two small pwrites

A plan that rolls must be the first of its write. Before that write, `prepare_roll` creates the files in a worker and
`commit_roll` makes the new segment active; afterwards a worker trims and syncs the old one's files (`LogRolls.finish`).

Invariants:
1. `committed` describes the content of the files; `_planned` adds every plan that is neither committed nor abandoned.
2. When a step fails, the files are as they were before it, and all plans are void.

Source: org.apache.kafka.storage.internals.log.LogSegment.append, kafka.log.LocalLog.roll.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from warmlog.broker.log.appends.active_writer import ActiveWriter
from warmlog.broker.log.appends.planned import (
    Buffer,
    PlannedAppend,
    duplicate_of,
    extents,
    extents_after,
    stamped,
    whole,
)
from warmlog.broker.log.errors import RecordListTooLargeError
from warmlog.broker.log.index.mapped import MAX_RELATIVE_OFFSET
from warmlog.broker.log.index.transaction import AbortedTransaction
from warmlog.broker.log.io.shared_writes import FileWrite, SharedWrites
from warmlog.broker.log.log_state import LogState
from warmlog.broker.log.producers.copies import LargestTimestamps, check_copies, effects_of
from warmlog.broker.log.producers.snapshot import ProducerSnapshots
from warmlog.broker.log.producers.state import NO_OFFSET, ProducerBatch, ProducerState
from warmlog.broker.log.producers.table import Producers
from warmlog.broker.log.producers.transactions import Effects, Origin, ProducerStep, TransactionMarker
from warmlog.broker.log.recovery.contiguity import Contiguity
from warmlog.broker.log.segments.segment import Segment
from warmlog.broker.log.segments.tail import BatchExtent, Tail, joined
from warmlog.protocol.records.batch import read_header
from warmlog.protocol.records.layout import NO_TIMESTAMP, BatchHeader
from warmlog.protocol.records.markers import EndMarker, Outcome, marker_batch
from warmlog.protocol.records.validation import CheckedBatches, check_and_stamp, check_batches, with_append_time

_CLIENT: Final = Origin.CLIENT  # bound once: reading an enum's member takes longer than the comparison


class PreparedRoll(NamedTuple):
    """A new segment whose files exist, and the end of the log once it is active."""

    segment: Segment
    tail: Tail

    def forget(self) -> None:
        """Remove the files of an abandoned roll. For a worker. Raises OSError."""
        self.segment.remove_files()


def _extent_of(header: BatchHeader) -> BatchExtent:
    return BatchExtent(header.last_offset, header.max_timestamp, header.size)


class Appender:
    """Plans, writes and commits appends to one log. Event loop only, except `write` and `prepare_roll`."""

    __slots__ = (
        "_clock",
        "_planned",
        "_state",
        "committed",
        "contiguity",
        "has_new_names",
        "rules",
        "snapshots",
        "writer",
    )

    def __init__(self, state: LogState, tail: Tail, contiguity: Contiguity) -> None:
        """Append after `tail`, the end of the log's segments."""
        context = state.context
        self._state = state
        self._clock = context.clock
        self.contiguity = contiguity
        self.snapshots = ProducerSnapshots(context.disk, context.directory)
        self.rules = context.config.batch_rules
        self.writer = ActiveWriter(state)
        self.has_new_names = False  # a commit has created a transaction index
        self.restart(tail, state.producers)

    def restart(self, tail: Tail, producers: Producers) -> None:
        """Continue from a new end of the log's segments, after a truncation or a rebuild."""
        state = self._state
        if producers is not state.producers:
            producers.unstable = state.producers.unstable.cut(tail.next_offset)
            state.producers.release()
            state.producers = producers
        self.committed = tail
        tail.configure(state.context.config)  # settings may have changed since it was created
        self._planned: Tail = tail.copy()

    def reconfigure(self) -> None:
        """Apply the log's new settings, starting with the next plan."""
        config = self._state.context.config
        self.rules = config.batch_rules
        self.committed.configure(config)
        self._planned.configure(config)
        self._state.segments.active.reconfigure(config)

    def relocate(self) -> None:
        """Continue in the log's new directory with the same content; plans remain valid."""
        context = self._state.context
        self.snapshots = ProducerSnapshots(context.disk, context.directory)
        self.contiguity = Contiguity(context.disk, context.directory)

    def plan(
        self,
        records: Buffer,
        leader_epoch: int,
        *,
        reencoded: bool = False,
        origin: Origin = Origin.CLIENT,
        guard: int = 0,
    ) -> PlannedAppend:
        """Validate batches and assign offsets and a position. `reencoded`: they are the result of `reencode_batches`.

        `guard` allows them to begin a transaction. Raises RecordListTooLargeError, ProtocolError;
        NeedsReencodingError unless `reencoded`; and the errors of `Producers.plan`.
        """
        rules, tail = self.rules, self._planned
        now_ms = self._clock()
        view = memoryview(records) if isinstance(records, (bytes, bytearray)) else records
        base_offset, size, is_client = tail.next_offset, len(view), origin is _CLIENT
        fits = size <= tail.segment_bytes
        accepted = check_and_stamp(view, rules, now_ms, base_offset, leader_epoch) if fits else None
        if accepted is not None:
            buffers, last_offset, largest, header = accepted
            batch = BatchExtent(last_offset, largest, size)
            if header is None:
                return self._placed(buffers, (batch,), now_ms, leader_epoch, base_offset=base_offset)
            duplicate = self._state.producers.find_duplicate(header) if is_client else None
            if duplicate is not None:
                return duplicate_of((duplicate,), position=tail.size, leader_epoch=leader_epoch, append_time=False)
            states = self._state.producers.plan_one(header, last_offset, largest, origin=origin, guard=guard)
            return self._placed(buffers, (batch,), now_ms, leader_epoch, base_offset=base_offset, producers=states)
        checked = check_batches(view, rules, now_ms, reencoded=reencoded, needs_sequences=is_client)
        if not fits:
            message = f"{size} bytes of batches exceed segment.bytes ({tail.segment_bytes})"
            raise RecordListTooLargeError(message)
        producers: tuple[ProducerState, ...] = ()
        known: Sequence[ProducerBatch] = ()
        is_idempotent = checked[0][1].producer_id >= 0 or len(checked) > 1
        if is_idempotent and is_client:
            known = self._state.producers.find_duplicates(checked)
            if len(known) == len(checked):
                return duplicate_of(known, position=tail.size, leader_epoch=leader_epoch, append_time=rules.append_time)
        if known:
            batches = extents_after(known, checked, base_offset)
            checked = checked[len(known) :]
        else:
            batches = extents(checked, base_offset)
        if is_idempotent:
            producers = self._state.producers.plan(checked, batches, origin=origin, guard=guard)
        return self._placed(
            stamped(view, checked, base_offset, leader_epoch),
            batches,
            now_ms,
            leader_epoch,
            base_offset=known[0].base_offset if known else base_offset,
            producers=producers,
        )

    def plan_marker(self, marker: TransactionMarker, leader_epoch: int) -> PlannedAppend:
        """Assign an offset and a position to a marker's control batch. Raises the errors of `Producers.plan_marker`."""
        now_ms, base_offset = self._clock(), self._planned.next_offset
        end = EndMarker(marker.outcome, marker.coordinator_epoch, now_ms)
        batch = marker_batch(marker.producer_id, marker.producer_epoch, end)
        header = read_header(batch)
        if self.rules.append_time:
            header = with_append_time(header, now_ms)
        checked = [(0, header)]
        state = self._state.producers.plan_marker(marker, now_ms)
        return self._placed(
            stamped(memoryview(batch), checked, base_offset, leader_epoch),
            extents(checked, base_offset),
            now_ms,
            leader_epoch,
            base_offset=base_offset,
            effects=Effects((ProducerStep(state, marker.outcome, base_offset),)),
        )

    def plan_copy(
        self, records: Buffer, leader_epoch: int | None, timestamps: LargestTimestamps | None
    ) -> list[PlannedAppend]:
        """Check copied batches and give each a position; a plan has the batches that fit in one segment.

        Raises the errors of `copies.check_copies`; CorruptBatchError for a control batch that cannot be decoded.
        """
        view = records if isinstance(records, memoryview) else memoryview(records)
        checked = check_copies(view, self._planned.next_offset, leader_epoch, timestamps)
        effects = effects_of(self._state.producers, view, checked, self._state.epochs.latest)
        plans: list[PlannedAppend] = []
        begin = 0
        while begin < len(checked):
            plan, begin = self._place_copies(view, checked, effects, begin)
            plans.append(plan)
        return plans

    def _place_copies(
        self, view: memoryview, checked: CheckedBatches, effects: list[tuple[ProducerStep | None, int]], begin: int
    ) -> tuple[PlannedAppend, int]:
        """Plan as many copied batches from `begin` on as fit into one segment; return the plan and the next index.

        A segment begins where the log ends, unless the first batch is too far from there.
        """
        now_ms = self._clock()
        first = checked[begin][1]
        roll, new_tail = self._planned.roll_reason(_extent_of(first), now_ms), None
        if roll is not None:
            base = self._planned.next_offset
            if first.last_offset - base > MAX_RELATIVE_OFFSET:
                base = first.base_offset
            new_tail = self._state.context.new_tail(base)
            self._planned = new_tail.copy()
        tail = self._planned
        position = tail.size
        batches: list[BatchExtent] = []
        number = begin
        while number < len(checked):
            extent = _extent_of(checked[number][1])
            if batches and tail.roll_reason(extent, now_ms) is not None:
                break
            batches.append(extent)
            tail.add(extent)
            number += 1
        last_position, last = checked[number - 1]
        taken = effects[begin:number]
        epochs = [(epoch, checked[begin + i][1].base_offset) for i, (_, epoch) in enumerate(taken) if epoch >= 0]
        plan = PlannedAppend(
            base_offset=first.base_offset,
            last_offset=last.last_offset,
            max_timestamp=max(batch.max_timestamp for batch in batches),
            log_append_time=NO_TIMESTAMP,
            size=tail.size - position,
            position=position,
            leader_epoch=last.leader_epoch,
            roll=roll,
            new_tail=new_tail,
            buffers=(view[checked[begin][0] : last_position + last.size],),
            batches=tuple(batches),
            effects=Effects([step for step, _ in taken if step is not None], epochs),
        )
        return plan, number

    def _placed(
        self,
        buffers: tuple[Buffer, ...],
        batches: tuple[BatchExtent, ...],
        now_ms: int,
        leader_epoch: int,
        *,
        base_offset: int,
        producers: tuple[ProducerState, ...] = (),
        effects: Effects | None = None,
    ) -> PlannedAppend:
        """Plan validated batches after all earlier plans, in a new segment if a roll is due."""
        tail = self._planned
        extent = whole(batches)
        new_tail = None
        roll = tail.roll_reason(extent, now_ms)
        if roll is not None:
            new_tail = self._state.context.new_tail(tail.next_offset)
            tail = self._planned = new_tail.copy()
        position = tail.size
        for batch in batches:
            tail.add(batch)
        return PlannedAppend(
            base_offset=base_offset,
            last_offset=extent.last_offset,
            max_timestamp=extent.max_timestamp,
            log_append_time=now_ms if self.rules.append_time else NO_TIMESTAMP,
            size=extent.size,
            position=position,
            leader_epoch=leader_epoch,
            roll=roll,
            new_tail=new_tail,
            buffers=buffers,
            batches=batches,
            producers=producers,
            effects=effects,
        )

    def begin_write(self, planned: list[PlannedAppend], writes: SharedWrites) -> FileWrite:
        """Begin to write all plans, in order, to the active segment's file. Raises OSError."""
        first, active = planned[0], self._state.segments.active
        assert first.position == active.size, "writes follow the order of plans"
        buffers = first.buffers
        if len(planned) > 1:
            buffers = tuple([buffer for each in planned for buffer in each.buffers])
        return writes.begin(active.append_descriptor(), buffers, first.position)

    def end_write(self, write: FileWrite, writes: SharedWrites) -> None:
        """Wait until all plans are written. Raises OSError, and then the file is as it was before."""
        self.writer.end_write(self._state.segments.active, writes, write)

    def commit(self, planned: list[PlannedAppend]) -> int:
        """Commit written plans; return the bytes added. Raises OSError, after the write was undone."""
        active = self._state.segments.active
        assert planned[0].position == active.size, "commits follow the order of plans"
        added = [batch.entries for each in planned for batch in each.batches if batch.entries is not None]
        aborted = self._aborted_by(planned)
        if added or aborted:
            self.has_new_names |= self.writer.write_entries(active, joined(added), aborted)
        if aborted:
            self._state.segments.forget_aborted()
        tail, recent = self.committed, active.recent
        for each in planned:
            for batch in each.batches:
                recent.add(batch.last_offset, tail.size, indexed=batch.entries is not None)
                tail.repeat(batch)  # as planned, even if settings have changed since then
            if each.effects is not None:
                self._take_effects(each.effects)
            elif each.producers:
                self._state.producers.commit(each.producers)
        grown = tail.size - active.size
        active.size = tail.size
        return grown

    def _take_effects(self, effects: Effects) -> None:
        for state, outcome, offset in effects.steps:
            if outcome is None:
                self._state.producers.commit((state,))
            else:
                self._state.producers.commit_marker(state, offset)
        for epoch, first_offset in effects.epochs:
            self._state.epochs.assign(epoch, first_offset)

    def _aborted_by(self, planned: list[PlannedAppend]) -> Sequence[AbortedTransaction]:
        """Return the transaction index entries of the transactions that these appends abort."""
        for each in planned:
            if each.effects is not None:
                break
        else:
            return ()
        aborted: list[AbortedTransaction] = []
        opened = dict(self._state.producers.open_transactions)  # ordered by first offset
        for each in planned:
            steps: Iterable[ProducerStep] = (ProducerStep(state, None, NO_OFFSET) for state in each.producers)
            for state, outcome, offset in steps if each.effects is None else each.effects.steps:
                producer_id = state.producer_id
                if state.transaction_first_offset >= 0:
                    opened.setdefault(producer_id, state.transaction_first_offset)
                    continue
                first_offset = opened.pop(producer_id, NO_OFFSET)
                if outcome is Outcome.ABORT and first_offset >= 0:
                    stable = next(iter(opened.values()), offset + 1)
                    aborted.append(AbortedTransaction(producer_id, first_offset, offset, stable))
        return aborted

    def request_roll(self) -> None:
        """Make the next plan begin a new segment, unless a queued one already does."""
        self.committed.must_roll = True
        if self._planned.base_offset == self.committed.base_offset:
            self._planned.must_roll = True

    def abandon(self) -> None:
        """Drop every plan that is not committed."""
        self._planned = self.committed.copy()
        self._state.producers.abandon()

    def snapshot_producers(self) -> bool:
        """Write a snapshot of the producer states at the log end; return whether one was written. Raises OSError.

        Used on close. Synced if there are producers, because to startup a missing snapshot means that there are none.
        """
        end = self.committed.next_offset
        if not end or self.snapshots.has(end):
            return False
        producers = self._state.producers.capture()
        self.snapshots.write(end, producers, sync=len(producers) > 0)
        return True

    # -- roll ----------------------------------------------------------------------------------------------------------

    def prepare_roll(self, tail: Tail) -> PreparedRoll:
        """Create the files of the segment that begins at the empty `tail`. For a worker. Raises OSError."""
        context = self._state.context
        self.contiguity.include(self._state.segments.active.base_offset)
        if tail.base_offset > self.committed.next_offset:  # the batches before this gap are synced
            self.contiguity.exclude(tail.base_offset)
        return PreparedRoll(Segment.create(context.files, context.directory, tail, context.config), tail)

    def commit_roll(self, prepared: PreparedRoll) -> Segment:
        """Make the new segment active; return the old one, sealed. Raises OSError, and then nothing has rolled."""
        sealed = self._state.segments.active
        try:
            self.write_last_time()
        except OSError:
            prepared.segment.remove_files()
            raise
        sealed.seal(prepared.segment.base_offset)
        self._state.segments.add(prepared.segment)
        self.committed = prepared.tail
        self.committed.configure(self._state.context.config)  # settings may have changed since it was planned
        prepared.segment.reconfigure(self._state.context.config)
        self.snapshots.take(prepared.segment.base_offset, self._state.producers.capture())
        return sealed

    def write_last_time(self) -> None:
        """Add the active segment's largest timestamp to its time index. Raises OSError, and then nothing is added."""
        active, tail = self._state.segments.active, self.committed.copy()
        entry = tail.last_time_entry()
        if entry:
            active.time_index.append_encoded(entry)
            self.committed = active.tail = tail
