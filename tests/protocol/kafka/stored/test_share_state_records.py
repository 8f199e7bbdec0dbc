"""Records of `__share_group_state`, compared with bytes written by Kafka's classes."""

import contextlib
from base64 import urlsafe_b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.kafka.stored import golden
from warmlog.protocol.kafka.codec.bounds import MalformedError
from warmlog.protocol.kafka.messages.share.state import StateBatch
from warmlog.protocol.kafka.share_state_records import (
    SharePartitionKey,
    ShareRecord,
    ShareSnapshot,
    ShareUpdate,
    decode_record,
    encode_record,
)

KEY = SharePartitionKey("grüppe", urlsafe_b64decode("ZROer-cbReKkMjZ9vBhQSg=="), 70_000)
BATCHES = (StateBatch(100, 109, 0, 1), StateBatch(110, 110, 2, 5), StateBatch(1 << 40, 1 << 41, 4, 300))
#: Leader epoch, start offset, completed deliveries and batches of the golden values.
CONTENTS: list[tuple[int, int, int, tuple[StateBatch, ...]]] = [
    (3, -1, -1, ()),
    (3, 100, -1, BATCHES[:1]),
    (3, 100, 0, BATCHES),
    (-1, 100, 1 << 30, BATCHES[1:]),
]
SNAPSHOTS = [
    ShareSnapshot(
        snapshot_epoch=7,
        state_epoch=2,
        leader_epoch=epoch,
        start_offset=start,
        delivery_complete_count=count,
        created_ms=1_790_000_000_123,
        written_ms=1_790_000_000_456,
        batches=batches,
    )
    for epoch, start, count, batches in CONTENTS
]
UPDATES = [
    ShareUpdate(
        snapshot_epoch=7, leader_epoch=epoch, start_offset=start, delivery_complete_count=count, batches=batches
    )
    for epoch, start, count, batches in CONTENTS
]


def written(name: str) -> list[bytes]:
    return golden.written("share_state_records.jsonl", name)


@pytest.mark.parametrize(("kind", "records"), [("Snapshot", SNAPSHOTS), ("Update", UPDATES)])
def test_records_are_kafkas(kind: str, records: list[ShareRecord]) -> None:
    (key,), values = written(f"Share{kind}Key"), written(f"Share{kind}Value")
    assert [encode_record(KEY, record) for record in records] == [(key, value) for value in values]
    assert [decode_record(key, value) for value in values] == [(KEY, record) for record in records]


def test_a_state_is_deleted_by_a_tombstone_of_its_snapshot() -> None:
    (key,) = written("ShareSnapshotKey")
    assert encode_record(KEY, None) == (key, None)
    assert decode_record(key, None) == (KEY, None)


def test_records_of_other_types_are_unknown() -> None:
    assert decode_record(b"\0\2anything", b"\0\0") is None


@pytest.mark.parametrize("kind", ["Snapshot", "Update"])
def test_a_record_that_ends_early_is_refused(kind: str) -> None:
    (key,), values = written(f"Share{kind}Key"), written(f"Share{kind}Value")
    for end in range(len(key)):
        with pytest.raises(MalformedError):
            decode_record(key[:end], values[0])
    for value in values:
        for end in range(len(value)):
            with pytest.raises(MalformedError):
                decode_record(key, value[:end])


def test_a_value_of_another_version_is_refused() -> None:
    key, value = encode_record(KEY, SNAPSHOTS[0])
    assert value is not None
    with pytest.raises(MalformedError, match="version 1, expected 0"):
        decode_record(key, b"\0\1" + value[2:])


def test_what_no_record_can_hold_is_refused() -> None:
    with pytest.raises(MalformedError, match="cannot encode a record of share group state"):
        encode_record(SharePartitionKey("g" * (1 << 15), bytes(16), 0), None)


int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
batches = st.lists(
    st.builds(StateBatch, int64, int64, st.integers(-128, 127), st.integers(-(1 << 15), (1 << 15) - 1)), max_size=4
).map(tuple)
keys = st.builds(SharePartitionKey, st.text(max_size=12), st.binary(min_size=16, max_size=16), int32)
snapshots = st.builds(
    ShareSnapshot,
    snapshot_epoch=int32,
    state_epoch=int32,
    leader_epoch=int32,
    start_offset=int64,
    delivery_complete_count=int32,
    created_ms=int64,
    written_ms=int64,
    batches=batches,
)
updates = st.builds(
    ShareUpdate,
    snapshot_epoch=int32,
    leader_epoch=int32,
    start_offset=int64,
    delivery_complete_count=int32,
    batches=batches,
)
records: st.SearchStrategy[ShareRecord | None] = st.one_of(snapshots, updates, st.none())


@given(keys, records)
def test_a_record_survives(key: SharePartitionKey, record: ShareRecord | None) -> None:
    assert decode_record(*encode_record(key, record)) == (key, record)


@given(keys, snapshots | updates, st.data())
def test_mutated_records_are_refused_by_one_error(
    key: SharePartitionKey, record: ShareRecord, data: st.DataObject
) -> None:
    name, value = encode_record(key, record)
    assert value is not None
    for encoded, is_key in ((name, True), (value, False)):
        position = data.draw(st.integers(0, len(encoded) - 1))
        mutated = bytearray(encoded)
        mutated[position] = data.draw(st.integers(0, 255))
        for changed in (bytes(mutated), encoded[:position] + encoded[position + 1 :]):
            with contextlib.suppress(MalformedError):
                decode_record(changed if is_key else name, value if is_key else changed)
