"""The rules of share group state, after the cases of Kafka's ShareCoordinatorShardTest (4.4)."""

import pytest
from msgspec.structs import replace

from warmlog.broker.share.state import rules
from warmlog.broker.share.state.rules import MAX_BATCHES, MAX_DISORDER, RefusedError, ShareState, replayed
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.share.state import (
    SharePartitionInEpoch,
    SharePartitionToInitialize,
    SharePartitionToWrite,
    StateBatch,
)
from warmlog.protocol.kafka.share_state_records import ShareRecord, ShareSnapshot, ShareUpdate

NOW_MS = 1_700_000_000_000
TOPIC = b"\1" * 16
UPDATES = 500
AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVED = 0, 1, 2, 4

Batches = tuple[tuple[int, int, int, int], ...]


def batches(*each: tuple[int, int, int, int]) -> tuple[StateBatch, ...]:
    return tuple([StateBatch(*batch) for batch in each])


def to_initialize(state_epoch: int = 0, start_offset: int = 0, partition: int = 0) -> SharePartitionToInitialize:
    return SharePartitionToInitialize(
        topic_id=TOPIC, partition=partition, state_epoch=state_epoch, start_offset=start_offset
    )


def to_write(*changed: tuple[int, int, int, int], **fields: int) -> SharePartitionToWrite:
    usual = {"partition": 0, "state_epoch": 0, "leader_epoch": 0, "start_offset": 0, "delivery_complete_count": 0}
    return SharePartitionToWrite(topic_id=TOPIC, batches=batches(*changed), **usual | fields)


def in_epoch(leader_epoch: int, partition: int = 0) -> SharePartitionInEpoch:
    return SharePartitionInEpoch(topic_id=TOPIC, partition=partition, leader_epoch=leader_epoch)


class Shard:
    """One share-partition; its records are replayed as they are written."""

    def __init__(self, updates: int = UPDATES) -> None:
        self.updates = updates
        self.state: ShareState | None = None
        self.now_ms = NOW_MS

    def take(self, record: ShareRecord) -> ShareRecord:
        self.state = replayed(self.state, record, self.updates)
        return record

    def initialize(self, state_epoch: int = 0, start_offset: int = 0) -> ShareRecord:
        return self.take(rules.initialized(self.state, to_initialize(state_epoch, start_offset), self.now_ms))

    def write(self, *changed: tuple[int, int, int, int], **fields: int) -> ShareRecord:
        return self.take(rules.written(self.state, to_write(*changed, **fields), self.now_ms, self.updates))

    def read(self, leader_epoch: int) -> tuple[ShareSnapshot, ShareRecord | None]:
        content, record = rules.read(self.state, in_epoch(leader_epoch), self.now_ms, self.updates)
        return content, None if record is None else self.take(record)

    @property
    def content(self) -> ShareSnapshot:
        assert self.state is not None
        return self.state.content


@pytest.fixture
def shard() -> Shard:
    """A share-partition with a first state."""
    shard = Shard()
    shard.initialize()
    return shard


def test_a_first_state_is_a_snapshot_of_leader_epoch_0() -> None:
    record = Shard().initialize(state_epoch=2, start_offset=7)
    assert record == ShareSnapshot(
        snapshot_epoch=0,
        state_epoch=2,
        leader_epoch=0,
        start_offset=7,
        delivery_complete_count=0,
        created_ms=NOW_MS,
        written_ms=NOW_MS,
    )


def test_without_a_start_offset_the_count_of_completed_deliveries_is_unknown() -> None:
    record = Shard().initialize(start_offset=-1)
    assert (record.start_offset, record.delivery_complete_count) == (-1, -1)


def test_initializing_again_drops_the_batches_and_keeps_the_epochs_that_fence(shard: Shard) -> None:
    shard.write((0, 9, ACKNOWLEDGED, 1))
    shard.read(leader_epoch=5)
    record = shard.initialize(state_epoch=1, start_offset=3)
    assert isinstance(record, ShareSnapshot)
    assert (record.snapshot_epoch, record.leader_epoch, record.batches) == (1, 0, ())
    with pytest.raises(RefusedError) as refused:
        shard.write(state_epoch=1, leader_epoch=4)
    assert refused.value.error is ErrorCode.FENCED_LEADER_EPOCH


def test_a_write_is_an_update_of_the_last_snapshot(shard: Shard) -> None:
    record = shard.write((0, 10, AVAILABLE, 1), delivery_complete_count=11)
    assert record == ShareUpdate(
        snapshot_epoch=0,
        leader_epoch=0,
        start_offset=0,
        delivery_complete_count=11,
        batches=batches((0, 10, AVAILABLE, 1)),
    )
    shard.write((11, 20, AVAILABLE, 1), delivery_complete_count=21)
    assert shard.content.batches == batches((0, 20, AVAILABLE, 1))
    assert (shard.content.snapshot_epoch, shard.content.delivery_complete_count) == (0, 21)


def test_a_write_does_not_raise_the_leader_epoch(shard: Shard) -> None:
    assert shard.write((0, 1, ACKNOWLEDGED, 1), leader_epoch=5).leader_epoch == 0
    shard.write((0, 1, ACKNOWLEDGED, 1), leader_epoch=0)


def test_reading_in_a_new_leader_epoch_writes_it_and_fences_earlier_leaders(shard: Shard) -> None:
    content, record = shard.read(leader_epoch=2)
    assert content.leader_epoch == 0
    assert record == ShareUpdate(snapshot_epoch=0, leader_epoch=2, start_offset=0, delivery_complete_count=0)
    with pytest.raises(RefusedError) as refused:
        shard.read(leader_epoch=1)
    assert refused.value.error is ErrorCode.FENCED_LEADER_EPOCH
    with pytest.raises(RefusedError) as refused:
        shard.write(leader_epoch=1)
    assert refused.value.error is ErrorCode.FENCED_LEADER_EPOCH


def test_reading_in_the_known_leader_epoch_writes_nothing(shard: Shard) -> None:
    assert shard.read(leader_epoch=0) == (shard.content, None)


@pytest.mark.parametrize("write", [to_write(state_epoch=2), to_write((5, 6, ACKNOWLEDGED, 1), state_epoch=2)])
def test_earlier_state_epochs_are_fenced(write: SharePartitionToWrite) -> None:
    shard = Shard()
    shard.initialize(state_epoch=3)
    for request in (write, to_initialize(state_epoch=2)):
        with pytest.raises(RefusedError) as refused:
            if isinstance(request, SharePartitionToWrite):
                rules.written(shard.state, request, NOW_MS, UPDATES)
            else:
                rules.initialized(shard.state, request, NOW_MS)
        assert refused.value.error is ErrorCode.FENCED_STATE_EPOCH


@pytest.mark.parametrize(
    "write",
    [
        to_write(partition=-1),
        to_write(leader_epoch=-1),
        to_write(state_epoch=-1),
        to_write((5, 4, ACKNOWLEDGED, 1)),
        to_write(*[(2 * number, 2 * number, ARCHIVED, 1) for number in range(MAX_BATCHES + 1)]),
        to_write(*[(0, 5, ARCHIVED, 1)] * (MAX_DISORDER + 1)),
    ],
)
def test_an_invalid_write_is_refused(shard: Shard, write: SharePartitionToWrite) -> None:
    with pytest.raises(RefusedError) as refused:
        rules.written(shard.state, write, NOW_MS, UPDATES)
    assert refused.value.error is ErrorCode.INVALID_REQUEST


def test_a_share_partition_without_a_state_is_neither_written_nor_read() -> None:
    for refused_call in (
        lambda: rules.written(None, to_write(), NOW_MS, UPDATES),
        lambda: rules.read(None, in_epoch(0), NOW_MS, UPDATES),
    ):
        with pytest.raises(RefusedError) as refused:
            refused_call()
        assert refused.value.error is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("request_or_none", [to_initialize(-1), to_initialize(partition=-1)])
def test_an_invalid_first_state_is_refused(request_or_none: SharePartitionToInitialize) -> None:
    with pytest.raises(RefusedError) as refused:
        rules.initialized(None, request_or_none, NOW_MS)
    assert refused.value.error is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("asked", [in_epoch(-1), in_epoch(0, partition=-1)])
def test_an_invalid_read_is_refused(shard: Shard, asked: SharePartitionInEpoch) -> None:
    with pytest.raises(RefusedError) as refused:
        rules.read(shard.state, asked, NOW_MS, UPDATES)
    assert refused.value.error is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("start", "count", "expected"),
    [(20, 1, (20, 1)), (10, 3, (10, 5)), (10, 7, (10, 7)), (9, 9, (10, 5)), (-1, 9, (10, 5))],
)
def test_the_start_offset_never_goes_back(shard: Shard, start: int, count: int, expected: tuple[int, int]) -> None:
    shard.write(start_offset=10, delivery_complete_count=5)
    record = shard.write(start_offset=start, delivery_complete_count=count)
    assert (record.start_offset, record.delivery_complete_count) == expected
    assert (shard.content.start_offset, shard.content.delivery_complete_count) == expected


def test_batches_that_a_write_does_not_name_are_kept() -> None:
    shard = Shard(updates=0)
    shard.initialize()
    first = ((100, 109, ACQUIRED, 1), (110, 119, ACQUIRED, 2), (120, 129, ACQUIRED, 0))
    assert isinstance(shard.write(*first, start_offset=100), ShareSnapshot)
    shard.write((100, 109, ACKNOWLEDGED, 1), start_offset=-1, delivery_complete_count=10)
    record = shard.write((120, 129, ACKNOWLEDGED, 1), start_offset=110, delivery_complete_count=10)
    assert record == ShareSnapshot(
        snapshot_epoch=3,
        state_epoch=0,
        leader_epoch=0,
        start_offset=110,
        delivery_complete_count=10,
        created_ms=NOW_MS,
        written_ms=NOW_MS,
        batches=batches((110, 119, ACQUIRED, 2), (120, 129, ACKNOWLEDGED, 1)),
    )


def test_after_enough_updates_a_snapshot_is_written() -> None:
    shard = Shard(updates=3)
    shard.initialize()
    kinds = [type(shard.write((number, number, ACKNOWLEDGED, 1))) is ShareSnapshot for number in range(12)]
    assert [number for number, is_snapshot in enumerate(kinds) if is_snapshot] == [4, 8]  # Kafka counts the first as 0
    assert shard.content.batches == batches((0, 11, ACKNOWLEDGED, 1))
    assert shard.content.snapshot_epoch == 2


def test_a_snapshot_of_a_cold_state_has_its_time_and_all_else_as_before(shard: Shard) -> None:
    shard.write((0, 10, AVAILABLE, 1), delivery_complete_count=11)
    before = shard.content
    assert shard.state is not None
    record = rules.cold_snapshot(shard.state, NOW_MS + 12_000)
    assert record == replace(before, snapshot_epoch=1, written_ms=NOW_MS + 12_000)
    shard.take(record)
    assert shard.content == record


def test_an_update_whose_snapshot_is_missing_is_a_state_of_epoch_0() -> None:
    update = ShareUpdate(snapshot_epoch=4, leader_epoch=2, start_offset=5, batches=batches((3, 9, ACKNOWLEDGED, 1)))
    state = replayed(None, update, UPDATES)
    assert state.content == ShareSnapshot(
        snapshot_epoch=4, state_epoch=0, leader_epoch=2, start_offset=5, batches=batches((5, 9, ACKNOWLEDGED, 1))
    )
