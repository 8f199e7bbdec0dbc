"""What was sent to a log, and what may be found of it after a crash.

A power cut may take nothing below what was flushed, and any tail of the rest. `machine` makes the logs.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from warmlog.broker.log.producers.state import ProducerState, advanced
from warmlog.protocol.records.batch import headers, verify_crc
from warmlog.protocol.records.layout import STAMPED_SIZE
from warmlog.protocol.records.reader import decode_batch

ABORT = b"\0\0"  # the type in a marker's key

LogRecord = tuple[int, int, bytes | None, bytes | None, object]  # offset, timestamp (ms), key, value, headers


class Stored(NamedTuple):
    """A batch at its place; `content` is all of it but what the broker stamps. A control batch has its marker."""

    base_offset: int
    last_offset: int
    content: bytes
    records: tuple[LogRecord, ...]
    producer_id: int
    producer_epoch: int
    last_sequence: int
    leader_epoch: int
    is_control: bool
    is_transactional: bool

    @property
    def identity(self) -> tuple[int, bytes]:
        return self.base_offset, self.content


def stored(data: bytes, *, at_offset: int | None = None) -> list[Stored]:
    """The batches in `data`; with `at_offset`, as they will be once they are appended there."""
    return list(_stored(data, at_offset))


@lru_cache(256)  # a check reads each batch several times
def _stored(data: bytes, at_offset: int | None) -> tuple[Stored, ...]:
    found = []
    for position, header in headers(data):
        raw = data[position : position + header.size]
        verify_crc(raw, 0, header)
        shift = 0 if at_offset is None else at_offset - header.base_offset
        if at_offset is not None:
            at_offset += header.last_offset_delta + 1
        decoded = decode_batch(raw, 0, header)
        records = tuple((r.offset + shift, r.timestamp, r.key, r.value, tuple(r.headers)) for r in decoded)
        found.append(
            Stored(
                header.base_offset + shift, header.last_offset + shift, raw[STAMPED_SIZE:], records, header.producer_id,
                header.producer_epoch, advanced(header.base_sequence, header.last_offset_delta), header.leader_epoch,
                header.is_control, header.is_transactional,
            )
        )  # fmt: skip
    return tuple(found)


def aborted_in(batches: Iterable[Stored]) -> dict[int, int]:
    """The offsets of batches whose transaction was aborted, and that of the marker that says so."""
    is_open: dict[int, list[int]] = {}
    aborted: dict[int, int] = {}
    for batch in batches:
        if batch.is_control:
            offsets = is_open.pop(batch.producer_id, []) if batch.records else []
            if any((record[2] or b"")[2:4] == ABORT for record in batch.records):
                aborted |= dict.fromkeys(offsets, batch.last_offset)
        elif batch.is_transactional:
            is_open.setdefault(batch.producer_id, []).append(batch.base_offset)
    return aborted


def open_in(batches: Iterable[Stored]) -> list[int]:
    """The base offset of the first batch of each transaction that has no marker, in order."""
    is_open: dict[int, int] = {}
    for batch in batches:
        if batch.is_control and batch.records:
            is_open.pop(batch.producer_id, None)
        elif batch.is_transactional and not batch.is_control:
            is_open.setdefault(batch.producer_id, batch.base_offset)
    return sorted(is_open.values())


def _sequences(batches: Iterable[Stored]) -> dict[int, int]:
    return {batch.producer_id: batch.last_sequence for batch in batches if not batch.is_control}


START_MS = 1_700_000_000_000


@dataclass(slots=True)
class Ledger:
    """`batches` are in the log now; those below offset `flushed` are on the disk; `start` is where it begins.

    `possible`: what a crash may have us find past that: batches since the last flush, also those that were refused or
    cut off. `aborted`: void batches, with their markers. `stamped`: up to where tombstones and markers may
    have been told their time, `passed`: and where it may be over. `now_ms`: what the clock shows, which goes on while
    the machine is off.
    """

    batches: list[Stored] = field(default_factory=list)
    possible: set[tuple[int, bytes]] = field(default_factory=set)
    flushed: int = 0
    start: int = 0
    asked_start: int = 0  # of a deletion that may not have been finished
    compacted: bool = False
    aborted: dict[int, int] = field(default_factory=dict)
    stamped: int = 0
    passed: int = 0
    now_ms: int = START_MS
    sequences: dict[int, int] = field(default_factory=dict)  # the last one of each producer

    @property
    def end(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else self.start

    def next_sequence(self, producer_id: int) -> int:
        return self.sequences.get(producer_id, -1) + 1

    def may_be(self, batches: list[Stored]) -> None:
        """These are about to be sent."""
        self.possible |= {batch.identity for batch in batches}

    def are(self, batches: list[Stored]) -> None:
        """They were acknowledged."""
        self.batches += batches
        self.sequences |= _sequences(batches)
        if self.compacted and any(batch.is_control for batch in batches):
            self.aborted |= aborted_in(self.batches)

    def were_copied(self, batches: list[Stored]) -> None:
        """They were put there by somebody else, and are on the disk."""
        self.batches = batches
        self.aborted = aborted_in(batches)
        self.was_flushed()

    def was_flushed(self) -> None:
        self.flushed = self.end
        self.possible = {batch.identity for batch in self.batches}

    def was_cut(self, end: int) -> None:
        """Everything from the batch that holds this offset on is gone, but for what a crash brings back."""
        self.batches = [batch for batch in self.batches if batch.last_offset < end]
        self.flushed = min(self.flushed, self.batches[-1].last_offset + 1 if self.batches else 0)
        self.sequences = _sequences(self.batches)

    # -- what was found ------------------------------------------------------------------------------------------------

    def check(self, found: list[Stored], *, start: int, end: int) -> None:
        """Hold what a reader found against what may be found, and take it for what is there from now on."""
        markers = {batch.last_offset for batch in found if batch.is_control}
        lost = [first for first, last in self.aborted.items() if last >= self.flushed and last not in markers]
        for first in lost:
            del self.aborted[first]
        if self.compacted:
            self._check_compacted(found)
        else:
            self._check_all(found, start)
        assert end >= self.flushed, f"the log ends at {end}, but it was flushed up to {self.flushed}"
        assert start in {self.start, self.asked_start}, (start, self.start, self.asked_start)
        assert end >= start, f"the log starts at {start} and ends at {end}: offsets that were deleted would come again"
        self.batches = found
        self.start = self.asked_start = start
        self.flushed = min(self.flushed, self.end)
        self.possible = {batch.identity for batch in found}

    def _check_all(self, found: list[Stored], start: int) -> None:
        for before, after in pairwise(found):
            assert after.base_offset == before.last_offset + 1, (before[:2], after[:2])
        for batch in found:
            assert batch.identity in self.possible, f"batch {batch[:2]} was never sent"
        there = {batch.identity for batch in found}
        for batch in self.batches:
            assert batch.last_offset >= self.flushed or batch.last_offset < start or batch.identity in there, batch[:2]

    def _check_compacted(self, found: list[Stored]) -> None:
        sent = {record[0]: record for batch in self.batches for record in batch.records}
        kept = [record for batch in found for record in batch.records]
        assert [record[0] for record in kept] == sorted({record[0] for record in kept})
        for record in kept:
            if record[0] in sent:
                assert record == sent[record[0]]
            else:
                assert record[0] >= self.flushed, f"a record came back: {record}"
        self._check_last_values({record[0] for record in kept})
        offsets = {record[0] for record in kept}
        end = found[-1].last_offset + 1 if found else 0
        holes = [offset for offset in sent if self.flushed <= offset < end and offset not in offsets]
        assert not holes, holes

    def _check_last_values(self, offsets: set[int]) -> None:
        """Of each key the last value is among these offsets; or, where that was deleted long ago, none is."""
        valid = [each for each in self.batches if not each.is_control and each.base_offset not in self.aborted]
        records = [record for batch in valid for record in batch.records if record[0] < self.flushed]
        last = {record[2]: record for record in records}
        for key, (offset, _, _, value, _) in last.items():
            if value is None and offset < self.passed:
                back = [record for record in records if record[2] == key and record[0] in offsets - {offset}]
                assert offset in offsets or not back, f"{key!r} was deleted at {offset}, and is back: {back}"
            else:
                assert offset in offsets, f"the last value of {key!r}, at {offset}, is missing"

    def check_producers(self, states: Iterable[ProducerState]) -> None:
        """The producers' states are those that the batches tell.

        Of a producer whose batches have gone by retention nothing need be known, and what is known is taken.
        """
        self.sequences = {state.producer_id: state.last_sequence for state in states}
        known = {state.producer_id: (state.last_sequence, state.last_offset) for state in states}
        expected: dict[int, tuple[int, int]] = {}
        epochs: dict[int, int] = {}
        for batch in self.batches:
            if batch.producer_id < 0 or (batch.is_control and not batch.records):
                continue
            if not batch.is_control:
                expected[batch.producer_id] = batch.last_sequence, batch.last_offset
            elif epochs.get(batch.producer_id, batch.producer_epoch) != batch.producer_epoch:  # it fenced who wrote
                expected[batch.producer_id] = -1, -1
            epochs[batch.producer_id] = batch.producer_epoch
        assert {each: known.get(each) for each in expected} == expected, (known, expected)
