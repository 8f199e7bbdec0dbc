"""An in-memory cluster behind real sockets, with injected faults, for tests of the client.

Topics are lists of batches. The cluster runs in the test's own event loop.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import SocketAttribute, SocketStream

from warmlog.protocol.errors import ErrorCode, ProtocolError
from warmlog.protocol.frame import FrameReader
from warmlog.protocol.native.codec import decode_request, encode_response
from warmlog.protocol.records.batch import stamp
from warmlog.protocol.records.reader import records_in
from warmlog.protocol.records.validation import check_batches
from warmlog.protocol.request import (
    AlterTopicsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeTopicsRequest,
    FetchPartition,
    FetchRequest,
    HelloRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetQuery,
    PartitionRecords,
    ProduceRequest,
    Request,
)
from warmlog.protocol.response import (
    AlterTopicsResponse,
    BrokerMetadata,
    CreatedTopic,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    DescribeTopicsResponse,
    ErrorResponse,
    FetchedPartition,
    FetchResponse,
    HelloResponse,
    ListedOffset,
    ListOffsetsResponse,
    MetadataResponse,
    PartitionDescription,
    PartitionMetadata,
    ProducedPartition,
    ProduceResponse,
    Response,
    TopicDescription,
    TopicMetadata,
    TopicResult,
)

NO_SUCH = {"error": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "message": "no such topic or partition"}


KAFKA_REQUEST = 0  # the first byte of one: of a client of another test, whose stopped broker had this port before


class HangUpError(Exception):
    """Close the connection."""


@dataclass
class Log:
    """One partition: whole batches, each with its base offset."""

    leader: int = 1
    start: int = 0
    batches: list[tuple[int, int, bytes]] = field(default_factory=list)  # base offset, next offset, bytes

    @property
    def end(self) -> int:
        return self.batches[-1][1] if self.batches else self.start

    def append(self, records: memoryview) -> int:
        first = self.end
        for position, header in check_batches(records, reencoded=True):
            batch = bytearray(records[position : position + header.size])
            stamp(batch, base_offset=self.end, leader_epoch=0)
            self.batches.append((self.end, self.end + header.last_offset_delta + 1, bytes(batch)))
        return first

    def read(self, offset: int, max_bytes: int, *, whole_first: bool) -> bytes:
        found = [batch for _, following, batch in self.batches if following > offset]
        limit = max(max_bytes, len(found[0])) if found and whole_first else max_bytes
        return b"".join(found)[:limit]

    def records(self) -> list[Any]:
        return list(records_in(b"".join(batch for _, _, batch in self.batches)))


@dataclass
class Fault:
    """A fault injected into requests of one type, `times` times.

    `act` is called before the request is handled; it may wait, raise HangUpError, or return a response to send instead.
    `cut`: send this many bytes of the reply, then close the connection.
    """

    kind: type[Any]
    act: Callable[[Any], Awaitable[Response | None]] | None = None
    cut: int | None = None
    times: int = 1


class FakeCluster:
    """Brokers 1 to n with the same topics. `requests`: all received, in order, with the broker's node id."""

    def __init__(self) -> None:
        self.topics: dict[str, list[Log]] = {}
        self.requests: list[tuple[int, Request]] = []
        self.faults: deque[Fault] = deque()
        self.ports: dict[int, int] = {}
        self.auto_create = True
        self.num_partitions = 1
        self.max_message_bytes = 1 << 20
        self.connections = 0
        self.versions = (1,)
        self._grown = anyio.Event()
        self._streams: set[SocketStream] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports[1]}"

    def asked(self, kind: type[Any]) -> list[Any]:
        """Return the requests of one type in the order received."""
        return [request for _, request in self.requests if isinstance(request, kind)]

    def create(self, name: str, partitions: int = 1) -> list[Log]:
        self.topics[name] = [Log() for _ in range(partitions)]
        return self.topics[name]

    def fail(
        self, kind: type[Any], response: Response | None = None, *, times: int = 1, cut: int | None = None
    ) -> None:
        """Send this response instead; without one, close the connection, or do so after `cut` bytes of the reply."""

        async def act(_: Any) -> Response | None:
            if response is None and cut is None:
                raise HangUpError
            return response

        self.faults.append(Fault(kind, act, cut, times))

    def hold(self, kind: type[Any], until: anyio.Event, *, times: int = 1) -> None:
        """Delay the reply until the event."""

        async def act(_: Any) -> None:
            await until.wait()

        self.faults.append(Fault(kind, act, None, times))

    async def hang_up(self) -> None:
        """Close all connections."""
        for stream in list(self._streams):
            stream.extra(SocketAttribute.raw_socket)
            await anyio.aclose_forcefully(stream)

    # -- serving --

    async def serve(self, stream: SocketStream, node_id: int) -> None:
        reader = FrameReader()
        self.connections += 1
        self._streams.add(stream)
        try:
            async with stream:
                while True:
                    reader.feed(await stream.receive())
                    while (frame := reader.next_frame()) is not None:
                        await self._answer(stream, node_id, frame)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, HangUpError):
            pass
        finally:
            self._streams.discard(stream)

    async def _answer(self, stream: SocketStream, node_id: int, frame: memoryview) -> None:
        if frame[0] == KAFKA_REQUEST:
            raise HangUpError
        request_id, request = decode_request(frame)
        self.requests.append((node_id, request))
        fault = self._fault(request)
        response = await fault.act(request) if fault and fault.act else None
        if response is None:
            response = await self._handle(node_id, request)
        if isinstance(request, ProduceRequest) and request.acks == 0:
            if any(part.error for part in response.partitions):
                raise HangUpError
            return
        reply = b"".join(bytes(piece) for piece in encode_response(request_id, response))
        await stream.send(reply[: fault.cut] if fault else reply)
        if fault and fault.cut is not None:
            raise HangUpError

    def _fault(self, request: Request) -> Fault | None:
        for fault in self.faults:
            if isinstance(request, fault.kind):
                fault.times -= 1
                if not fault.times:
                    self.faults.remove(fault)
                return fault
        return None

    async def _handle(self, node_id: int, request: Request) -> Any:
        match request:
            case FetchRequest():
                return await self._fetch(node_id, request)
            case HelloRequest():
                return self._hello(node_id, request)
            case ProduceRequest():
                response = ProduceResponse(
                    partitions=tuple(self._produce(node_id, part) for part in request.partitions)
                )
                self._grown.set()
                self._grown = anyio.Event()
                return response
            case ListOffsetsRequest():
                return ListOffsetsResponse(partitions=tuple(self._offset(node_id, q) for q in request.partitions))
            case DescribeTopicsRequest():
                return DescribeTopicsResponse(topics=tuple(self._describe(node_id, name) for name in request.topics))
        return self._handle_topics(request)

    def _handle_topics(self, request: Request) -> Any:
        match request:
            case MetadataRequest():
                return self._metadata(request)
            case CreateTopicsRequest():
                return CreateTopicsResponse(topics=tuple(map(self._create, request.topics)))
            case DeleteTopicsRequest():
                return DeleteTopicsResponse(topics=tuple(map(self._delete, request.topics)))
            case AlterTopicsRequest():
                return AlterTopicsResponse(topics=tuple(map(self._alter, request.topics)))
        raise AssertionError(request)

    def _hello(self, node_id: int, request: HelloRequest) -> Response:
        common = set(request.versions) & set(self.versions)
        if not common:
            return ErrorResponse(error=ErrorCode.UNSUPPORTED_VERSION, message=f"this one speaks {self.versions}")
        return HelloResponse(
            version=max(common), broker="fake/0", cluster_id="fake", node_id=node_id, max_frame_bytes=1 << 20
        )

    # -- topics --

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        names = sorted(self.topics) if request.topics is None else request.topics
        return MetadataResponse(
            cluster_id="fake",
            controller=1,
            brokers=tuple(BrokerMetadata(node_id=n, host="127.0.0.1", port=port) for n, port in self.ports.items()),
            topics=tuple(self._topic(name, create=request.auto_create and self.auto_create) for name in names),
        )

    def _topic(self, name: str, *, create: bool) -> TopicMetadata:
        if name not in self.topics:
            if not create:
                return TopicMetadata(name=name, **NO_SUCH)
            self.create(name, self.num_partitions)
        return TopicMetadata(
            name=name,
            topic_id=f"id of {name}",
            partitions=tuple(
                PartitionMetadata(
                    partition=number, leader=log.leader, leader_epoch=0, replicas=(log.leader,), in_sync=(log.leader,)
                )
                for number, log in enumerate(self.topics[name])
            ),
        )

    def _create(self, topic: Any) -> CreatedTopic:
        if topic.name in self.topics:
            return CreatedTopic(name=topic.name, error=ErrorCode.TOPIC_ALREADY_EXISTS, message="there is one already")
        count = self.num_partitions if topic.partitions < 0 else topic.partitions
        self.create(topic.name, count)
        return CreatedTopic(name=topic.name, topic_id=f"id of {topic.name}", partitions=count)

    def _delete(self, name: str) -> TopicResult:
        return TopicResult(name=name) if self.topics.pop(name, None) else TopicResult(name=name, **NO_SUCH)

    def _alter(self, topic: Any) -> TopicResult:
        logs = self.topics.get(topic.name)
        if logs is None:
            return TopicResult(name=topic.name, **NO_SUCH)
        logs += [Log() for _ in range((topic.partitions or len(logs)) - len(logs))]
        return TopicResult(name=topic.name)

    def _describe(self, node_id: int, name: str) -> TopicDescription:
        if name not in self.topics:
            return TopicDescription(name=name, **NO_SUCH)
        partitions = [self._describe_partition(node_id, name, index) for index in range(len(self.topics[name]))]
        return TopicDescription(name=name, partitions=tuple(partitions))

    def _describe_partition(self, node_id: int, topic: str, partition: int) -> PartitionDescription:
        log, error = self._log(node_id, topic, partition)
        return PartitionDescription(
            partition=partition,
            leader=self.topics[topic][partition].leader,
            leader_epoch=0,
            log_start_offset=-1 if error else log.start,
            high_watermark=-1 if error else log.end,
            log_end_offset=-1 if error else log.end,
            flushed_offset=0,
            size=0,
            segments=(),
            **error,
        )

    # -- logs --

    def _log(self, node_id: int, topic: str, partition: int) -> tuple[Log, dict[str, Any]]:
        logs = self.topics.get(topic, [])
        if not 0 <= partition < len(logs):
            return Log(), NO_SUCH
        if logs[partition].leader != node_id:
            return Log(), {"error": ErrorCode.NOT_LEADER_OR_FOLLOWER, "message": "it lives elsewhere"}
        return logs[partition], {}

    def _produce(self, node_id: int, asked: PartitionRecords) -> ProducedPartition:
        log, error = self._log(node_id, asked.topic, asked.partition)
        where = {"topic": asked.topic, "partition": asked.partition}
        try:
            if len(asked.records) > self.max_message_bytes:
                error = {"error": ErrorCode.MESSAGE_TOO_LARGE, "message": "a batch is too large"}
            if error:
                return ProducedPartition(**where, **error)
            return ProducedPartition(**where, base_offset=log.append(asked.records), log_start_offset=log.start)
        except ProtocolError as problem:
            return ProducedPartition(**where, error=problem.code, message=str(problem))

    async def _fetch(self, node_id: int, request: FetchRequest) -> FetchResponse:
        fetched = self._read(node_id, request)
        with anyio.move_on_after(request.max_wait_ms / 1000):
            while not any(part.error or len(part.records) for part in fetched):
                await self._grown.wait()
                fetched = self._read(node_id, request)
        return FetchResponse(partitions=tuple(fetched))

    def _read(self, node_id: int, request: FetchRequest) -> list[FetchedPartition]:
        fetched, left = [], request.max_bytes
        for asked in request.partitions:
            fetched.append(self._read_one(node_id, asked, left, whole_first=left == request.max_bytes))
            left = max(0, left - len(fetched[-1].records))
        return fetched

    def _read_one(self, node_id: int, asked: FetchPartition, left: int, *, whole_first: bool) -> FetchedPartition:
        log, error = self._log(node_id, asked.topic, asked.partition)
        if not error and not log.start <= asked.offset <= log.end:
            error = {"error": ErrorCode.OFFSET_OUT_OF_RANGE, "message": "not there"}
        records = b"" if error else log.read(asked.offset, min(asked.max_bytes, left), whole_first=whole_first)
        return FetchedPartition(
            topic=asked.topic,
            partition=asked.partition,
            high_watermark=log.end,
            last_stable_offset=log.end,
            log_start_offset=log.start,
            records=records,
            **error,
        )

    def _offset(self, node_id: int, query: OffsetQuery) -> ListedOffset:
        log, error = self._log(node_id, query.topic, query.partition)
        where = {"topic": query.topic, "partition": query.partition}
        if error:
            return ListedOffset(**where, **error)
        if query.timestamp < 0:
            return ListedOffset(**where, offset={-1: log.end, -2: log.start}[query.timestamp])
        found = next((record for record in log.records() if record.timestamp >= query.timestamp), None)
        return ListedOffset(**where, timestamp=found.timestamp, offset=found.offset) if found else ListedOffset(**where)


@asynccontextmanager
async def fake_cluster(brokers: int = 1) -> AsyncIterator[FakeCluster]:
    """Serve a cluster until the end of the block."""
    cluster = FakeCluster()
    async with anyio.create_task_group() as tasks:
        for node_id in range(1, brokers + 1):
            listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
            cluster.ports[node_id] = listener.extra(SocketAttribute.local_port)
            tasks.start_soon(_serve, cluster, listener, node_id)
        yield cluster
        tasks.cancel_scope.cancel()


async def _serve(cluster: FakeCluster, listener: Any, node_id: int) -> None:
    async with listener:
        await listener.serve(lambda stream: cluster.serve(stream, node_id))
