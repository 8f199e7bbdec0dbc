"""`produce_many`, topics, flushing and closing, against an in-memory cluster."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest

from tests.warmlog.client.both_loops import on_both_loops
from tests.warmlog.client.fake_broker import fake_cluster
from tests.warmlog.client.producing.results import refused, values
from warmlog import BrokerError, ClosedError, Message, UnknownTopicError, connect
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import ProduceRequest


@on_both_loops
async def test_produce_many_returns_a_summary() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        await client.produce("t", value=b"before")
        summary = await client.produce_many("t", [b"a", (b"k", b"b"), (None, None), Message(b"c", headers={"h": b"1"})])
        assert summary == ("t", 4, ((0, 4, 1, 4),))
        assert values(cluster, "t") == [b"before", b"a", b"b", None, b"c"]
        assert await client.produce_many("t", []) == ("t", 0, ())


@on_both_loops
async def test_produce_many_takes_async_iterables_and_lists() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, batch_bytes=100) as client:

        async def source() -> AsyncIterator[Any]:
            yield b"first"
            while not values(cluster, "t"):  # sent although the source may yield more
                await anyio.lowlevel.checkpoint()
            yield [b"x" * 60] * 5
            yield (b"k", b"last")

        summary = await client.produce_many("t", source())
        assert summary.records == 7
        assert values(cluster, "t") == [b"first", *[b"x" * 60] * 5, b"last"]


@on_both_loops
async def test_keys_and_values_may_be_any_bytes_like_object_and_are_copied() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, linger_ms=60_000) as client:
        reused = bytearray(b"first")
        await client.topic("t")
        client.produce_nowait("t", key=memoryview(b"key"), value=reused)
        reused[:] = b"later"
        await client.produce_many("t", [reused, (memoryview(b"k"), reused), Message(memoryview(b"abc")[1:])])
        assert values(cluster, "t") == [b"first", b"later", b"later", b"bc"]


@on_both_loops
async def test_records_are_reported_as_they_are_stored() -> None:
    limits = {"batch_bytes": 100, "buffer_bytes": 1000, "max_in_flight": 1}
    async with fake_cluster() as cluster, connect(cluster.address, **limits) as client:
        stored: list[int] = []

        def source() -> Iterator[bytes]:
            for index in range(100):
                yield b"x" * 60
                assert index < 50 or stored  # the buffer holds fewer

        await client.produce_many("t", source(), on_stored=stored.append)
        assert sum(stored) == 100


@on_both_loops
async def test_produce_many_raises_the_first_error_and_stops_iterating() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, batch_bytes=50, max_in_flight=1) as client:
        cluster.fail(ProduceRequest, refused(ErrorCode.INVALID_RECORD))
        taken = 0

        def source() -> Any:
            nonlocal taken
            for _ in range(100_000):
                taken += 1
                yield b"x" * 40

        with pytest.raises(BrokerError):
            await client.produce_many("t", source())
        assert taken < 100_000


@on_both_loops
@pytest.mark.parametrize(
    "item", ["text", 5, None, (b"k", "text"), ("text", b"v"), Message("text"), Message(b"v", headers=[("h", "text")])]
)
async def test_an_invalid_record_is_rejected_and_leaves_no_batch(item: Any) -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        with pytest.raises(TypeError):
            await client.produce_many("t", [item])
        await client.flush()
        assert values(cluster, "t") == []
        await client.produce("t", value=b"fine")


@on_both_loops
async def test_flush_raises_only_errors_that_no_delivery_reported() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        await client.topic("t")
        cluster.fail(ProduceRequest, refused(ErrorCode.INVALID_RECORD))
        client.produce_nowait("t", value=b"x")
        with pytest.raises(BrokerError):
            await client.flush()
        await client.flush()
        cluster.fail(ProduceRequest, refused(ErrorCode.INVALID_RECORD))
        delivery = client.produce_nowait("t", value=b"x")
        with pytest.raises(BrokerError):
            await delivery.wait()
        await client.flush()


@on_both_loops
async def test_produce_nowait_needs_a_cached_topic() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        with pytest.raises(UnknownTopicError, match="not in the metadata cache"):
            client.produce_nowait("t", value=b"x")


@on_both_loops
async def test_a_topic_that_must_not_be_created_is_an_error_at_once() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        cluster.auto_create = False
        with pytest.raises(UnknownTopicError, match="no such topic"):
            await client.produce("t", value=b"x")


@on_both_loops
async def test_records_for_a_deleted_topic_fail() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        await client.produce("t", value=b"x")
        cluster.topics.clear()
        cluster.auto_create = False
        with pytest.raises(UnknownTopicError):
            await client.produce("t", value=b"x")


@on_both_loops
async def test_leaving_the_client_flushes() -> None:
    async with fake_cluster() as cluster:
        async with connect(cluster.address, linger_ms=3_600_000) as client:
            await client.topic("t")
            client.produce_nowait("t", value=b"x")
        assert values(cluster, "t") == [b"x"]


@on_both_loops
async def test_leaving_by_an_exception_raises_it_unchanged_and_drops_unsent_records() -> None:
    left = []

    async def leave(address: str) -> None:
        async with connect(address, linger_ms=3_600_000) as client:
            await client.topic("t")
            left.extend([client, client.produce_nowait("t", value=b"x")])
            raise ZeroDivisionError

    async with fake_cluster() as cluster:
        with pytest.raises(ZeroDivisionError):
            await leave(cluster.address)
        client, delivery = left
        with pytest.raises(ClosedError):
            delivery.metadata()
        with pytest.raises(ClosedError):
            await client.produce("t", value=b"x")


@on_both_loops
async def test_a_cancelled_produce_affects_no_other() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        await client.topic("t")
        answer = anyio.Event()
        cluster.hold(ProduceRequest, answer)
        with anyio.move_on_after(0.01):
            await client.produce("t", value=b"abandoned")
        answer.set()
        assert (await client.produce("t", value=b"kept")).offset == 1
        assert values(cluster, "t") == [b"abandoned", b"kept"]


@on_both_loops
async def test_the_client_recovers_after_all_connections_were_closed() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        for number in range(3):
            assert (await client.produce("t", value=b"x")).offset == number
            await cluster.hang_up()
        assert len(await client.list_topics()) == 1
