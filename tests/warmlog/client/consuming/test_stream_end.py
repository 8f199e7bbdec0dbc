"""Closing, cancelling and misusing streams, against an in-memory cluster."""

import gc
from collections.abc import Iterator
from contextlib import aclosing

import anyio
import anyio.lowlevel
import pytest

from tests.warmlog.client.both_loops import on_both_loops
from tests.warmlog.client.consuming.reading import fill, read, take
from tests.warmlog.client.fake_broker import fake_cluster
from warmlog import ClosedError, ConnectError, connect
from warmlog.protocol.request import FetchRequest, HelloRequest, ListOffsetsRequest, MetadataRequest


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Disable the cycle collector, so that a stream is closed by reference counting or leaks."""
    gc.disable()
    yield
    gc.enable()


@on_both_loops
async def test_leaving_the_loop_closes_the_connections(no_collection: None) -> None:
    async with fake_cluster() as cluster, connect(cluster.address, fetch_max_wait_ms=1) as client:
        fill(cluster.create("t")[0], 10)
        for _ in range(3):
            async for _record in client.consume("t"):
                break
            while len(cluster._streams) > 1:
                await anyio.lowlevel.checkpoint()


@on_both_loops
async def test_a_stream_may_be_closed_explicitly() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        fill(cluster.create("t")[0], 10)
        async with aclosing(client.consume("t")) as stream:
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        async with client.consume_batches("t") as batches:
            await anext(batches)
        assert [batch async for batch in batches] == []


@on_both_loops
async def test_closing_a_stream_ends_a_waiting_reader() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        stream = client.consume("t")
        seen = []

        async def follow() -> None:
            seen.extend([record async for record in stream])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            while not cluster.asked(FetchRequest):
                await anyio.lowlevel.checkpoint()
            stream.close()
        assert seen == []


@on_both_loops
async def test_a_cancelled_step_consumes_nothing() -> None:
    async with fake_cluster() as cluster, connect(cluster.address, fetch_partition_bytes=200) as client:
        fill(cluster.create("t")[0], *[5] * 10)
        seen: list[int] = []
        stream = client.consume_batches("t", until_end=True)
        while True:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await anext(stream)
            try:
                seen += [record.offset for record in await anext(stream)]
            except StopAsyncIteration:
                break
        assert seen == list(range(50))


@on_both_loops
async def test_a_waiting_reader_can_be_cancelled() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        with anyio.move_on_after(0.02):
            async for _ in client.consume("t"):
                pass
        await client.produce("t", value=b"still works")


@on_both_loops
async def test_a_second_task_may_not_read_the_stream() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        stream = client.consume("t")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anext, stream, None)
            while not cluster.asked(FetchRequest):
                await anyio.lowlevel.checkpoint()
            with pytest.raises(RuntimeError, match="one task at a time"):
                await anext(stream)
            stream.close()


@on_both_loops
async def test_a_stream_raises_after_its_client_was_closed() -> None:
    async with fake_cluster() as cluster:
        fill(cluster.create("t")[0], 10)
        async with connect(cluster.address) as client:
            stream = client.consume("t")
            await take(10, stream)
        with pytest.raises(ClosedError):
            await anext(stream)


@on_both_loops
async def test_arguments_are_validated_at_once() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        for wrong in ("soon", -1, "2026-13-01"):
            with pytest.raises(ValueError, match=r"start must be|offset must be"):
                client.consume("t", wrong)
        for wrong_type in (1.5, None, True):
            with pytest.raises(TypeError, match="start"):
                client.consume("t", wrong_type)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="out_of_range"):
            client.consume("t", out_of_range="sometimes")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="Isolation"):
            client.consume("t", isolation="none")
        assert not cluster.asked(MetadataRequest)


@on_both_loops
async def test_isolation_is_sent_in_requests() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        fill(cluster.create("t")[0], 5)
        await read(client, "t", isolation="read_committed")
        asked = [*cluster.asked(FetchRequest), *cluster.asked(ListOffsetsRequest)]
        assert {request.isolation for request in asked} == {"read_committed"}


@on_both_loops
async def test_a_stream_needs_the_broker_only_while_it_is_read() -> None:
    async with fake_cluster() as cluster, connect(cluster.address) as client:
        stream = client.consume("t")
        del stream
        assert len(cluster.asked(HelloRequest)) == 1


@on_both_loops
async def test_a_broker_that_stays_unreachable_is_an_error() -> None:
    async with fake_cluster(brokers=2) as cluster, connect(cluster.address, delivery_timeout_s=0.1) as client:
        cluster.create("t")[0].leader = 2
        cluster.ports[2] = 1  # no listener there
        with pytest.raises(ConnectError, match=r"cannot connect to 127\.0\.0\.1:1: Connection refused"):
            await take(1, client.consume("t"))
