"""Frames and replies that take long go to a worker thread, in the order of their connection."""

import gc
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.broker.clients import batch, running
from tests.broker.kafka_client import BY_NAME, KafkaClient, kafka_client
from tests.clients.waiting import LIMIT_S
from tests.protocol.kafka.messages import TABLES, body, frame, with_defaults
from warmlog.broker.api.context import Session
from warmlog.broker.api.pacing import Pacer
from warmlog.broker.api.records.produce import LARGE, PIECE
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.net.channel import Channel
from warmlog.broker.net.connection import Connection, Exchange
from warmlog.broker.net.wire import LOOP_WORK, KafkaWire
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.api import Codec
from warmlog.protocol.kafka.codec.bounds import COPY_SHIFT, LargeMessageError, MalformedError, ReplyTooLargeError
from warmlog.protocol.response import ErrorResponse, ListOffsetsResponse

MANY = 2 * LOOP_WORK  # things in a request or a reply: more than the loop does at once
LIST_OFFSETS = 7


def unknown(count: int) -> list[dict[str, Any]]:
    """Partitions of a topic that does not exist."""
    return [{"name": "none", "partitions": [{"partition_index": index, "timestamp": -1} for index in range(count)]}]


def list_offsets(count: int, cut: int = 0) -> bytes:
    """A frame with its length; without its last bytes."""
    api = BY_NAME["ListOffsets"]
    values = with_defaults(TABLES["ListOffsetsRequest"], LIST_OFFSETS, {"topics": unknown(count)})
    data = bytes(frame(api, LIST_OFFSETS, body("ListOffsetsRequest", api, LIST_OFFSETS, values)))
    data = data[: len(data) - cut]
    return len(data).to_bytes(4) + data


def opened() -> Connection:
    session = Session(listener="kafka", peer=("peer", 1), local=("here", 2))
    return Connection(session, KafkaWire(Codec()), Pacer(), 0.0, max_frame_bytes=1 << 24, max_requests=10)


def test_a_large_frame_is_refused_to_the_loop_and_decoded_once() -> None:
    connection = opened()
    connection.receive(list_offsets(MANY) + list_offsets(1), 0.0)
    with pytest.raises(LargeMessageError):
        connection.next_request()
    connection.decode_large()
    for count in (MANY, 1):
        received = connection.next_request()
        assert received is not None
        assert len(received[1].partitions) == count
    assert connection.next_request() is None


def test_a_frame_of_few_and_large_values_is_refused_to_the_loop() -> None:
    api, metadata = BY_NAME["JoinGroup"], bytes(LOOP_WORK << COPY_SHIFT)
    values = {"group_id": "g", "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": metadata}]}
    fields = with_defaults(TABLES["JoinGroupRequest"], 5, values)
    data = bytes(frame(api, 5, body("JoinGroupRequest", api, 5, fields)))
    connection = opened()
    connection.receive(len(data).to_bytes(4) + data, 0.0)
    with pytest.raises(LargeMessageError):
        connection.next_request()
    connection.decode_large()
    received = connection.next_request()
    assert received is not None
    assert received[1].protocols[0].metadata == metadata


def test_what_is_wrong_with_a_large_frame_is_raised_for_the_next_request() -> None:
    connection = opened()
    connection.receive(list_offsets(MANY, cut=3), 0.0)
    with pytest.raises(LargeMessageError):
        connection.next_request()
    connection.decode_large()
    with pytest.raises(MalformedError):
        connection.next_request()


def answered(connection: Connection, count: int) -> Exchange:
    """Begin a request that is answered with so many things."""
    connection.receive(list_offsets(1), 0.0)
    return answer_next(connection, count)


def answer_next(connection: Connection, count: int) -> Exchange:
    """Begin the next request, and answer it with the outcomes of so many times its partitions, or of one."""
    received = connection.next_request()
    assert received is not None
    call, request, size = received
    exchange = Exchange(0.0, Metrics().requests("list_offsets", "kafka"), call)
    connection.add(exchange)
    connection.count(exchange, size)
    exchange.response = call.api.failed(request, ErrorResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR, message=""))
    assert isinstance(exchange.response, ListOffsetsResponse)
    exchange.response = ListOffsetsResponse(partitions=exchange.response.partitions[:1] * count)
    return exchange


async def test_replies_behind_a_large_one_wait_for_it() -> None:
    connection = opened()
    answered(connection, 1)
    large = answered(connection, MANY)
    answered(connection, 1)
    assert len(connection.take_replies(0.0)) == 1
    assert connection.large_reply is large
    assert not connection.take_replies(0.0)
    assert not connection.is_answered
    await connection.encode_large()
    first, second = connection.take_replies(0.0)
    assert len(first) > MANY > len(second)  # type: ignore[arg-type]
    assert connection.large_reply is None
    connection.sent(0.0)
    assert connection.is_answered


async def test_a_large_request_and_its_response_are_handed_over_to_be_freed_once_the_reply_is_encoded() -> None:
    connection = opened()
    large = answered(connection, MANY)
    response, request = large.response, large.call.request
    connection.take_replies(0.0)
    assert not connection.released, "the reply is not encoded yet"
    await connection.encode_large()
    connection.take_replies(0.0)
    assert [each for each in connection.released if each is not None] == [response, request]
    assert large.response is large.call is None


def test_a_large_request_with_a_small_reply_is_handed_over_to_be_freed() -> None:
    connection = opened()
    connection.receive(list_offsets(MANY), 0.0)
    with pytest.raises(LargeMessageError):
        connection.next_request()
    connection.decode_large()
    exchange = answer_next(connection, 1)
    request = exchange.call.request
    connection.take_replies(0.0)
    assert request in connection.released


def test_a_connection_that_ends_hands_over_what_is_large() -> None:
    connection = opened()
    connection.receive(list_offsets(MANY) + list_offsets(MANY), 0.0)
    with pytest.raises(LargeMessageError):
        connection.next_request()
    connection.decode_large()
    unanswered = answer_next(connection, 1).call.request
    with pytest.raises(LargeMessageError):
        connection.next_request()
    connection.decode_large()
    handed_over = connection.abandon()
    assert unanswered in handed_over
    assert sum(each is not None and each == unanswered for each in handed_over) == 2, "the decoded one, too"


async def test_a_reply_of_more_bytes_than_allowed_is_encoded_as_an_error() -> None:
    connection = opened()
    large = answered(connection, MANY)
    connection.take_replies(0.0)
    with pytest.raises(ReplyTooLargeError) as refusal:
        await connection.encode_large(MANY)
    assert not connection.take_replies(0.0)
    connection.refuse_large(refusal.value)
    assert large.response == ErrorResponse(
        error=ErrorCode.POLICY_VIOLATION,
        message=f"the reply takes more than {MANY} bytes: request less at a time (warmlog.reply.max.bytes)",
    )
    size = await connection.encode_large(MANY)
    assert sum(map(len, connection.take_replies(0.0))) == size < 100


def commit(count: int) -> dict[str, Any]:
    offsets = [{"partition_index": index, "committed_offset": 1, "committed_metadata": ""} for index in range(count)]
    return {"group_id": "g", "member_id": "", "topics": [{"name": "wide", "partitions": offsets}]}


@pytest.mark.parametrize(("times", "expected"), [(10, ErrorCode.NONE), (1000, ErrorCode.POLICY_VIOLATION)])
async def test_a_request_for_more_than_a_reply_may_take_is_refused(
    tmp_path: Path, times: int, expected: ErrorCode
) -> None:
    settings = {"warmlog.reply.max.bytes": 1 << 20, "offsets.topic.num.partitions": 1}
    async with running(tmp_path, settings) as broker, kafka_client(broker.addresses.kafka) as client:
        await create_wide(client)
        while (await client.ask("FindCoordinator", 4, key_type=0, coordinator_keys=["g"]))["coordinators"][0][
            "error_code"
        ]:
            pass
        await client.ask("OffsetCommit", 8, **commit(PIECE))
        reply = await client.ask("OffsetFetch", 8, groups=[{"group_id": "g", "topics": None}] * times)
        assert [group["error_code"] for group in reply["groups"]] == [expected] * times
        counts = {sum(len(topic["partitions"]) for topic in group["topics"]) for group in reply["groups"]}
        assert counts == {0 if expected else PIECE}
        assert await listed(client) == 1


async def test_a_long_reply_comes_whole_and_leaves_room_for_others(tmp_path: Path) -> None:
    settings = {"warmlog.reply.max.bytes": 4 << 20, "warmlog.queued.max.reply.bytes": 0}
    async with running(tmp_path, settings) as broker:
        for _ in range(3):  # a share that is not given back would keep the next reply waiting
            async with kafka_client(broker.addresses.kafka) as client:
                reply = await client.ask("ListOffsets", LIST_OFFSETS, topics=unknown(60_000))
                assert len(reply["topics"][0]["partitions"]) == 60_000


async def test_where_even_the_error_is_too_long_the_connection_closes(tmp_path: Path) -> None:
    async with running(tmp_path, {"warmlog.reply.max.bytes": 1 << 20}) as broker:
        async with kafka_client(broker.addresses.kafka) as client:
            await client.send("ListOffsets", LIST_OFFSETS, topics=unknown(60_000))
            assert await client.stream.receive_some() == b""
        async with kafka_client(broker.addresses.kafka) as client:
            assert await listed(client) == 1


class HeldWorker:
    """Stands for a busy worker thread: what is to be run by it waits until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = trio.Event()
        self.asked = trio.Event()
        in_worker = Pacer.in_worker

        async def held(pacer: Pacer, work: Callable[[], Any], who: Hashable, size: int) -> Any:
            self.asked.set()
            await self.free.wait()
            return await in_worker(pacer, work, who, size)

        monkeypatch.setattr(Pacer, "in_worker", held)


async def test_others_are_served_while_a_large_request_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = HeldWorker(monkeypatch)
    async with running(tmp_path) as broker:
        address = broker.addresses.kafka
        async with kafka_client(address) as slow, kafka_client(address) as other:
            await slow.send("ListOffsets", LIST_OFFSETS, topics=unknown(MANY))
            await slow.send("ListOffsets", LIST_OFFSETS, topics=unknown(1))
            await worker.asked.wait()
            assert await listed(other) == 1
            worker.free.set()
            for count in (MANY, 1):
                reply = await slow.reply()
                assert len(reply["topics"][0]["partitions"]) == count


async def listed(client: KafkaClient) -> int:
    reply = await client.ask("ListOffsets", LIST_OFFSETS, topics=unknown(1))
    return len(reply["topics"][0]["partitions"])


async def test_a_peer_that_leaves_during_its_large_request_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = HeldWorker(monkeypatch)
    async with running(tmp_path) as broker:
        async with kafka_client(broker.addresses.kafka) as slow:
            await slow.send("ListOffsets", LIST_OFFSETS, topics=unknown(MANY))
            await worker.asked.wait()
        async with kafka_client(broker.addresses.kafka) as other:
            worker.free.set()
            assert await listed(other) == 1


@pytest.mark.parametrize("count", [PIECE + 1, LARGE + PIECE])
async def test_a_produce_to_many_partitions_is_answered_for_each_in_order(tmp_path: Path, count: int) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create_wide(client)
        indexes = [index % (2 * PIECE) for index in range(count)]
        reply = await produce(client, indexes)
        results = reply["responses"][0]["partition_responses"]
        assert [one["index"] for one in results] == indexes
        errors = [ErrorCode.NONE if index < PIECE else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for index in indexes]
        assert [one["error_code"] for one in results] == errors
        offsets = [turn // (2 * PIECE) if index < PIECE else -1 for turn, index in enumerate(indexes)]
        assert [one["base_offset"] for one in results] == offsets


async def create_wide(client: KafkaClient) -> None:
    topic = {"name": "wide", "num_partitions": PIECE, "replication_factor": 1, "assignments": (), "configs": ()}
    await client.ask("CreateTopics", 5, topics=[topic], timeout_ms=60_000)


async def produce(client: KafkaClient, indexes: list[int]) -> dict[str, Any]:
    await send_produce(client, indexes, acks=1)
    return await client.reply()


async def send_produce(client: KafkaClient, indexes: list[int], acks: int) -> None:
    data = [{"index": index, "records": batch(b"v")} for index in indexes]
    topics = [{"name": "wide", "partition_data": data}]
    await client.send("Produce", 9, acks=acks, timeout_ms=30_000, topic_data=topics)


async def test_a_failed_produce_to_many_partitions_without_acks_closes_the_connection(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create_wide(client)
        await send_produce(client, [*range(PIECE)] * 10 + [PIECE], acks=0)
        assert await client.stream.receive_some() == b""


def channels() -> list[Channel]:
    """Return all channels that exist."""
    return [each for each in gc.get_objects() if type(each) is Channel]


async def test_a_closed_connection_leaves_no_cycle_to_the_garbage_collector(tmp_path: Path) -> None:
    """The collector's passes over all objects are rare, since each of them holds the loop."""
    async with running(tmp_path) as broker:
        gc.collect()
        others = channels()  # of earlier tests: pytest keeps what the traceback of a failure refers to
        gc.disable()
        try:
            for _ in range(5):
                async with kafka_client(broker.addresses.kafka) as client:
                    await listed(client)
                    await client.send("Fetch", 12, max_wait_ms=60_000, min_bytes=1, max_bytes=1, session_epoch=-1)
            with trio.fail_after(LIMIT_S):
                while any(each not in others for each in channels()):
                    await trio.lowlevel.checkpoint()
        finally:
            gc.enable()
