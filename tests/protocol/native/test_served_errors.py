"""A real broker answers invalid requests with the error codes of docs/native-protocol.md and keeps serving."""

import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.frame import LENGTH_SIZE
from warmlog.protocol.native.codec import decode_response, encode_request
from warmlog.protocol.native.messages import OPERATIONS
from warmlog.protocol.records.builder import build_batch
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
    NewTopic,
    OffsetQuery,
    PartitionRecords,
    ProduceRequest,
    TopicAlteration,
)
from warmlog.testing import Broker

RESPONSES = {operation.request: operation.received for operation in OPERATIONS}
GOOD = build_batch([(5, None, b"x", ())])


class Peer:
    """A connection that sends one request at a time."""

    def __init__(self, broker: Broker) -> None:
        host, port = broker.native.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=20)
        self._stream = self._socket.makefile("rb")
        self.ask(HelloRequest(versions=(1,)))

    def ask(self, request: Any) -> Any:
        self._socket.sendall(encode_request(1, request))
        (length,) = struct.unpack(">i", self._stream.read(LENGTH_SIZE))
        return decode_response(self._stream.read(length), RESPONSES[type(request)])[1]

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with Broker(settings={"log.segment.bytes": 2 << 20}) as broker:
        peer = Peer(broker)
        peer.ask(CreateTopicsRequest(topics=(NewTopic(name="t", partitions=3),)))
        peer.ask(produce(GOOD))
        yield peer
        peer.close()


def create(name: str, **fields: Any) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=(NewTopic(name=name, **fields),))


def alter(name: str, **fields: Any) -> AlterTopicsRequest:
    return AlterTopicsRequest(topics=(TopicAlteration(name=name, **fields),))


def produce(records: bytes, topic: str = "t", partition: int = 0) -> ProduceRequest:
    return ProduceRequest(partitions=(PartitionRecords(topic=topic, partition=partition, records=memoryview(records)),))


def fetch(offset: int, topic: str = "t", partition: int = 0) -> FetchRequest:
    return FetchRequest(partitions=(FetchPartition(topic=topic, partition=partition, offset=offset),))


def offset(topic: str, partition: int) -> ListOffsetsRequest:
    return ListOffsetsRequest(partitions=(OffsetQuery(topic=topic, partition=partition, timestamp=0),))


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (create("t"), "TOPIC_ALREADY_EXISTS"),
        (create("a/b"), "INVALID_TOPIC_EXCEPTION"),
        (create(".."), "INVALID_TOPIC_EXCEPTION"),
        (create(""), "INVALID_TOPIC_EXCEPTION"),
        (create("x" * 250), "INVALID_TOPIC_EXCEPTION"),
        (create("u", partitions=0), "INVALID_PARTITIONS"),
        (create("u", partitions=-2), "INVALID_PARTITIONS"),
        (create("u", configs={"segment.byte": "1"}), "INVALID_CONFIG"),
        (create("u", configs={"segment.bytes": "-1"}), "INVALID_CONFIG"),
        (alter("t", partitions=2), "INVALID_PARTITIONS"),
        (alter("t", configs={"segment.bytes": "many"}), "INVALID_CONFIG"),
        (alter("missing", partitions=2), "UNKNOWN_TOPIC_OR_PARTITION"),
        (DeleteTopicsRequest(topics=("missing",)), "UNKNOWN_TOPIC_OR_PARTITION"),
        (DescribeTopicsRequest(topics=("missing",)), "UNKNOWN_TOPIC_OR_PARTITION"),
        (MetadataRequest(topics=("missing",)), "UNKNOWN_TOPIC_OR_PARTITION"),
        (MetadataRequest(topics=("a/b",), auto_create=True), "INVALID_TOPIC_EXCEPTION"),
        (produce(b""), "INVALID_RECORD"),
        (produce(GOOD[:-1]), "CORRUPT_MESSAGE"),
        (produce(GOOD[:-1] + b"y"), "CORRUPT_MESSAGE"),
        (produce(GOOD[:16] + b"\1" + GOOD[17:]), "INVALID_RECORD"),
        (produce(GOOD, partition=3), "UNKNOWN_TOPIC_OR_PARTITION"),
        (produce(GOOD, partition=-1), "UNKNOWN_TOPIC_OR_PARTITION"),
        (produce(build_batch([(5, None, bytes(1_100_000), ())])), "MESSAGE_TOO_LARGE"),
        (produce(build_batch([(5, None, bytes(1_000_000), ())]) * 3), "RECORD_LIST_TOO_LARGE"),
        (fetch(-1), "OFFSET_OUT_OF_RANGE"),
        (fetch(99), "OFFSET_OUT_OF_RANGE"),
        (fetch(0, "missing"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (fetch(0, "t", 3), "UNKNOWN_TOPIC_OR_PARTITION"),
        (offset("missing", 0), "UNKNOWN_TOPIC_OR_PARTITION"),
        (offset("t", 3), "UNKNOWN_TOPIC_OR_PARTITION"),
        (HelloRequest(versions=(98, 99)), "UNSUPPORTED_VERSION"),
    ],
)
def test_the_error_code(peer: Peer, request_: Any, code: str) -> None:
    reply = peer.ask(request_)
    parts = getattr(reply, "topics", None) or getattr(reply, "partitions", None) or [reply]
    assert [(part.error.name, bool(part.message)) for part in parts] == [(code, True)]
    assert peer.ask(produce(GOOD)).partitions[0].error is ErrorCode.NONE


def test_out_of_range_names_the_available_offsets(peer: Peer) -> None:
    (fetched,) = peer.ask(fetch(1 << 40)).partitions
    assert fetched.log_start_offset == 0
    assert fetched.high_watermark > 0


def test_one_partition_that_fails_stops_no_other(peer: Peer) -> None:
    good, bad = produce(GOOD).partitions[0], produce(GOOD, partition=9).partitions[0]
    reply = peer.ask(ProduceRequest(partitions=(bad, good)))
    assert [part.error.name for part in reply.partitions] == ["UNKNOWN_TOPIC_OR_PARTITION", "NONE"]
