"""The client and the broker together: real sockets, real files, both event loops."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from tests.warmlog.client.both_loops import on_both_loops
from warmlog import BrokerError, ConnectError, Message, OffsetOutOfRangeError, UnknownTopicError, connect
from warmlog.client.producing.partitioner import partition_of
from warmlog.protocol.errors import ErrorCode
from warmlog.testing import Broker

WORDS = [b"%06d %s" % (number, b"word" * (number % 7)) for number in range(5000)]


@on_both_loops
async def test_the_readme_example(warmlog_broker: Broker) -> None:
    async with connect(warmlog_broker.native) as client:
        await client.produce("orders", key=b"k", value=b"v")
        async for record in client.consume("orders", start="beginning"):
            assert (record.key, record.value) == (b"k", b"v")
            break


@on_both_loops
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_records_come_back_in_order(warmlog_broker: Broker, compression: Any) -> None:
    async with connect(warmlog_broker.native, compression=compression, batch_bytes=5000) as client:
        summary = await client.produce_many("words", WORDS)
        assert summary == ("words", 5000, ((0, 5000, 0, 4999),))
        assert [record.value async for record in client.consume("words", until_end=True)] == WORDS
        assert [r.offset async for r in client.consume("words", 4321, until_end=True)] == list(range(4321, 5000))


@on_both_loops
async def test_keys_keep_their_partitions_and_times_are_found(warmlog_broker: Broker) -> None:
    async with connect(warmlog_broker.native) as client:
        await client.create_topic("t", partitions=5)
        keys = [b"%d" % number for number in range(100)]
        await client.produce_many("t", (Message(b"v", key, timestamp=1000 + n) for n, key in enumerate(keys)))
        seen = []
        async for record in client.consume("t", until_end=True):
            assert record.key is not None
            assert record.partition == partition_of(record.key, 5)
            seen.append(record.key)
        assert sorted(seen) == sorted(keys)
        late = [r.timestamp async for r in client.consume("t", start="1970-01-01T00:00:01.050Z", until_end=True)]
        assert sorted(late) == list(range(1050, 1100))
        assert sum((await client.offsets("t")).values()) == 100


@on_both_loops
async def test_small_fetches_of_many_segments(warmlog_broker: Broker) -> None:
    async with connect(warmlog_broker.native, batch_bytes=700, fetch_partition_bytes=1000) as client:
        await client.create_topic("t", configs={"segment.bytes": "20000"})
        await client.produce_many("t", WORDS)
        assert len((await client.describe_topics("t"))[0].partitions[0].segments) > 3
        assert [record.value async for record in client.consume("t", until_end=True)] == WORDS


@on_both_loops
async def test_a_record_larger_than_a_fetch(warmlog_broker: Broker) -> None:
    async with connect(warmlog_broker.native, fetch_partition_bytes=1000, fetch_bytes=1000) as client:
        large = [bytes([65 + number]) * 900_000 for number in range(3)]
        await client.produce_many("t", large)
        assert [record.value async for record in client.consume("t", until_end=True)] == large


@on_both_loops
async def test_a_batch_too_large_is_split_and_a_record_too_large_rejected(warmlog_broker: Broker) -> None:
    async with connect(warmlog_broker.native) as client:
        await client.create_topic("t", configs={"max.message.bytes": "2000"})
        await client.produce_many("t", WORDS)
        assert [record.value async for record in client.consume("t", until_end=True)] == WORDS
        with pytest.raises(BrokerError) as caught:
            await client.produce("t", value=bytes(3000))
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


@on_both_loops
async def test_a_waiting_reader_gets_each_record_as_it_arrives(warmlog_broker: Broker) -> None:
    async with connect(warmlog_broker.native) as client:
        await client.create_topic("t", partitions=3)
        send, receive = anyio.create_memory_object_stream[bytes](10)

        async def follow() -> None:
            async with send:
                async for record in client.consume("t", "beginning"):
                    assert record.value is not None
                    await send.send(record.value)
                    if record.value == b"last":
                        break

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await anyio.wait_all_tasks_blocked()
            async with receive:
                for value in (b"a", b"b", b"c", b"last"):
                    await client.produce("t", value=value)
                    assert await receive.receive() == value


@on_both_loops
@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_acks(warmlog_broker: Broker, acks: Any) -> None:
    async with connect(warmlog_broker.native, acks=acks) as client:
        for _ in range(10):
            await client.produce("t", value=b"x")
        async for record in client.consume("t"):
            if record.offset == 9:
                break


@on_both_loops
async def test_with_acks_0_a_failure_loses_no_later_record(warmlog_broker: Broker) -> None:
    async with connect(warmlog_broker.native, acks=0) as client:
        await client.produce("t", value=bytes(2_000_000))
        stream = client.consume("t")
        async with anyio.create_task_group() as tasks:

            async def insist() -> None:
                while True:  # records sent before the client notices the close are lost as well
                    await client.produce("t", value=b"x")
                    await anyio.sleep(0.01)

            tasks.start_soon(insist)
            assert (await anext(stream)).value == b"x"
            tasks.cancel_scope.cancel()


@on_both_loops
async def test_errors_have_their_own_classes(warmlog_broker: Broker) -> None:
    async with connect(warmlog_broker.native) as client:
        with pytest.raises(BrokerError) as caught:
            await client.produce("a/b", value=b"x")
        assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
        with pytest.raises(BrokerError) as caught:
            await client.create_topic("t", configs={"segment.byte": "5"})
        assert caught.value.code is ErrorCode.INVALID_CONFIG
        with pytest.raises(UnknownTopicError):
            await anext(client.consume("missing", until_end=True))
        await client.produce("t", value=b"x")
        with pytest.raises(OffsetOutOfRangeError) as out_of_range:
            await anext(client.consume("t", 5))
        assert (out_of_range.value.log_start_offset, out_of_range.value.high_watermark) == (0, 1)


@on_both_loops
async def test_producing_and_consuming_survive_a_broker_restart(warmlog_broker: Broker) -> None:
    async with connect(warmlog_broker.native, batch_bytes=2000) as client:
        stream = client.consume("t")

        async def source() -> AsyncIterator[bytes]:
            for number, word in enumerate(WORDS):
                if number == 2000:
                    await anyio.to_thread.run_sync(warmlog_broker.restart)
                yield word

        seen: list[bytes | None] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.produce_many, "t", source())
            while WORDS[-1] not in seen[-1:]:
                seen.append((await anext(stream)).value)
        # Records in flight at the stop may be stored twice; none is missing.
        assert list(dict.fromkeys(seen)) == WORDS


@on_both_loops
async def test_a_kafka_listener_is_named_at_once(warmlog_broker: Broker) -> None:
    with pytest.raises(ConnectError, match="is a Kafka listener") as caught:
        async with connect(warmlog_broker.kafka):
            pass
    assert not caught.value.is_retriable
    with pytest.raises(ConnectError, match="no warmlog broker at"):
        async with connect(warmlog_broker.http):
            pass
