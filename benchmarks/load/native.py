"""Requests to contestants in warmlog's native protocol, encoded before a measurement begins.

Another protocol needs another class with the same methods.
"""

import socket
from collections.abc import Mapping
from typing import Protocol, TypeVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.native.codec import decode_response, encode_request
from warmlog.protocol.request import (
    CreateTopicsRequest,
    FetchPartition,
    FetchRequest,
    HelloRequest,
    MetadataRequest,
    NewTopic,
    PartitionRecords,
    ProduceRequest,
    Request,
    Value,
)
from warmlog.protocol.response import CreateTopicsResponse, ErrorResponse, MetadataResponse

Address = tuple[str, int]
R = TypeVar("R", bound=Value)
TOPIC = "benchmark"
ANSWER_S = 60.0  # creating 1,000 partitions on a busy disk takes seconds


class SetupError(Exception):
    """The measurement could not be set up."""


class Wire(Protocol):
    """A protocol: complete request frames, and the setup of a measurement."""

    good: bytes  # bytes in each good reply

    @property
    def greeting(self) -> bytes:
        """Return the first request of a connection, which has one reply; empty if there is none."""

    def produce(self, topic: str, partition: int, batches: bytes) -> bytes:
        """Append batches to a partition."""

    def fetch(self, topic: str, partition: int, offset: int, max_bytes: int, wait_ms: int = 0) -> bytes:
        """Fetch from an offset, waiting for data for up to a time."""

    def new_topic(self, address: Address, partitions: int) -> str:
        """Create a topic and return its name. Raises SetupError."""

    def create_topic(self, address: Address, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Create this topic. Raises SetupError."""

    def drop_topic(self, address: Address, topic: str) -> None:
        """Delete a topic if others follow it on the same server. Raises SetupError."""

    def check_count(self, address: Address, topic: str, least: int) -> None:
        """Raise SetupError if a topic has fewer records."""

    def first_question(self, address: Address) -> None:
        """Send the first requests of a client over a new connection. Raises SetupError."""


class NativeWire:
    """Requests as bytes, including frames. The load generator does not distinguish ids, so all are 0."""

    good = b"\xa5error\x00"  # the error code 0 of a partition, which an ErrorResponse does not contain

    @property
    def greeting(self) -> bytes:
        """Return the first request of a connection, which has one reply."""
        return encode_request(0, HelloRequest(versions=(1,), client="warmlog-benchmark"))

    def produce(self, topic: str, partition: int, batches: bytes) -> bytes:
        """Append batches to a partition."""
        records = PartitionRecords(topic=topic, partition=partition, records=memoryview(batches))
        return encode_request(0, ProduceRequest(partitions=(records,)))

    def fetch(self, topic: str, partition: int, offset: int, max_bytes: int, wait_ms: int = 0) -> bytes:
        """Fetch from an offset, waiting for data for up to a time."""
        start = FetchPartition(topic=topic, partition=partition, offset=offset, max_bytes=max_bytes)
        return encode_request(0, FetchRequest(partitions=(start,), max_wait_ms=wait_ms))

    def create_topic(self, address: Address, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Create a topic. Raises SetupError."""
        request = CreateTopicsRequest(topics=(NewTopic(name=topic, partitions=partitions, configs=dict(configs)),))
        reply = self._ask(address, request, CreateTopicsResponse)
        if reply.topics[0].error is not ErrorCode.NONE:
            raise SetupError(f"topic {topic}: {reply.topics[0].message}")

    def new_topic(self, address: Address, partitions: int) -> str:
        """Return the only topic of the server. Raises SetupError."""
        self.create_topic(address, TOPIC, partitions, {})
        return TOPIC

    def drop_topic(self, address: Address, topic: str) -> None:
        """Do nothing, since the topic is removed with its server."""

    def check_count(self, address: Address, topic: str, least: int) -> None:
        """Do nothing, since every reply has been checked."""

    def first_question(self, address: Address) -> None:
        """Send the first requests of a client over a new connection. Raises SetupError."""
        self._ask(address, MetadataRequest(), MetadataResponse)

    def _ask(self, address: Address, request: Request, reply_type: type[R]) -> R:
        with socket.create_connection(address, timeout=ANSWER_S) as sock, sock.makefile("rb") as stream:
            for frame in (self.greeting, encode_request(0, request)):
                sock.sendall(frame)
                answer = stream.read(int.from_bytes(stream.read(4)))
        _, reply = decode_response(answer, reply_type)
        if isinstance(reply, ErrorResponse):
            raise SetupError(f"{type(request).__name__}: {reply.message}")
        return reply


class EchoWire(NativeWire):
    """For a server that answers each request with the same bytes."""

    good = b""
    greeting = b""

    def create_topic(self, address: Address, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Do nothing, since there are no topics."""
