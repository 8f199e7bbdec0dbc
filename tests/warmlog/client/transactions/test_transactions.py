"""Transactions of the client against a broker: atomicity, offsets, fencing, errors; on both event loops."""

from collections import Counter

import anyio
import pytest

from tests.warmlog.client.both_loops import on_both_loops
from warmlog import (
    BrokerError,
    ClosedError,
    Message,
    ProducerFencedError,
    connect,
)
from warmlog.client import AsyncClient
from warmlog.protocol.errors import ErrorCode
from warmlog.testing import Broker


async def committed(client: AsyncClient, *topics: str) -> list[bytes | None]:
    stream = client.consume(topics, until_end=True, isolation="read_committed")
    return [record.value async for record in stream]


@on_both_loops
async def test_records_are_visible_once_the_block_is_left(warmlog_broker: Broker) -> None:
    async with connect(warmlog_broker.native) as client:
        for name in ("a", "b"):
            await client.create_topic(name, partitions=2)
        async with client.transaction("t") as transaction:
            await transaction.produce("a", value=b"1", partition=0)
            await transaction.produce("a", value=b"2", partition=1)
            await transaction.produce_many("b", [b"3", b"4"])
            transaction.produce_nowait("a", value=b"5")
            await transaction.flush()
            assert await committed(client, "a", "b") == []
        assert sorted(await committed(client, "a", "b")) == [b"1", b"2", b"3", b"4", b"5"]


@on_both_loops
async def test_a_block_left_by_an_error_aborts(warmlog_broker: Broker) -> None:
    async with connect(warmlog_broker.native) as client:
        await client.create_topic("a")
        with pytest.raises(ZeroDivisionError):
            async with client.transaction("t") as transaction:
                await transaction.produce("a", value=b"never")
                raise ZeroDivisionError
        async with client.transaction("t") as transaction:
            await transaction.produce("a", value=b"kept")
        assert await committed(client, "a") == [b"kept"]
        uncommitted = [record.value async for record in client.consume("a", until_end=True)]
        assert uncommitted == [b"never", b"kept"]


@on_both_loops
async def test_many_transactions_of_many_batches_in_order(warmlog_broker: Broker) -> None:
    """Sequences count from 0 in every transaction, over batches that wait for each other."""
    async with connect(warmlog_broker.native, batch_bytes=300, linger_ms=1) as client:
        await client.create_topic("a", partitions=3)
        kept = []
        for number in range(10):
            values = [b"%d.%d" % (number, each) for each in range(200)]
            async with client.transaction("t") as transaction:
                await transaction.produce_many("a", (Message(value, value[-1:]) for value in values))
                if number % 3 == 2:
                    await transaction.abort()
                else:
                    kept += values
        assert sorted(await committed(client, "a")) == sorted(kept)


@on_both_loops
async def test_batches_too_large_are_split(warmlog_broker: Broker) -> None:
    async with connect(warmlog_broker.native) as client:
        await client.create_topic("a", configs={"max.message.bytes": "2000"})
        values = [b"%06d" % number for number in range(3000)]
        async with client.transaction("t") as transaction:
            await transaction.produce_many("a", values)
        assert await committed(client, "a") == values


@on_both_loops
async def test_a_record_that_is_refused_aborts_the_transaction(warmlog_broker: Broker) -> None:
    async with connect(warmlog_broker.native) as client:
        await client.create_topic("a", configs={"max.message.bytes": "2000"})
        await client.create_topic("b")
        with pytest.raises(BrokerError) as caught:
            async with client.transaction("t") as transaction:
                await transaction.produce("b", value=b"with the other")
                with pytest.raises(BrokerError):
                    await transaction.produce("a", value=bytes(3000))
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert await committed(client, "a", "b") == []
        async with client.transaction("t") as transaction:
            await transaction.produce("b", value=b"later")
        assert await committed(client, "b") == [b"later"]


@on_both_loops
async def test_an_empty_transaction_ends_without_the_broker(warmlog_broker: Broker) -> None:
    async with connect(warmlog_broker.native) as client:
        for _ in range(2):
            async with client.transaction("t"):
                pass
            async with client.transaction("t") as transaction:
                await transaction.abort()
        await client.create_topic("a")
        async with client.transaction("t") as transaction:
            await transaction.produce("a", value=b"1")
        assert await committed(client, "a") == [b"1"]


@on_both_loops
async def test_a_second_client_fences_the_first_for_good(warmlog_broker: Broker) -> None:
    async with connect(warmlog_broker.native) as old, connect(warmlog_broker.native) as new:
        await old.create_topic("a")
        with pytest.raises(ProducerFencedError):
            async with old.transaction("t") as transaction:
                await transaction.produce("a", value=b"zombie")
                async with new.transaction("t") as successor:
                    await successor.produce("a", value=b"successor")
                await transaction.produce("a", value=b"zombie again")
        with pytest.raises(ProducerFencedError, match="transactional id 't': another client"):
            async with old.transaction("t"):
                pass
        assert await committed(new, "a") == [b"successor"]


@on_both_loops
async def test_offsets_and_records_are_committed_together(warmlog_broker: Broker) -> None:
    """Consume, transform, produce: an aborted round is read again, and every record counts once."""
    async with connect(warmlog_broker.native) as client:
        await client.create_topic("in", partitions=2)
        await client.create_topic("out")
        await client.produce_many("in", [b"%d" % number for number in range(100)])
        rounds = 0
        done: Counter[bytes | None] = Counter()
        while len(done) < 100:
            options = {"group": "g", "auto_commit": False, "until_end": True}
            async with client.consume_batches("in", **options) as stream:  # type: ignore[call-overload]
                async for batch in stream:
                    rounds += 1
                    async with client.transaction("t") as transaction:
                        await transaction.produce_many("out", [record.value or b"" for record in batch])
                        await transaction.commit_offsets(stream)
                        if rounds % 2:
                            await transaction.abort()
                            break
            done = Counter(await committed(client, "out"))
        assert set(done.values()) == {1}
        (group,) = await client.describe_groups("g")
        assert sum(position.lag or 0 for position in group.positions) == 0


@on_both_loops
async def test_offsets_of_a_group_without_members(warmlog_broker: Broker) -> None:
    async with connect(warmlog_broker.native) as client:
        await client.create_topic("in")
        await client.produce_many("in", [b"1", b"2", b"3"])
        async with client.transaction("t") as transaction:
            await transaction.commit_offsets("g", {("in", 0): 2})
            with pytest.raises(ValueError, match="offsets must be given"):
                await transaction.commit_offsets("g")
        (group,) = await client.describe_groups("g")
        assert [position.offset for position in group.positions] == [2]


@on_both_loops
async def test_a_stream_that_commits_by_itself_is_refused(warmlog_broker: Broker) -> None:
    async with connect(warmlog_broker.native) as client:
        await client.produce("in", value=b"1")
        async with client.consume("in", group="g") as stream:
            await anext(stream)
            async with client.transaction("t") as transaction:
                with pytest.raises(ValueError, match="auto_commit=False"):
                    await transaction.commit_offsets(stream)


@on_both_loops
async def test_a_transaction_is_used_within_its_block_and_not_twice(warmlog_broker: Broker) -> None:
    async with connect(warmlog_broker.native) as client:
        await client.create_topic("a")
        async with client.transaction("t") as transaction:
            with pytest.raises(RuntimeError, match="a transaction of this client is open"):
                async with client.transaction("t"):
                    pass
            await transaction.produce("a", value=b"1")
            await transaction.commit()
            assert transaction.has_ended
            with pytest.raises(ClosedError, match="the transaction has ended"):
                await transaction.produce("a", value=b"2")
        with pytest.raises(ClosedError, match="the transaction has ended"):
            await transaction.commit()
        with pytest.raises(ValueError, match="at least one character"):
            async with client.transaction(""):
                pass
        assert await committed(client, "a") == [b"1"]


@on_both_loops
async def test_a_cancelled_transaction_is_aborted(warmlog_broker: Broker) -> None:
    async with connect(warmlog_broker.native) as client:
        await client.create_topic("a")
        with anyio.CancelScope() as scope:
            async with client.transaction("t") as transaction:
                await transaction.produce("a", value=b"never")
                scope.cancel()
                await anyio.sleep_forever()
        async with client.transaction("t") as transaction:
            await transaction.produce("a", value=b"kept")
        assert await committed(client, "a") == [b"kept"]


@on_both_loops
async def test_a_timeout_above_the_limit_is_refused(warmlog_broker: Broker) -> None:
    async with connect(warmlog_broker.native) as client:
        with pytest.raises(BrokerError, match=r"transaction\.max\.timeout\.ms") as caught:
            async with client.transaction("t", timeout_s=10**6):
                pass
        assert caught.value.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT


@on_both_loops
async def test_a_transaction_goes_on_over_a_restart_of_the_broker(warmlog_broker: Broker) -> None:
    async with connect(warmlog_broker.native) as client:
        await client.create_topic("a", partitions=3)
        async with client.transaction("t") as transaction:
            await transaction.produce_many("a", [b"1", b"2"], partition=0)
            await anyio.to_thread.run_sync(warmlog_broker.restart)
            await transaction.produce_many("a", [b"3"], partition=0)
            await transaction.produce_many("a", [b"4"], partition=1)
        async with client.transaction("t") as transaction:
            await transaction.produce("a", value=b"5")
        assert sorted(await committed(client, "a")) == [b"1", b"2", b"3", b"4", b"5"]
