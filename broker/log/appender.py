"""Appending: batches are planned, written, committed at the end of the active segment, and a new segment is begun.

Owns: what is committed at a log's end and what is planned on top of it. Must not know readers, syncs, or where the log
ends for users (`partition_log`).

    plan      checks, offsets, position, roll?          memory only; plans queue, each on top of the one before
    write     one write to the log file                 on the loop if it is little, else in a worker
    commit    index entries, sizes                      memory, and at most two small pwrites

A plan that rolls begins a new write. Before that: `prepare_roll` (a worker makes the files), `commit_roll` (the new
segment is the active one), and `finish_roll` at leisure (a worker trims and syncs the old one's files).

Invariants:
1. `committed` is what the files hold; `planned` is `committed` plus every plan that is neither committed nor abandoned.
2. When a step fails, the files are as if it had not been begun, and all plans are void.

Source: org.apache.kafka.storage.internals.log.LogSegment.append, kafka.log.LocalLog.roll.
"""

from collections.abc import Sequence
from typing import NamedTuple

from broker.log.active_writer import ActiveWriter
from broker.log.append import (
    BatchExtent,
    Buffer,
    PlannedAppend,
    Tail,
    duplicate_of,
    extents,
    extents_after,
    joined,
    stamped,
    whole,
)
from broker.log.errors import RecordListTooLargeError
from broker.log.index.transaction import AbortedTransaction
from broker.log.producers.snapshot import ProducerSnapshots
from broker.log.producers.state import NO_OFFSET, ProducerBatch, ProducerState
from broker.log.producers.table import Producers
from broker.log.producers.transactions import Origin, TransactionMarker
from broker.log.recovery.contiguity import Contiguity
from broker.log.recovery.place import LogPlace
from broker.log.segment import Segment
from broker.log.segments import Segments
from protocol.records.batch import read_header
from protocol.records.layout import NO_TIMESTAMP
from protocol.records.markers import EndMarker, Outcome, marker_batch
from protocol.records.validation import check_batches, with_append_time


class PreparedRoll(NamedTuple):
    """A new segment whose files are made, and the end of the log once it is the active one."""

    segment: Segment
    tail: Tail

    def forget(self) -> None:
        """Remove the files again: there is no roll after all. For a worker. Raises OSError."""
        self.segment.remove_files()


class Appender:
    """The end of one log. Belongs to the loop, but for `write` and `prepare_roll`, which may run in a worker."""

    __slots__ = (
        "_planned",
        "_segments",
        "committed",
        "contiguity",
        "has_new_names",
        "place",
        "producers",
        "rules",
        "snapshots",
        "writer",
    )

    def __init__(
        self, place: LogPlace, segments: Segments, tail: Tail, producers: Producers, contiguity: Contiguity
    ) -> None:
        """At the end `tail` of these segments, with the idempotent producers of what is there."""
        self.place = place
        self.contiguity = contiguity
        self.snapshots = ProducerSnapshots(place.disk, place.directory)
        self.rules = place.config.batch_rules
        self.writer = ActiveWriter()
        self.has_new_names = False  # a commit has created a transaction index
        self.producers = producers
        self.restart(segments, tail, producers)

    def restart(self, segments: Segments, tail: Tail, producers: Producers) -> None:
        """The log's end was moved: go on from there."""
        self._segments = segments
        if producers is not self.producers:
            producers.unstable = self.producers.unstable.cut(tail.next_offset)
            self.producers.release()
            self.producers = producers
        self.committed = tail
        tail.configure(self.place.config)  # it was made by those of its time
        self._planned: Tail = tail.copy()

    def reconfigure(self, place: LogPlace) -> None:
        """Take new settings; they hold from the next plan on."""
        self.place, config = place, place.config
        self.rules = config.batch_rules
        self.committed.configure(config)
        self._planned.configure(config)
        self._segments.active.reconfigure(config)

    def relocate(self, place: LogPlace, segments: Segments) -> None:
        """Go on in another directory, with the same content: plans stay good."""
        self.place = place
        self._segments = segments
        self.snapshots = ProducerSnapshots(place.disk, place.directory)
        self.contiguity = Contiguity(place.disk, place.directory)

    def plan(
        self,
        records: Buffer,
        leader_epoch: int,
        *,
        reencoded: bool = False,
        origin: Origin = Origin.CLIENT,
        guard: int = 0,
    ) -> PlannedAppend:
        """Check batches and give them offsets and a position. `reencoded`: they are the result of `reencode_batches`.

        `guard` allows a client to begin a transaction. Raises RecordListTooLargeError, ProtocolError;
        NeedsReencodingError unless `reencoded`; and what `Producers.plan` raises.
        """
        rules, tail = self.rules, self._planned
        now_ms = self.place.clock()
        view = records if isinstance(records, memoryview) else memoryview(records)
        checked = check_batches(view, rules, now_ms, reencoded=reencoded)
        if len(view) > tail.segment_bytes:
            message = f"{len(view)} bytes of batches, more than a segment of {tail.segment_bytes}"
            raise RecordListTooLargeError(message)
        base_offset = tail.next_offset
        producers: Sequence[ProducerState] = ()
        known: Sequence[ProducerBatch] = ()
        is_idempotent = checked[0][1].producer_id >= 0 or len(checked) > 1
        if is_idempotent and origin is Origin.CLIENT:
            known = self.producers.find_duplicates(checked)
            if len(known) == len(checked):
                return duplicate_of(known, position=tail.size, leader_epoch=leader_epoch, append_time=rules.append_time)
        if known:
            batches = extents_after(known, checked, base_offset)
            checked = checked[len(known) :]
        else:
            batches = extents(checked, base_offset)
        if is_idempotent:
            producers = self.producers.plan(checked, batches, origin=origin, guard=guard)
        return self._placed(
            stamped(view, checked, base_offset, leader_epoch),
            batches,
            now_ms,
            leader_epoch,
            base_offset=known[0].base_offset if known else base_offset,
            producers=producers,
        )

    def plan_marker(self, marker: TransactionMarker, leader_epoch: int) -> PlannedAppend:
        """Give the control batch of a marker its offset and position. Raises what `Producers.plan_marker` raises."""
        now_ms, base_offset = self.place.clock(), self._planned.next_offset
        end = EndMarker(marker.outcome, marker.coordinator_epoch, now_ms)
        batch = marker_batch(marker.producer_id, marker.producer_epoch, end)
        header = read_header(batch)
        if self.rules.append_time:
            header = with_append_time(header, now_ms)
        checked = [(0, header)]
        state = self.producers.plan_marker(marker, now_ms)
        return self._placed(
            stamped(memoryview(batch), checked, base_offset, leader_epoch),
            extents(checked, base_offset),
            now_ms,
            leader_epoch,
            base_offset=base_offset,
            producers=(state,),
            outcome=marker.outcome,
        )

    def _placed(
        self,
        buffers: list[Buffer],
        batches: list[BatchExtent],
        now_ms: int,
        leader_epoch: int,
        *,
        base_offset: int,
        producers: Sequence[ProducerState],
        outcome: Outcome | None = None,
    ) -> PlannedAppend:
        """Put checked batches at the end of what is planned, in a new segment where the rules ask for one."""
        tail = self._planned
        extent = whole(batches)
        new_tail = None
        roll = tail.roll_reason(extent, now_ms)
        if roll is not None:
            new_tail = self.place.new_tail(tail.next_offset)
            tail = self._planned = new_tail.copy()
        return PlannedAppend(
            base_offset=base_offset,
            last_offset=extent.last_offset,
            max_timestamp=extent.max_timestamp,
            log_append_time=now_ms if self.rules.append_time else NO_TIMESTAMP,
            size=extent.size,
            position=tail.size,
            leader_epoch=leader_epoch,
            roll=roll,
            new_tail=new_tail,
            buffers=buffers,
            batches=batches,
            entries=tail.add_all(batches),  # after `position`: it moves the tail
            producers=producers,
            outcome=outcome,
        )

    def write(self, planned: list[PlannedAppend]) -> None:
        """Write plans, in order, to the active segment's file: all or nothing. Raises OSError."""
        first, active = planned[0], self._segments.active
        assert first.position == active.size, "writes follow the order of plans"
        buffers = first.buffers if len(planned) == 1 else [buffer for each in planned for buffer in each.buffers]
        self.writer.write_batches(active, buffers, first.position)

    def commit(self, planned: list[PlannedAppend]) -> int:
        """Let what was written be the log; gives the bytes it grew by. Raises OSError: then nothing was written."""
        active = self._segments.active
        assert planned[0].position == active.size, "commits follow the order of plans"
        added = [entries for each in planned for entries in each.entries if entries is not None]
        aborted = self._aborted_by(planned)
        if added or aborted:
            self.has_new_names |= self.writer.write_entries(active, joined(added), aborted)
        if aborted:
            self._segments.forget_aborted()
        tail = self.committed
        for each in planned:
            for number, batch in enumerate(each.batches):
                entries = each.entries[number]
                active.remember(batch.last_offset, tail.size, indexed=entries is not None)
                tail.repeat(batch, entries)  # as planned: settings may have changed since
            if each.outcome is not None:
                self.producers.commit_marker(each.producers[0], each.last_offset)
            elif each.producers:
                self.producers.commit(each.producers)
        grown = tail.size - active.size
        active.size = tail.size
        return grown

    def _aborted_by(self, planned: list[PlannedAppend]) -> list[AbortedTransaction]:
        """Return the transactions that these appends abort, as the transaction index keeps them."""
        found: list[AbortedTransaction] = []
        if not any(each.outcome is Outcome.ABORT for each in planned):
            return found
        opened = dict(self.producers.open_transactions)  # ordered by first offset
        for each in planned:
            for state in each.producers:
                producer_id = state.producer_id
                if state.transaction_first_offset >= 0:
                    opened.setdefault(producer_id, state.transaction_first_offset)
                    continue
                first_offset = opened.pop(producer_id, NO_OFFSET)
                if each.outcome is Outcome.ABORT and first_offset >= 0:
                    stable = next(iter(opened.values()), each.last_offset + 1)
                    found.append(AbortedTransaction(producer_id, first_offset, each.last_offset, stable))
        return found

    def request_roll(self) -> None:
        """Have the next plan begin a new segment, unless one that is planned already does."""
        self.committed.must_roll = True
        if self._planned.base_offset == self.committed.base_offset:
            self._planned.must_roll = True

    def abandon(self) -> None:
        """Forget every plan that is not committed."""
        self._planned = self.committed.copy()
        self.producers.abandon()

    def snapshot_producers(self) -> bool:
        """Keep the producers' states as they are at the log's end; whether there was anything new. Raises OSError.

        For a log that is closed. Synced if there are any: a start that finds no snapshot takes it that there are none.
        """
        end = self.committed.next_offset
        if not end or self.snapshots.has(end):
            return False
        producers = self.producers.capture()
        self.snapshots.write(end, producers, sync=len(producers) > 0)
        return True

    # -- roll ----------------------------------------------------------------------------------------------------------

    def prepare_roll(self, tail: Tail) -> PreparedRoll:
        """Make the files of the segment that begins at an empty `tail`. For a worker. Raises OSError."""
        place = self.place
        self.contiguity.include(self._segments.active.base_offset)
        return PreparedRoll(Segment.create(place.files, place.directory, tail, place.config), tail)

    def commit_roll(self, prepared: PreparedRoll) -> Segment:
        """Let the new segment be the active one; gives the old one, sealed. Raises OSError: then there was no roll."""
        sealed = self._segments.active
        try:
            self.write_last_time()
        except OSError:
            prepared.segment.remove_files()
            raise
        sealed.seal(prepared.segment.base_offset)
        self._segments.add(prepared.segment)
        self.committed = prepared.tail
        self.committed.configure(self.place.config)  # settings may have changed since it was planned
        prepared.segment.reconfigure(self.place.config)
        self.snapshots.take(prepared.segment.base_offset, self.producers.capture())
        return sealed

    def write_last_time(self) -> None:
        """Let the active segment's time index say its largest timestamp. Raises OSError: then it does not."""
        active, tail = self._segments.active, self.committed.copy()
        entry = tail.last_time_entry()
        if entry:
            active.time_index.append_encoded(entry)
            self.committed = active.tail = tail
