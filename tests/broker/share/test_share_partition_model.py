"""Any sequence of fetches, acknowledgements, failures, restarts and time: a share-partition and a dict of records.

The model says what may happen to a record. What is acquired is the share-partition's choice, within these rules: a
record is held by one member at most, a final one is never acquired again, deliveries never decrease, and after a
restart everything is as it was stored.
"""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import pytest

from tests.broker.share.partition_driver import Group
from warmlog.broker.share.partitions.acquiring import ReadBatch
from warmlog.broker.share.partitions.spans import RecordState
from warmlog.broker.share.partitions.state import AcknowledgeError, SharePartition
from warmlog.broker.share.partitions.transitions import Transition
from warmlog.protocol.kafka.messages.share.fetch import ACCEPT, GAP, REJECT, RELEASE, RENEW, AcknowledgedRange
from warmlog.protocol.kafka.messages.share.state import StateBatch

MEMBERS = ("a", "b", "c")
MAX_DELIVERIES = 4
LOCK_S = 30.0
LOCKS = 40
AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = RecordState
RESULT = {ACCEPT: ACKNOWLEDGED, REJECT: ARCHIVING, GAP: ARCHIVED}


class Record(NamedTuple):
    state: RecordState = AVAILABLE
    deliveries: int = 0
    member: str = ""
    deadline: float = 0.0

    def released(self) -> "Record":
        state = AVAILABLE if self.deliveries < MAX_DELIVERIES else ARCHIVING
        return Record(state, self.deliveries)


class Walk:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.group = Group(max_deliveries=MAX_DELIVERIES, max_locks=LOCKS, lock_s=LOCK_S, dead_letters=True)
        self.records: dict[int, Record] = {}
        self.stored: dict[int, Record] = {}
        self.stored_start = 0
        self.log_end = 0

    def append(self) -> None:
        size = self.random.randint(1, 8)
        self.group.log.append(ReadBatch(self.log_end, self.log_end + size - 1))
        self.records |= {offset: Record() for offset in range(self.log_end, self.log_end + size)}
        self.log_end += size

    def fetch(self) -> None:
        random = self.random
        member, most, unit, exact = (
            random.choice(MEMBERS), random.randint(1, 20), random.randint(1, 10), random.random() < 0.3,
        )  # fmt: skip
        acquired = self.group.fetch(member, most, batch_size=unit, is_exact=exact)
        count = 0
        for first, last, deliveries in acquired:
            for offset in range(first, last + 1):
                record = self.records[offset]
                assert record.state is AVAILABLE, f"{offset} is {record}"
                assert deliveries == record.deliveries + 1 <= MAX_DELIVERIES
                self.records[offset] = Record(ACQUIRED, deliveries, member, self.group.now + LOCK_S)
                count += 1
        assert count <= most or not exact

    def acknowledge(self) -> None:
        random, partition = self.random, self.group.partition
        if partition.next_offset == 0:
            return
        member, first, last = self.some_offsets()
        likely = random.choice(range(5))
        kinds = tuple([likely if random.random() < 0.7 else random.choice(range(5)) for _ in range(first, last + 1)])
        named = [(first + i, kind) for i, kind in enumerate(kinds) if first + i >= partition.start_offset]
        held = [self.is_held(offset, member) for offset, _ in named]
        transition = Transition()
        asked = [AcknowledgedRange(first_offset=first, last_offset=last, types=kinds)]
        try:
            for _ in partition.acknowledge(member, asked, self.group.now, transition):
                pass
        except AcknowledgeError:
            assert not all(held) or not held
            self.renew(named[: held.index(False)] if held else [])
            return
        assert all(held)
        self.renew(named)
        is_stored = random.random() < 0.8
        if is_stored:
            self.store(transition.changes)
            for offset, kind in named:
                record = self.records[offset]
                if kind == RELEASE:
                    self.records[offset] = record.released()
                elif kind != RENEW:
                    self.records[offset] = Record(RESULT[kind], record.deliveries)
        partition.complete(transition, self.group.now, is_stored=is_stored)

    def some_offsets(self) -> tuple[str, int, int]:
        """Return a member and offsets, mostly such as it holds."""
        random, partition = self.random, self.group.partition
        held = [offset for offset, record in self.records.items() if record.state is ACQUIRED]
        if held and random.random() < 0.9:
            first = last = random.choice(held)
            member = self.records[first].member
            while random.random() < 0.8 and self.is_held(last + 1, member):
                last += 1
            return member, first, last
        first = random.randint(max(0, partition.start_offset - 3), partition.next_offset - 1)
        return random.choice(MEMBERS), first, random.randint(first, partition.next_offset - 1)

    def is_held(self, offset: int, member: str) -> bool:
        record = self.records.get(offset, Record())
        return record.state is ACQUIRED and record.member == member

    def renew(self, named: Sequence[tuple[int, int]]) -> None:
        for offset, kind in named:
            if kind == RENEW:
                self.records[offset] = self.records[offset]._replace(deadline=self.group.now + LOCK_S)

    def leave(self) -> None:
        member, is_stored = self.random.choice(MEMBERS), self.random.random() < 0.8
        start = self.group.partition.start_offset
        transition = Transition()
        for _ in self.group.partition.release(member, transition):
            pass
        if is_stored:
            self.store(transition.changes)
            for offset, record in self.records.items():
                if offset >= start and record.member == member:
                    self.records[offset] = record.released()
        self.group.partition.complete(transition, self.group.now, is_stored=is_stored)

    def wait(self) -> None:
        is_stored = self.random.random() < 0.8
        self.group.now += self.random.choice((1.0, 1.0, 1.0, 10.0, 30.0))
        changes = self.group.partition.expire(self.group.now).changes
        for offset, record in self.records.items():
            if record.state is ACQUIRED and record.deadline <= self.group.now:
                self.records[offset] = record.released()
        if is_stored:
            self.store(changes)
        self.group.partition.trim()

    def write_dead_letters(self) -> None:
        partition = self.group.partition
        for letter in partition.archiving():
            changes = partition.written(letter.first, letter.last)
            assert sum(each.last_offset - each.first_offset + 1 for each in changes) > 0
            for each in changes:
                for offset in range(each.first_offset, each.last_offset + 1):
                    assert self.records[offset].state is ARCHIVING
                    self.records[offset] = self.records[offset]._replace(state=ARCHIVED)
            self.store(changes)
        partition.trim()

    def delete_records(self) -> None:
        start = min(self.group.partition.start_offset + self.random.randint(1, 12), self.log_end)
        self.group.partition.move_start(start)
        for offset in range(start):
            self.records[offset] = Record(ARCHIVED, self.records[offset].deliveries)

    def restart(self) -> None:
        before = dict(self.records)
        batches: list[StateBatch] = []
        for offset in sorted(self.stored):
            if offset >= self.stored_start:
                record = self.stored[offset]
                batches.append(StateBatch(offset, offset, record.state, record.deliveries))
        self.group.partition = SharePartition(lambda: self.group.rules, self.stored_start)
        for _ in self.group.partition.restore(batches):
            pass
        for offset, record in before.items():
            stored = self.stored.get(offset)
            if offset < self.stored_start:
                assert record.state in {ACKNOWLEDGED, ARCHIVED}
            else:
                self.records[offset] = stored or Record()

    def store(self, changes: Sequence[StateBatch]) -> None:
        for first, last, state, deliveries in changes:
            for offset in range(first, last + 1):
                known = self.stored.get(offset, Record())
                assert deliveries >= known.deliveries
                assert known.state not in {ACKNOWLEDGED, ARCHIVED}
                self.stored[offset] = Record(RecordState(state), deliveries)
        if changes:
            self.stored_start = max(self.stored_start, self.group.partition.start_offset)

    def every_record_is_as_in_the_model(self) -> None:
        partition = self.group.partition
        complete = 0
        for span in partition.spans:
            for offset in range(span.first, span.last + 1):
                record = self.records[offset]
                assert (span.state, span.deliveries) == (record.state, record.deliveries), f"{offset}: {record}"
                if span.state is ACQUIRED:
                    assert (span.member, span.deadline_s) == (record.member, record.deadline)
                complete += offset >= partition.start_offset and span.state.is_final
        assert partition.complete_count == complete
        for offset in range(partition.start_offset):
            assert self.records[offset].state in {ACKNOWLEDGED, ARCHIVED}
        for offset in range(partition.next_offset, self.log_end):
            assert self.records[offset] == Record()
        firsts = [span.first for span in partition.spans]
        assert firsts == sorted(firsts)
        available = [offset for offset, record in sorted(self.records.items()) if record.state is AVAILABLE]
        assert partition.fetch_offset() == min(available, default=self.log_end)


STEPS = (
    *[Walk.fetch] * 8, *[Walk.acknowledge] * 10, *[Walk.append] * 6, *[Walk.wait] * 4, Walk.leave,
    *[Walk.write_dead_letters] * 3, Walk.delete_records, Walk.restart,
)  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_a_share_partition_does_what_a_dict_of_records_does(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(250):
        walk.random.choice(STEPS)(walk)
        walk.every_record_is_as_in_the_model()
    assert walk.stored_start > 0, "some records ended"
