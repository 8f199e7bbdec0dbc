"""Offsets of open transactions: who sees them, and what a marker does to them."""

from pathlib import Path

import pytest
import trio

from tests.broker.clients import running
from tests.broker.kafka_client import kafka_client
from warmlog.broker.groups.pending_offsets import PendingOffset, PendingOffsets
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.group_records import OffsetAndMetadata, encode_offset, encode_offset_key
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import TRANSACTIONAL_BIT
from warmlog.protocol.records.markers import Outcome

PRODUCER, OTHER = 7, 8


def offset(number: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset=number, leader_epoch=0, metadata="", commit_ms=0)


def pending(number: int, record_offset: int, *, group: str = "g", topic: str = "words", at: int = 0) -> PendingOffset:
    return PendingOffset(group, topic, at, offset(number), record_offset)


def ended(offsets: PendingOffsets, producer_id: int) -> list[PendingOffset]:
    """End a transaction; return its offsets."""
    transaction = offsets.end(producer_id, 100, Outcome.COMMIT)
    return [] if transaction is None else offsets.take(transaction, 100)


def test_a_marker_takes_the_offsets_of_its_producer_only() -> None:
    offsets = PendingOffsets()
    offsets.put(PRODUCER, pending(1, 10))
    offsets.put(OTHER, pending(2, 11, topic="others"))
    assert ended(offsets, PRODUCER) == [pending(1, 10)]
    assert ended(offsets, PRODUCER) == []
    assert not offsets.is_pending("g", "words", 0)
    assert offsets.is_pending("g", "others", 0)


def test_an_offset_is_pending_until_the_last_transaction_with_one_ends() -> None:
    offsets = PendingOffsets()
    offsets.put(PRODUCER, pending(1, 10))
    offsets.put(OTHER, pending(2, 11))
    ended(offsets, OTHER)
    assert offsets.is_pending("g", "words", 0)
    assert offsets.has_any("g")
    ended(offsets, PRODUCER)
    assert not offsets.has_any("g")


def test_a_later_offset_of_a_transaction_replaces_the_earlier_one_in_any_order_of_arrival() -> None:
    offsets = PendingOffsets()
    offsets.put(PRODUCER, pending(2, 11))
    offsets.put(PRODUCER, pending(1, 10))
    assert ended(offsets, PRODUCER) == [pending(2, 11)]
    assert not offsets.has_any("g")


def test_a_tombstone_removes_the_offsets_before_it() -> None:
    offsets = PendingOffsets()
    offsets.put(PRODUCER, pending(1, 10))
    offsets.put(OTHER, pending(2, 12))
    offsets.remove("g", "words", 0, 11)
    assert ended(offsets, PRODUCER) == []
    assert ended(offsets, OTHER) == [pending(2, 12)]


def test_the_offsets_of_a_deleted_topic_are_removed_and_named_once() -> None:
    offsets = PendingOffsets()
    offsets.put(PRODUCER, pending(1, 10))
    offsets.put(OTHER, pending(2, 12))
    offsets.put(PRODUCER, pending(3, 13, topic="others"))
    assert list(offsets.remove_topic("words", 13)) == [("g", [0])]
    assert offsets.of("g") == [("others", 0)]
    offsets.put(OTHER, pending(4, 20))
    assert list(offsets.remove_topic("words", 20)) == [("g", [])]  # of a new topic with the name
    assert ended(offsets, OTHER) == [pending(4, 20)]
    assert ended(offsets, PRODUCER) == [pending(3, 13, topic="others")]


def test_the_offsets_are_forgotten_in_steps() -> None:
    offsets = PendingOffsets()
    for at in range(5):
        offsets.put(PRODUCER, pending(at, 10 + at, at=at))
    offsets.put(OTHER, pending(9, 20))
    steps = 1
    while offsets.forget(2):
        steps += 1
    assert steps == 4
    assert len(offsets) == 0
    assert not offsets.has_any("g")


def test_the_offsets_of_an_ended_transaction_are_pending_until_they_are_taken() -> None:
    offsets = PendingOffsets()
    for at in range(3):
        offsets.put(PRODUCER, pending(at, 10 + at, at=at))
    transaction = offsets.end(PRODUCER, 20, Outcome.COMMIT)
    assert transaction is not None
    offsets.put(PRODUCER, pending(9, 21))  # of the next transaction
    assert len(offsets.take(transaction, 2)) == 2
    assert offsets.of("g") == [("words", 0), ("words", 2)]
    offsets.remove("g", "words", 2, 22)
    assert offsets.take(transaction, 2) == []
    assert len(offsets) == 1
    assert ended(offsets, PRODUCER) == [pending(9, 21)]
    assert not offsets.has_any("g")


def test_a_record_that_is_reported_after_its_marker_has_the_outcome_of_that_marker() -> None:
    offsets = PendingOffsets()
    offsets.begin_write(PRODUCER)
    offsets.begin_write(PRODUCER)
    offsets.end(PRODUCER, 11, Outcome.ABORT)
    offsets.end(PRODUCER, 21, Outcome.COMMIT)
    outcomes = [offsets.outcome_of(PRODUCER, record_offset) for record_offset in (10, 20, 30)]
    assert outcomes == [Outcome.ABORT, Outcome.COMMIT, None]
    offsets.end_write(PRODUCER)
    assert offsets.outcome_of(PRODUCER, 10) is Outcome.ABORT
    offsets.end_write(PRODUCER)
    assert offsets.outcome_of(PRODUCER, 10) is None  # nothing is on its way: markers are not kept


def test_a_marker_that_is_written_while_its_log_partition_is_loaded_ends_what_is_loaded() -> None:
    offsets = PendingOffsets()
    offsets.begin_loading()
    offsets.end(PRODUCER, 11, Outcome.COMMIT)
    assert offsets.outcome_of(PRODUCER, 10) is Outcome.COMMIT
    offsets.finish_loading()
    assert offsets.outcome_of(PRODUCER, 10) is None


@pytest.mark.parametrize(
    ("require_stable", "error"), [(True, ErrorCode.UNSTABLE_OFFSET_COMMIT), (False, ErrorCode.NONE)]
)
async def test_stable_offsets_are_refused_while_a_transaction_may_change_them(
    tmp_path: Path, *, require_stable: bool, error: ErrorCode
) -> None:
    """The log was left with a committed offset, and one of a transaction without a marker."""
    key = encode_offset_key("g", "words", 0)
    committed = build_batch([(0, key, encode_offset(offset(3)), ())])
    in_transaction = build_batch(
        [(0, key, encode_offset(offset(9)), ())],
        base_offset=1,
        producer_id=PRODUCER,
        producer_epoch=0,
        attributes=TRANSACTIONAL_BIT,
    )
    log = tmp_path / "__consumer_offsets-0"
    log.mkdir()
    (log / f"{0:020}.log").write_bytes(committed + in_transaction)
    async with running(tmp_path, {"offsets.topic.num.partitions": 1}) as broker:
        await (await broker.connect()).create("words")
        async with kafka_client(broker.addresses.kafka) as client:
            await client.ask("FindCoordinator", 4, key_type=0, coordinator_keys=["g"])
            for topics in ([{"name": "words", "partition_indexes": [0]}], None):
                group = {"error_code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
                while group["error_code"] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                    asked = {"group_id": "g", "topics": topics}
                    reply = await client.ask("OffsetFetch", 8, groups=[asked], require_stable=require_stable)
                    (group,) = reply["groups"]
                    await trio.lowlevel.checkpoint()
                found = group["topics"][0]["partitions"][0]
                assert (found["error_code"], found["committed_offset"]) == (error, -1 if error else 3)
        broker.stop.set()
