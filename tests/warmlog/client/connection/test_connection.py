"""The async connection: reply order, every way it can end, and requests larger than the socket buffer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from math import inf

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import SocketAttribute, SocketStream

from tests.warmlog.client.both_loops import on_both_loops
from tests.warmlog.client.fake_broker import FakeCluster, fake_cluster
from warmlog.client.connection.connection import Connection
from warmlog.client.errors import (
    BrokerError,
    ClosedError,
    ConnectError,
    ConnectionLostError,
    RequestTimeoutError,
    WarmlogError,
)
from warmlog.client.settings import Settings
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.native.codec import encode_response
from warmlog.protocol.native.messages import VERSIONS
from warmlog.protocol.request import HelloRequest, MetadataRequest, PartitionRecords, ProduceRequest
from warmlog.protocol.response import ErrorResponse, HelloResponse, MetadataResponse, ProduceResponse

ALL = MetadataRequest()
NO_TOPICS = MetadataResponse(brokers=(), topics=(), cluster_id="c", controller=1)
HELLO = HelloResponse(version=1, broker="b", cluster_id="c", node_id=1, max_frame_bytes=1 << 20)


@asynccontextmanager
async def connection_to(port: int, **settings: float) -> AsyncIterator[Connection]:
    async with anyio.create_task_group() as tasks:
        connection = await Connection.open("127.0.0.1", port, tasks, Settings(**settings))  # type: ignore[arg-type]
        yield connection
        connection.close()


@asynccontextmanager
async def connected(cluster: FakeCluster, **settings: float) -> AsyncIterator[Connection]:
    async with connection_to(cluster.ports[1], **settings) as connection:
        yield connection


@asynccontextmanager
async def server_sending(*replies: bytes) -> AsyncIterator[int]:
    """Serve: send one of these after each receive. Yields the port."""

    async def serve(stream: SocketStream) -> None:
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            async with stream:
                for reply in replies:
                    await stream.receive()
                    await stream.send(reply)
                await stream.receive()

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield listener.extra(SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


def hello_reply() -> bytes:
    return b"".join(map(bytes, encode_response(1, HELLO)))  # type: ignore[arg-type]


@on_both_loops
async def test_pipelined_requests_get_their_replies_in_order() -> None:
    async with fake_cluster() as cluster, connected(cluster) as connection:
        for name in "abc":
            cluster.create(name)
        replies = [connection.submit(MetadataRequest(topics=(name,)), MetadataResponse) for name in "cab"]
        order: list[str] = []
        for reply in replies:
            reply.when_done(lambda done: order.append(done.result().topics[0].name))
        assert [(await reply.wait()).topics[0].name for reply in replies] == ["c", "a", "b"]
        assert order == ["c", "a", "b"]


@on_both_loops
async def test_an_error_reply_fails_its_request_only() -> None:
    async with fake_cluster() as cluster, connected(cluster) as connection:
        cluster.fail(MetadataRequest, ErrorResponse(error=ErrorCode.INVALID_REQUEST, message="not so"))
        first, second = (connection.submit(ALL, MetadataResponse) for _ in range(2))
        with pytest.raises(BrokerError, match="not so") as caught:
            await first.wait()
        assert caught.value.code is ErrorCode.INVALID_REQUEST
        assert (await second.wait()).topics == ()


@on_both_loops
@pytest.mark.parametrize("cut", [None, 0, 2, 4, 30])
async def test_outstanding_requests_fail_when_the_peer_closes(cut: int | None) -> None:
    async with fake_cluster() as cluster, connected(cluster) as connection:
        cluster.fail(MetadataRequest, cut=cut)
        for reply in [connection.submit(ALL, MetadataResponse) for _ in range(3)]:
            with pytest.raises(ConnectionLostError):
                await reply.wait()
        assert connection.closed
        with pytest.raises(ConnectionLostError):
            await connection.ask(ALL, MetadataResponse)
        late = connection.post(ALL, ProduceResponse(partitions=()))
        with pytest.raises(ConnectionLostError):
            late.result()


@on_both_loops
@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\xff\xff\xff\xff",
        b"\0\0\0\3abc",
        b"".join(map(bytes, encode_response(7, HELLO))),  # type: ignore[arg-type]
        hello_reply() + b"\0\0\0\0",
    ],
    ids=["http", "negative", "garbage", "id", "unasked"],
)
async def test_an_invalid_reply_ends_the_connection(reply: bytes) -> None:
    async with server_sending(hello_reply(), reply) as port, connection_to(port) as connection:
        with pytest.raises(ConnectionLostError, match="sent an invalid reply"):
            await connection.ask(ALL, MetadataResponse)
        assert connection.closed


@on_both_loops
async def test_connecting_to_something_else_names_the_native_listener() -> None:
    async with server_sending(b"SSH-2.0-OpenSSH_9.2\r\n") as port:
        with pytest.raises(ConnectError, match=f"no warmlog broker at 127.0.0.1:{port}: "):
            await _open(port)


async def _open(port: int, host: str = "127.0.0.1", **settings: float) -> None:
    failure: WarmlogError | None = None
    async with anyio.create_task_group() as tasks:
        try:
            await Connection.open(host, port, tasks, Settings(**settings))  # type: ignore[arg-type]
        except WarmlogError as error:  # raised outside the task group, which would wrap it
            failure = error
    if failure is not None:
        raise failure


@on_both_loops
async def test_the_connect_timeout_includes_the_hello() -> None:
    async with fake_cluster() as cluster:
        cluster.hold(HelloRequest, anyio.Event())
        with pytest.raises(ConnectError, match=r"cannot connect to 127\.0\.0\.1:\d+ within 0\.05 s"):
            await _open(cluster.ports[1], connect_timeout_s=0.05)


@on_both_loops
async def test_a_refused_connection_is_a_connect_error() -> None:
    with pytest.raises(ConnectError, match=r"cannot connect to 127\.0\.0\.1:1: Connection refused") as caught:
        await _open(1)
    assert caught.value.code is ErrorCode.BROKER_NOT_AVAILABLE


@on_both_loops
async def test_no_shared_version_is_a_broker_error() -> None:
    async with fake_cluster() as cluster:
        cluster.versions = (VERSIONS[-1] + 1,)
        with pytest.raises(BrokerError, match="this one speaks") as caught:
            await _open(cluster.ports[1])
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


@on_both_loops
async def test_an_overdue_reply_ends_the_connection() -> None:
    async with fake_cluster() as cluster, connected(cluster) as connection:
        cluster.hold(MetadataRequest, anyio.Event())
        connection._timeout_s = 0.01
        first, second = (connection.submit(ALL, MetadataResponse) for _ in range(2))
        for reply in (first, second):
            with pytest.raises(RequestTimeoutError, match=r"did not reply within 0\.01 s"):
                await reply.wait()


@on_both_loops
async def test_a_check_without_an_overdue_reply_changes_nothing() -> None:
    async with fake_cluster() as cluster, connected(cluster) as connection:
        answer = anyio.Event()
        cluster.hold(MetadataRequest, answer)
        for asked in (False, True):
            if asked:
                connection.submit(ALL, MetadataResponse)
            connection._check_at(anyio.current_time() - 1)
            while connection._next_check_at < anyio.current_time():
                await anyio.lowlevel.checkpoint()
            assert (connection._next_check_at == inf) is not asked
        answer.set()
        await connection.ask(ALL, MetadataResponse)


@on_both_loops
async def test_close_fails_outstanding_requests_and_closes_the_socket() -> None:
    async with fake_cluster() as cluster, connected(cluster) as connection:
        cluster.hold(MetadataRequest, anyio.Event())
        reply = connection.submit(ALL, MetadataResponse)
        connection.close()
        connection.close()
        with pytest.raises(ClosedError):
            await reply.wait()
        while connection._loops:
            await anyio.lowlevel.checkpoint()
        assert connection._socket._socket.fileno() == -1


@on_both_loops
async def test_replies_behind_the_one_that_closed_the_connection_are_dropped() -> None:
    both = b"".join(bytes(part) for number in (2, 3) for part in encode_response(number, NO_TOPICS))  # type: ignore[arg-type]
    async with server_sending(hello_reply(), both) as port, connection_to(port) as connection:
        replies = [connection.submit(ALL, MetadataResponse) for _ in range(2)]
        replies[0].when_done(lambda _: connection.close())
        assert await replies[0].wait() == NO_TOPICS
        with pytest.raises(ClosedError):
            await replies[1].wait()
        while connection._loops:
            await anyio.lowlevel.checkpoint()


@on_both_loops
async def test_a_request_larger_than_the_socket_buffer_is_sent_in_pieces() -> None:
    large = ProduceRequest(
        acks=1, partitions=(PartitionRecords(topic="t", partition=0, records=memoryview(bytes(20 << 20))),)
    )
    async with fake_cluster() as cluster, connected(cluster) as connection:
        first = connection.submit(large, ProduceResponse)
        second = connection.submit(ALL, MetadataResponse)
        assert connection._unsent
        await second.wait()
        assert (await first.wait()).partitions[0].error is ErrorCode.MESSAGE_TOO_LARGE
        assert len(cluster.asked(ProduceRequest)[0].partitions[0].records) == 20 << 20


@on_both_loops
async def test_a_posted_request_settles_once_sent() -> None:
    large = ProduceRequest(
        acks=0, partitions=(PartitionRecords(topic="t", partition=0, records=memoryview(bytes(20 << 20))),)
    )
    nothing = ProduceResponse(partitions=())
    async with fake_cluster() as cluster, connected(cluster) as connection:
        small = connection.post(ProduceRequest(acks=0, partitions=()), nothing)
        assert small.result() is nothing
        reply = connection.post(large, nothing)
        assert not reply.done
        assert await reply.wait() is nothing
        abandoned = connection.post(large, nothing)
        connection.close()
        with pytest.raises(ClosedError):
            abandoned.result()


@on_both_loops
async def test_cancelling_the_task_group_ends_the_connection() -> None:
    async with fake_cluster() as cluster:
        async with anyio.create_task_group() as tasks:
            connection = await Connection.open("127.0.0.1", cluster.ports[1], tasks, Settings())
            cluster.hold(MetadataRequest, anyio.Event())
            reply = connection.submit(ALL, MetadataResponse)
            tasks.cancel_scope.cancel()
        with pytest.raises(ClosedError):
            reply.result()


@on_both_loops
async def test_connecting_obeys_the_connect_timeout() -> None:
    with pytest.raises(ConnectError, match=r"cannot connect to 192\.0\.2\.1:9091"):  # TEST-NET-1: no such host
        await _open(9091, "192.0.2.1", connect_timeout_s=0.02)
