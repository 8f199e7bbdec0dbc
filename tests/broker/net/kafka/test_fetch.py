"""Fetches on the Kafka listener: leader epochs, replicas, isolation, sizes."""

import pytest
import trio

from tests.broker.clients import RawClient, batch
from tests.broker.kafka_client import KafkaClient
from tests.broker.net.kafka.fetcher import FOREVER_MS, Fetcher, offsets_of
from warmlog.protocol.errors import ErrorCode


@pytest.mark.parametrize("version", range(9, 19))
@pytest.mark.parametrize(
    ("epoch", "error"),
    [(-1, ErrorCode.NONE), (0, ErrorCode.NONE), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
async def test_a_newer_leader_epoch_is_unknown(
    native: RawClient, kafka: KafkaClient, version: int, epoch: int, error: ErrorCode
) -> None:
    await native.create("orders")
    fetcher = await Fetcher.of(kafka, native, version)
    told = await fetcher.fetch({("orders", 0): 0}, leader_epoch=epoch)
    assert told["orders", 0]["error_code"] == error


@pytest.mark.parametrize("version", [4, 8, 9, 12, 14])
async def test_a_replica_that_nobody_made_is_refused(native: RawClient, kafka: KafkaClient, version: int) -> None:
    await native.create("orders")
    await native.produce("orders", batch(b"a"))
    fetcher = await Fetcher.of(kafka, native, version)
    error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    told = await fetcher.fetch({("orders", 0): 0}, replica_id=7, max_wait_ms=FOREVER_MS)
    assert (told["orders", 0]["error_code"], told["orders", 0]["records"]) == (error, b"")
    if version >= 9:
        fetcher.epoch = 0
        told = await fetcher.fetch({("orders", 0): 0}, replica_id=7, leader_epoch=0)
        assert told["orders", 0]["error_code"] == ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize("version", range(4, 19))
async def test_who_reads_committed_data_is_told_of_no_aborted_transactions(
    native: RawClient, kafka: KafkaClient, version: int
) -> None:
    await native.create("orders")
    await native.produce("orders", batch(b"a"))
    fetcher = await Fetcher.of(kafka, native, version)
    told = (await fetcher.fetch({("orders", 0): 0}, isolation_level=1))["orders", 0]
    assert told["aborted_transactions"] == ()
    assert (told["high_watermark"], told["last_stable_offset"]) == (1, 1)
    assert told["preferred_read_replica"] == -1
    fetcher.epoch = fetcher.session_id = 0
    told = (await fetcher.fetch({("orders", 0): 0}))["orders", 0]
    assert told["aborted_transactions"] is None
    told = (await fetcher.fetch({("orders", 1): 0}))["orders", 1]
    assert (told["error_code"], told["aborted_transactions"]) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ())


@pytest.mark.parametrize("version", [4, 18])
async def test_a_negative_size_is_answered_without_records(native: RawClient, kafka: KafkaClient, version: int) -> None:
    await native.create("orders")
    await native.produce("orders", batch(b"a"))
    fetcher = await Fetcher.of(kafka, native, version)
    told = (await fetcher.fetch({("orders", 0): 0}, max_bytes=-1))["orders", 0]
    assert (told["error_code"], told["records"]) == (ErrorCode.INVALID_FETCH_SIZE, b"")


@pytest.mark.parametrize("version", [4, 9, 10, 18])
async def test_a_topic_of_zstd_alone_is_served_to_clients_that_are_older_than_it(
    native: RawClient, kafka: KafkaClient, version: int
) -> None:
    await native.create("orders", compression_type="zstd")
    await native.produce("orders", batch(b"a"))
    fetcher = await Fetcher.of(kafka, native, version)
    told = (await fetcher.fetch({("orders", 0): 0}))["orders", 0]
    assert told["error_code"] == ErrorCode.NONE
    assert told["records"]


async def test_an_offset_out_of_range_is_told_at_once(native: RawClient, kafka: KafkaClient) -> None:
    await native.create("orders", partitions=2)
    fetcher = await Fetcher.of(kafka, native, 18)
    await fetcher.fetch(offsets_of("orders", 2))
    with trio.fail_after(30):
        told = await fetcher.fetch({("orders", 1): 5}, max_wait_ms=FOREVER_MS)
    assert told["orders", 1]["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert await fetcher.fetch({("orders", 1): 0}) != {}  # it is told that all is well
    assert await fetcher.fetch({}) == {}
